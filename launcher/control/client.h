// ControlClient: a command's end of the connection to an agent's socket
// (launcher/control/socket.h). Used by one thread. Every wait has a deadline.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/guard/control_place.h"

namespace ddprun {

class ControlClient {
 public:
  // Bound on a received line. No line of an agent is longer.
  static constexpr std::size_t kMaxLineBytes = 16 << 20;

  // Connects to the agent and sends the request. Returns the errors of connect_for_control(),
  // and kConnection if the request cannot be sent.
  static Result<ControlClient> ask(const ControlPlace& place, std::string_view request);

  // Returns the next line if it has arrived, and nullopt if not. Does not block. Returns
  // kConnection when the agent has closed the connection, reading has failed, or a line is too
  // long.
  Result<std::optional<std::string>> line_now();
  // Waits until the deadline for the next line. Returns kTimeout if none arrives, else the
  // errors of line_now().
  Result<std::string> line(TimePoint deadline);

  // Returns the descriptor to poll for reading, as long as is_at_end() is false.
  int descriptor() const { return socket_.get(); }
  bool is_at_end() const { return is_at_end_; }
  const ControlPlace& place() const { return place_; }

 private:
  ControlClient(ControlPlace place, UniqueFd socket)
      : place_(std::move(place)), socket_(std::move(socket)) {}

  ControlPlace place_;
  UniqueFd socket_;
  std::string received_;
  std::size_t looked_at_ = 0;  // bytes of received_ that hold no line end
  bool is_at_end_ = false;
};

}  // namespace ddprun
