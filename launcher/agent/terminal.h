// AgentTerminal: the terminal of the agent's user. It handles the status line, the terminal's
// size, Ctrl-Z, and input for rank 0 (--stdin with --pty). Without a terminal it does nothing.
//
// The ConsoleWriter writes the lines on the terminal. Owner: Agent, on its one thread; the
// functions it is given run there too.
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
  // Returns what the status line shows now.
  std::function<StatusFacts()> status;
  std::function<void(ScreenSize)> resized;
  // Takes typed bytes. Empty: end of the input.
  std::function<void(std::string_view)> typed;
};

class AgentTerminal {
 public:
  // typed: a descriptor with the input that the guardian reads from the terminal; invalid if the
  // input is not used. REQUIRES: io and console outlive this object.
  AgentTerminal(boost::asio::io_context& io, ConsoleWriter& console, UniqueFd typed,
                AgentTerminalEvents events);

  // Shows the status line from now on and updates it once a second.
  void show_status();
  // Updates the status line at once. Does nothing if it is not shown.
  void update_status();

  // Handles Ctrl-Z: restores the terminal, then stops the guardian, which the shell waits for.
  void leave(pid_t guardian);
  void come_back();

  // Reads the terminal's size, which may have changed.
  void follow_size();

  // Starts to read input. Before the first read_typing(), and after stop_reading(), input stays
  // unread.
  void read_typing();
  void stop_reading();

  // Removes the status line for good. No callback is called any more.
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
