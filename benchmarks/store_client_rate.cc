// Measures the rate of get, pipelined get and add with ddprun's C++ client, for store_rate.py,
// which starts the servers.
//
//   store_client_rate DDP_STORE_PORT LIBUV_PORT
//
// The floors are blocking echoes between two processes, with plain recv() and send(). Their
// messages have the sizes of those of get and add. They show how long the kernel takes for one
// round trip. Rounds alternate; medians are printed.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/give_up.h"
#include "benchmarks/statistics.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/store/client.h"
#include "tests/support/client_of.h"

namespace ddprun::benchmarks {
namespace {

using namespace std::chrono_literals;
using testing_support::client_of;

constexpr int kRounds = 9;
constexpr Duration kRound = 300ms;
constexpr std::string_view kValue = "0123456789abcdef";
// Sizes: the bytes of a round trip of our store, in both directions.
struct Sizes {
  std::size_t request;
  std::size_t reply;
};
constexpr Sizes kGet{1 + 8 + 4, 1 + 8 + kValue.size()};  // opcode, "/key"; found, value
constexpr Sizes kAdd{1 + 8 + 8 + 8, 8};                  // opcode, "/counter", delta; sum
constexpr int kPipelined = 512;

// Echo: a blocking socket to a process that answers every request with a reply, until its peer
// closes.
class Echo {
 public:
  explicit Echo(const Sizes& sizes) : sizes_(sizes) {
    const Listener listener = need(listen_tcp({.host = "127.0.0.1", .port = 0}));
    if (fork() == 0) serve(listener.socket.get());
    const SocketAddress address = local_address_of(listener.socket.get());
    socket_ = UniqueFd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    must(socket_.valid(), "socket");
    must(connect(socket_.get(), address.get(), address.size) == 0, "connect");
    disable_nagle(socket_.get());
  }

  void once() {
    must(send(socket_.get(), bytes_.data(), sizes_.request, MSG_NOSIGNAL) > 0, "send");
    must(recv(socket_.get(), bytes_.data(), sizes_.reply, MSG_WAITALL) > 0, "recv");
  }

 private:
  [[noreturn]] void serve(int listener) {
    int socket = -1;
    while (socket < 0) socket = accept(listener, nullptr, nullptr);
    disable_nagle(socket);
    while (recv(socket, bytes_.data(), sizes_.request, MSG_WAITALL) > 0) {
      if (send(socket, bytes_.data(), sizes_.reply, MSG_NOSIGNAL) < 0) break;
    }
    _exit(0);
  }

  Sizes sizes_;
  UniqueFd socket_;
  std::array<char, 64> bytes_{};
};

struct Measured {
  const char* name;
  std::function<void()> call;
  int operations = 1;  // in one call
};

double per_second(const Measured& measured) {
  const Deadline round(kRound);
  std::int64_t count = 0;
  const int repeats = std::max(1, 20 / measured.operations);
  for (; !round.passed(); count += repeats) {
    for (int i = 0; i < repeats; ++i) measured.call();
  }
  return static_cast<double>(count * measured.operations) /
         std::chrono::duration<double>(round.waited()).count();
}

void measure(const std::vector<Measured>& all) {
  std::map<std::string_view, std::vector<double>> rates;
  for (int round = 0; round < kRounds; ++round) {
    for (const Measured& one : all) rates[one.name].push_back(per_second(one));
  }
  for (const Measured& one : all) {
    std::printf("%-36s %10.0f /s\n", one.name, percentile(rates[one.name], 0.5));
  }
}

void run(std::uint16_t our_port, std::uint16_t their_port) {
  const auto ours = need(client_of(our_port));
  const auto theirs = need(client_of(their_port));
  Echo echo_of_get(kGet), echo_of_add(kAdd);
  for (StoreClient* client : {ours.get(), theirs.get()}) need(client->set("key", kValue));
  const auto get = [](StoreClient& client) { need(client.get("key", 10s)); };
  const auto add = [](StoreClient& client) { need(client.add("counter", 1)); };
  const auto get_pipelined = [](StoreClient& client) {
    std::vector<PendingGet> pending;
    pending.reserve(kPipelined);
    for (int i = 0; i < kPipelined; ++i) pending.push_back(client.get_async("key", 10s));
    for (PendingGet& one : pending) need(std::move(one).take());
  };
  const std::vector<Measured> round_trips{
      {"get, ddprun's client, ddp-store", [&] { get(*ours); }},
      {"blocking echo (floor of get)", [&] { echo_of_get.once(); }},
      {"get, ddprun's client, libuv", [&] { get(*theirs); }},
      {"add, ddprun's client, ddp-store", [&] { add(*ours); }},
      {"blocking echo (floor of add)", [&] { echo_of_add.once(); }},
      {"add, ddprun's client, libuv", [&] { add(*theirs); }},
  };
  // Measured separately: it leaves client and server on two processors, and then the next round
  // trips take twice as long.
  const std::vector<Measured> pipelined{
      {"pipelined get, ddp-store", [&] { get_pipelined(*ours); }, kPipelined},
  };
  measure(round_trips);
  measure(pipelined);
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto port = [&](int at) { return static_cast<std::uint16_t>(std::atoi(argv[at])); };
  ddprun::benchmarks::run(port(1), port(2));
  return 0;
}
