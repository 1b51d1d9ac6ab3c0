// AgentTerminal: the terminal that the agent's user looks at and types into: the status line, its
// size, Ctrl-Z, and what is typed for rank 0 (--stdin with --pty). Elsewhere it does nothing.
//
// Lines on the terminal are the ConsoleWriter's. Owner: Agent, on its one thread, like the functions
// it is given.
#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string_view>

#include "base/unique_fd.h"
#include "launcher/output/console_writer.h"
#include "launcher/output/core/live_screen.h"
#include "launcher/output/core/status_line.h"

namespace ddprun {

struct AgentTerminalEvents {
  // What the status line says now.
  std::function<StatusFacts()> status;
  std::function<void(ScreenSize)> resized;
  // Empty: nothing more comes.
  std::function<void(std::string_view)> typed;
};

class AgentTerminal {
 public:
  // typed: what the guardian has read from the terminal; invalid: not asked for. REQUIRES: io and
  // console outlive it.
  AgentTerminal(boost::asio::io_context& io, ConsoleWriter& console, UniqueFd typed,
                AgentTerminalEvents events);

  // Shows the status line from now on, and follows it once a second.
  void show_status();
  // What it says has changed, and should be seen at once. Does nothing where it is not shown.
  void update_status();

  // Somebody has pressed Ctrl-Z: the guardian, which the shell waits for, stops when the terminal is
  // as it was.
  void leave(pid_t guardian);
  void come_back();

  // The terminal has another size, perhaps.
  void follow_size();

  // Until then, and between stop_reading() and the next read_typing(), what is typed waits.
  void read_typing();
  void stop_reading();

  // Takes the status line away for good; nothing is called any more.
  void close();

 private:
  void draw_status();

  ConsoleWriter& console_;
  AgentTerminalEvents events_;
  boost::asio::steady_timer status_timer_;
  bool is_status_shown_ = false;
  boost::asio::posix::stream_descriptor typed_;
  std::array<char, 1024> typed_bytes_{};
  bool is_typing_wanted_ = false;
  bool is_waiting_for_typing_ = false;
};

}  // namespace ddprun
