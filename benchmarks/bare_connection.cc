#include "benchmarks/cable.h"

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

constexpr Duration kPatience = std::chrono::seconds(60);
constexpr Duration kSpin = std::chrono::microseconds(20);
constexpr std::size_t kPart = 256 << 10;

std::string key_of(int rank) { return "cable/" + std::to_string(rank); }

// Returns the bytes that a call has moved; 0 if it would have blocked.
std::size_t moved(ssize_t bytes) {
  must(bytes > 0 || (bytes < 0 && would_block(errno)), "a cable");
  return bytes < 0 ? 0 : static_cast<std::size_t>(bytes);
}

}  // namespace

UniqueFd join_partner(Store& store, int rank, int partner, const std::string& address) {
  if (rank > partner) {
    const HostPort there = need(parse_host_port(store.get(key_of(partner), kPatience)));
    const SocketAddress numeric = need(resolve(there, kPatience)).front();
    return need(BlockingSocket::connect(numeric, Deadline(kPatience))).take();
  }
  const Listener listener = need(listen_tcp({.host = address, .port = 0}));
  store.set(key_of(rank), to_text(listener.address));
  pollfd caller{listener.socket.get(), POLLIN, 0};
  must(poll(&caller, 1, 60'000) == 1, "nobody connects");
  UniqueFd cable(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  must(cable.valid(), "accept");
  disable_nagle(cable.get());
  return cable;
}

void exchange(int cable, const char* sent, char* received, std::size_t bytes) {
  TimePoint spin_until = BootClock::now() + kSpin;
  for (std::size_t out = 0, in = 0; out < bytes || in < bytes;) {
    // Neither direction gets far ahead of the other, so the data is still in the cache.
    const std::size_t end = std::min(bytes, (std::min(out, in) / kPart + 1) * kPart);
    const std::size_t before = out + in;
    if (out < end) out += moved(send(cable, sent + out, end - out, MSG_DONTWAIT | MSG_NOSIGNAL));
    if (in < end) in += moved(recv(cable, received + in, end - in, MSG_DONTWAIT));
    const TimePoint now = BootClock::now();
    if (out + in > before) {
      spin_until = now + kSpin;
    } else if (now > spin_until) {
      const int events = (out < end ? POLLOUT : 0) | (in < end ? POLLIN : 0);
      pollfd waits{cable, static_cast<short>(events), 0};
      poll(&waits, 1, -1);
    }
  }
}

}  // namespace ddprun::benchmarks
