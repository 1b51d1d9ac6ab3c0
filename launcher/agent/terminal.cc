#include "launcher/agent/terminal.h"

#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <csignal>
#include <optional>
#include <utility>

#include "launcher/process/pseudo_terminal.h"

namespace ddprun {

namespace asio = boost::asio;
using boost::system::error_code;

AgentTerminal::AgentTerminal(asio::io_context& io, ConsoleWriter& console, UniqueFd typed,
                             AgentTerminalEvents events)
    : console_(console), events_(std::move(events)), status_timer_(io), typed_(io) {
  if (typed.valid()) typed_.assign(typed.release());
}

void AgentTerminal::show_status() {
  is_status_shown_ = console_.is_live();
  update_status();
}

void AgentTerminal::update_status() {
  if (is_status_shown_) draw_status();
}

void AgentTerminal::draw_status() {
  console_.set_status(status_line(events_.status()));
  status_timer_.expires_after(std::chrono::seconds(1));
  status_timer_.async_wait([this](error_code error) {
    if (!error) draw_status();
  });
}

void AgentTerminal::leave(pid_t guardian) {
  console_.hide_area();
  console_.when_flushed([guardian] { kill(guardian, SIGSTOP); });
}

void AgentTerminal::come_back() { console_.show_area(); }

void AgentTerminal::follow_size() {
  const std::optional<ScreenSize> size = size_of_terminal(STDOUT_FILENO);
  if (!size) return;
  console_.resize(*size);
  events_.resized(*size);
}

void AgentTerminal::read_typing() {
  is_typing_wanted_ = true;
  if (is_waiting_for_typing_ || !typed_.is_open()) return;
  is_waiting_for_typing_ = true;
  // Input that has been read cannot be put back, so nothing is read before it is wanted.
  typed_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
    is_waiting_for_typing_ = false;
    if (error || !is_typing_wanted_) return;
    const std::size_t count = typed_.read_some(asio::buffer(typed_bytes_), error);
    if (error && error != asio::error::eof) return;
    events_.typed({typed_bytes_.data(), count});
    if (!error) read_typing();
  });
}

void AgentTerminal::stop_reading() { is_typing_wanted_ = false; }

void AgentTerminal::close() {
  status_timer_.cancel();
  typed_.close();
  console_.hide_area();
}

}  // namespace ddprun
