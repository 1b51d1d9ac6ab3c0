// ControlClient: the end of an agent's socket (launcher/control/socket.h) that a command has. Every
// wait has a deadline. One owner thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/guard/control_place.h"

namespace ddprun {

class ControlClient {
 public:
  // Longer than any line of an agent.
  static constexpr std::size_t kMaxLineBytes = 16 << 20;

  // Connects and sends the request. The errors are connect_for_control()'s.
  static Result<ControlClient> ask(const ControlPlace& place, std::string_view request);

  // The next line, if it is there already; nullopt: not yet. kConnection: nothing more will come.
  Result<std::optional<std::string>> line_now();
  // Waits for it. kTimeout.
  Result<std::string> line(TimePoint deadline);

  // To be polled for reading, until is_at_end().
  int descriptor() const { return socket_.get(); }
  bool is_at_end() const { return is_at_end_; }
  const ControlPlace& place() const { return place_; }

 private:
  ControlClient(ControlPlace place, UniqueFd socket)
      : place_(std::move(place)), socket_(std::move(socket)) {}

  ControlPlace place_;
  UniqueFd socket_;
  std::string received_;
  std::size_t looked_at_ = 0;  // of it, without finding an end
  bool is_at_end_ = false;
};

}  // namespace ddprun
