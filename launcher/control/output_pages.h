// OutputPages: holds the output of this node's workers for one reader who asks through the
// rendezvous service.
//
// Pages wait here until the service gives this node its turn
// (rendezvous/protocol/core/user_request.h, OutputDirective). Each turn sends one page. Between
// turns it sends at most the notice that a page is ready. At the end of the job there are no
// more turns: the newest kLastBytes that remain are sent at once.
//
// Owner: ControlServer, on the agent's thread. Pure, except that the functions call `send`.
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

  // Tells the service at once that this node answers its request. Called once, after the output
  // that exists already has been passed to say().
  void begin();
  // Sends the next page. Called when it is this node's turn.
  void take_turn();
  // Drops all lines and sends nothing more. Called when the reader needs no more output.
  void close();

  bool is_open() const override { return is_open_; }
  // Always returns the full size: new lines replace the oldest ones. The next page then says
  // how many bytes are missing.
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
  std::deque<std::string> lines_;  // each with its line end
  std::size_t bytes_ = 0;
  std::uint64_t left_out_ = 0;  // bytes dropped before lines_ that no page has reported yet
  bool has_begun_ = false;
  bool is_known_ready_ = false;  // the service knows that a page is ready
  bool is_ended_ = false;
  bool is_open_ = true;
};

}  // namespace ddprun
