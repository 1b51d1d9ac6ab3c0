// OutputReader: somebody who reads what the workers of this node write, as lines of JSON: a command
// on the agent's socket (launcher/control/socket.h), or the rendezvous service in the place of one
// (launcher/control/output_pages.h). Used on the agent's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace ddprun {

class OutputReader {
 public:
  // What is kept for one who does not read.
  static constexpr std::size_t kMaxUnsentBytes = 2 << 20;

  virtual ~OutputReader() = default;
  // False: it has gone, and hears nothing more.
  virtual bool is_open() const = 0;
  // How many bytes may be said now.
  virtual std::size_t room() const = 0;
  // A line, whose end is added. REQUIRES: there is room for it.
  virtual void say(std::string_view line) = 0;
  // Nothing more will be said.
  virtual void end() = 0;
  // The same, because the job's part on this node is over; last_word: the line that says so.
  virtual void end_with_job(std::string_view last_word) = 0;
};
using OutputReaderPtr = std::shared_ptr<OutputReader>;

}  // namespace ddprun
