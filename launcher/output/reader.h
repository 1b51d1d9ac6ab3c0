// OutputReader: a reader of the output of this node's workers, which it gets as lines of JSON.
// It is either a command on the agent's socket (launcher/control/socket.h), or the rendezvous
// service on behalf of a command (launcher/control/output_pages.h). Used on the agent's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace ddprun {

class OutputReader {
 public:
  // The most bytes that are kept for a reader that does not read.
  static constexpr std::size_t kMaxUnsentBytes = 2 << 20;

  virtual ~OutputReader() = default;
  // Returns false once the reader has gone; it then gets nothing more.
  virtual bool is_open() const = 0;
  // Returns how many bytes may be sent to the reader now.
  virtual std::size_t room() const = 0;
  // Sends a line; the newline is added. REQUIRES: there is room for it.
  virtual void say(std::string_view line) = 0;
  // Ends the output: nothing more will be sent.
  virtual void end() = 0;
  // Ends the output as end() does, because the job has ended on this node. last_word: the line that
  // tells the reader so.
  virtual void end_with_job(std::string_view last_word) = 0;
};
using OutputReaderPtr = std::shared_ptr<OutputReader>;

}  // namespace ddprun
