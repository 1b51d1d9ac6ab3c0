#include "benchmarks/bare_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/deadline.h"
#include "base/host_port.h"
#include "base/would_block.h"
#include "benchmarks/give_up.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/listen.h"

namespace ddprun::benchmarks {
namespace {

constexpr std::chrono::seconds kPatience{60};
// A wait begins with calls that do not block: a sleeping thread wakes up some microseconds late.
constexpr Duration kSpin = std::chrono::microseconds(20);
// One direction gets at most this much ahead of the other, so the data is still in the cache.
constexpr std::size_t kPart = 256 << 10;

std::string key_of(int rank) { return "bare_connection/" + std::to_string(rank); }

// Waits until the socket has one of the events, or ends the program with `failure`.
void wait_for(int socket, int events, const std::string& failure) {
  pollfd waits{socket, static_cast<short>(events), 0};
  const std::chrono::milliseconds patience = kPatience;
  if (poll(&waits, 1, static_cast<int>(patience.count())) != 1) give_up(failure);
}

// Returns the bytes that a call has moved; 0 if it would have blocked.
std::size_t moved(ssize_t bytes) {
  must(bytes > 0 || (bytes < 0 && would_block(errno)), "send or receive over the bare connection");
  return bytes < 0 ? 0 : static_cast<std::size_t>(bytes);
}

}  // namespace

UniqueFd connect_to_partner(Store& store, int rank, int partner, const std::string& address) {
  if (rank > partner) {
    const HostPort there = need(parse_host_port(store.get(key_of(partner), kPatience)));
    const SocketAddress numeric = need(resolve(there, kPatience)).front();
    return need(BlockingSocket::connect(numeric, Deadline(kPatience))).take();
  }
  const Listener listener = need(listen_tcp({.host = address, .port = 0}));
  store.set(key_of(rank), to_text(listener.address));
  wait_for(listener.socket.get(), POLLIN,
           "rank " + std::to_string(partner) + " did not connect within 60 s");
  UniqueFd connection(
      accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  must(connection.valid(), "accept the bare connection");
  disable_nagle(connection.get());
  return connection;
}

void exchange(int connection, const char* sent, char* received, std::size_t bytes) {
  TimePoint spin_until = BootClock::now() + kSpin;
  for (std::size_t out = 0, in = 0; out < bytes || in < bytes;) {
    const std::size_t end = std::min(bytes, (std::min(out, in) / kPart + 1) * kPart);
    const std::size_t before = out + in;
    if (out < end)
      out += moved(send(connection, sent + out, end - out, MSG_DONTWAIT | MSG_NOSIGNAL));
    if (in < end) in += moved(recv(connection, received + in, end - in, MSG_DONTWAIT));
    const TimePoint now = BootClock::now();
    if (out + in > before) {
      spin_until = now + kSpin;
    } else if (now > spin_until) {
      const int events = (out < end ? POLLOUT : 0) | (in < end ? POLLIN : 0);
      wait_for(connection, events, "the bare connection moved nothing for 60 s");
    }
  }
}

}  // namespace ddprun::benchmarks
