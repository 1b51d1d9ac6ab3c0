#include "launcher/control/client.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/poll_until.h"

namespace ddprun {

Result<ControlClient> ControlClient::ask(const ControlPlace& place, std::string_view request) {
  Result<UniqueFd> socket = connect_for_control(place.path);
  if (!socket) return socket.error();
  const std::string line = std::string(request) + "\n";
  // A request fits into the buffer of an empty socket.
  const ssize_t sent = ::send(socket->get(), line.data(), line.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(line.size())) {
    return Error{
        .kind = ErrorKind::kConnection, .doing = "ask " + place.path, .cause = errno_text(errno)};
  }
  return ControlClient(place, std::move(*socket));
}

Result<std::optional<std::string>> ControlClient::line_now() {
  while (true) {
    const std::size_t end = received_.find('\n', looked_at_);
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      looked_at_ = 0;
      return std::optional(std::move(line));
    }
    looked_at_ = received_.size();
    const auto over = [&](const std::string& why) {
      is_at_end_ = true;
      return Error{.kind = ErrorKind::kConnection, .doing = "read " + place_.path, .cause = why};
    };
    if (is_at_end_ || received_.size() > kMaxLineBytes) return over("the answer is incomplete");
    std::array<char, 64 * 1024> buffer;
    const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return std::optional<std::string>();
    if (size < 0) return over(errno_text(errno));
    if (size == 0) return over("ddprun closed the connection");
    received_.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

Result<std::string> ControlClient::line(TimePoint deadline) {
  const TimePoint begun = BootClock::now();
  while (true) {
    Result<std::optional<std::string>> line = line_now();
    if (!line) return line.error();
    if (*line) return std::move(**line);
    pollfd fd{socket_.get(), POLLIN, 0};
    if (poll_until({&fd, 1}, deadline)) continue;
    return timeout_error("read " + place_.path, "ddprun does not answer", BootClock::now() - begun,
                         deadline - begun);
  }
}

}  // namespace ddprun
