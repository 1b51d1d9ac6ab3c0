#include "launcher/control/socket.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/peer_user.h"
#include "launcher/control/protocol.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::local::stream_protocol;
using boost::system::error_code;

// --- one connection ------------------------------------------------------------------------------

void ControlSession::say(std::string_view line) {
  if (!is_open()) return;
  if (line.size() + 1 > room()) return close();
  unsent_ += line;
  unsent_ += '\n';
  flush();
}

void ControlSession::end() {
  if (!is_open() || std::exchange(ends_, true)) return;
  timer_.expires_after(ControlSocket::kTakeTimeout);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->close();
  });
  flush();
}

void ControlSession::close() {
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
}

void ControlSession::flush() {
  if (!is_open() || !sending_.empty()) return;
  // Sends as much as possible at once: the last line of an agent that is about to end must
  // leave.
  if (!unsent_.empty()) {
    const ssize_t sent = ::send(socket_.native_handle(), unsent_.data(), unsent_.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return close();
    if (sent > 0) unsent_.erase(0, static_cast<std::size_t>(sent));
  }
  if (unsent_.empty()) {
    if (ends_) close();
    return;
  }
  sending_.swap(unsent_);
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](error_code error, std::size_t) {
                      self->sending_.clear();
                      if (error) return self->close();
                      self->flush();
                    });
}

// --- all connections -----------------------------------------------------------------------------

ControlSocket::ControlSocket(asio::io_context& io, UniqueFd listener, Asked asked)
    : acceptor_(io, stream_protocol(), listener.release()), asked_(std::move(asked)) {}

ControlSocket::~ControlSocket() {
  for (const ControlSessionPtr& session : sessions_) session->close();
}

namespace {

// Returns whether the peer is this user or root.
bool may_ask(int socket) {
  const std::optional<uid_t> user = peer_user(socket);
  return user && (*user == geteuid() || *user == 0);
}

// Returns whether the peer has closed the connection, and not only its writing side.
bool has_gone(int socket) {
  pollfd fd{socket, 0, 0};
  return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLHUP | POLLERR)) != 0;
}

constexpr auto kPauseWithoutDescriptors = std::chrono::seconds(1);

}  // namespace

void ControlSocket::accept() {
  acceptor_.async_accept(
      [weak = weak_from_this()](error_code error, stream_protocol::socket socket) {
        const std::shared_ptr<ControlSocket> self = weak.lock();
        if (!self) return;
        if (!error) {
          self->admit(std::make_shared<ControlSession>(std::move(socket)));
          return self->accept();
        }
        // No descriptor is free. The connection waits in the backlog.
        auto pause = std::make_shared<asio::steady_timer>(self->acceptor_.get_executor(),
                                                          kPauseWithoutDescriptors);
        pause->async_wait([weak, pause](error_code) {
          if (const std::shared_ptr<ControlSocket> later = weak.lock()) later->accept();
        });
      });
}

void ControlSocket::admit(const ControlSessionPtr& session) {
  if (!may_ask(session->socket_.native_handle())) return session->close();
  std::erase_if(sessions_, [](const ControlSessionPtr& one) { return !one->is_open(); });
  const auto is_silent = [](const ControlSessionPtr& one) { return !one->has_asked_; };
  const auto silent = static_cast<std::size_t>(std::ranges::count_if(sessions_, is_silent));
  if (silent >= kMaxSilent) (*std::ranges::find_if(sessions_, is_silent))->close();
  if (sessions_.size() >= kMaxConnections) {
    return session->answer(
        outcome_line(Outcome::kRefused, "too many commands wait for this ddprun"));
  }
  sessions_.push_back(session);
  session->timer_.expires_after(kAskTimeout);
  session->timer_.async_wait([session](error_code error) {
    if (error || session->has_asked_) return;
    session->answer(outcome_line(Outcome::kRefused, "no request came in time"));
  });
  read(session);
}

// Continues to read after the request, to notice when the peer closes.
void ControlSocket::read(const ControlSessionPtr& session) {
  session->socket_.async_wait(
      stream_protocol::socket::wait_read, [weak = weak_from_this(), session](error_code error) {
        const std::shared_ptr<ControlSocket> self = weak.lock();
        if (error || !self || !session->is_open()) return;
        std::array<char, 2048> buffer;
        const ssize_t size =
            ::recv(session->socket_.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (size < 0 && errno != EAGAIN && errno != EINTR) return session->close();
        if (size == 0) {
          // A peer that has sent its request may close its writing side and still read.
          if (!session->has_asked_ || has_gone(session->socket_.native_handle())) session->close();
          return;
        }
        if (size > 0 && !session->has_asked_) {
          session->received_.append(buffer.data(), static_cast<std::size_t>(size));
          self->take(session);
        }
        if (session->is_open()) self->read(session);
      });
}

void ControlSocket::take(const ControlSessionPtr& session) {
  const std::size_t end = session->received_.find('\n');
  if (end == std::string::npos && session->received_.size() <= kMaxRequestBytes) return;
  session->has_asked_ = true;
  session->timer_.cancel();
  if (end > kMaxRequestBytes) {
    return session->answer(outcome_line(
        Outcome::kRefused,
        "a request is one line of at most " + std::to_string(kMaxRequestBytes) + " bytes"));
  }
  const std::string line = session->received_.substr(0, end);
  session->received_.clear();
  asked_(session, line);
}

}  // namespace ddprun
