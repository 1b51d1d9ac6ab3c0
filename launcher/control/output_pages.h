// OutputPages: what this node's workers write, for a reader who asks through the rendezvous
// service. It is kept here until the service says that it is this node's turn
// (rendezvous/protocol/core/user_request.h, TellOutput): a page goes out for each turn, and in between no
// more than the word that there is something. At the end of the job there are no turns any more:
// the newest that is left goes out at once.
//
// Owner: ControlServer. Pure but for `send`, which is called from within each function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/output/reader.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

class OutputPages final : public OutputReader {
 public:
  static constexpr std::size_t kLastBytes = 256 * 1024;

  OutputPages(std::uint64_t inquiry, std::function<void(const OutputPage&)> send)
      : inquiry_(inquiry), send_(std::move(send)) {}

  // The service has asked: it hears at once that there is somebody who answers. To be called once,
  // when what there is to begin with was said.
  void begin();
  // It is this node's turn.
  void take_turn();
  // Nobody wants it any more: nothing is sent from now on.
  void close();

  bool is_open() const override { return is_open_; }
  // Always: what is new takes the place of what is oldest, and the reader is told how much is
  // missing.
  std::size_t room() const override { return kMaxUnsentBytes; }
  void say(std::string_view line) override;
  void end() override;
  void end_with_job(std::string_view last_word) override;

 private:
  void keep(std::size_t bytes);
  std::string next_page();
  void send(std::string lines);

  const std::uint64_t inquiry_;
  std::function<void(const OutputPage&)> send_;
  std::deque<std::string> lines_;  // with their ends
  std::size_t bytes_ = 0;
  std::uint64_t left_out_ = 0;  // bytes before lines_, and the reader was not told yet
  bool has_begun_ = false;
  bool is_known_ready_ = false;  // the service knows that there is something
  bool is_ended_ = false;
  bool is_open_ = true;
};

}  // namespace ddprun
