// Rate of get and add with ddprun's C++ client, for store_rate.py, which starts the servers.
//
//   store_client_rate DDP_STORE_PORT LIBUV_PORT
//
// The floor is a blocking echo between two processes, with messages of ADD's size: what the kernel
// takes for one round trip, whatever the programs do. Rounds alternate; medians are printed.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/listen.h"
#include "rendezvous/store_client.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 9;
constexpr Duration kRound = 300ms;
constexpr std::size_t kAddBytes = 1 + 8 + 8 + 8;  // opcode, length, "/counter", delta
constexpr std::size_t kSumBytes = 8;

std::unique_ptr<StoreClient> client_of(const char* port) {
  auto client =
      StoreClient::connect({.host = "127.0.0.1", .port = static_cast<std::uint16_t>(atoi(port))});
  if (!client) {
    std::fprintf(stderr, "%s\n", client.error().message().c_str());
    std::exit(1);
  }
  return std::move(*client);
}

// A process that answers kSumBytes to every kAddBytes, until its peer closes.
BlockingSocket echo_process() {
  Result<Listener> door = listen_tcp({.host = "127.0.0.1", .port = 0});
  if (fork() == 0) {
    int socket = -1;
    while (socket < 0) socket = accept(door->socket.get(), nullptr, nullptr);
    std::array<char, kAddBytes> bytes{};
    while (recv(socket, bytes.data(), bytes.size(), MSG_WAITALL) > 0) {
      if (send(socket, bytes.data(), kSumBytes, MSG_NOSIGNAL) < 0) break;
    }
    _exit(0);
  }
  auto socket = BlockingSocket::connect(local_address_of(door->socket.get()), Deadline(10s));
  return std::move(*socket);
}

double per_second(const std::function<void()>& call) {
  const Deadline round(kRound);
  std::int64_t count = 0;
  for (; !round.passed(); count += 20) {
    for (int i = 0; i < 20; ++i) call();
  }
  return static_cast<double>(count) / std::chrono::duration<double>(round.waited()).count();
}

void run(const char* our_port, const char* their_port) {
  const auto ours = client_of(our_port);
  const auto theirs = client_of(their_port);
  BlockingSocket echo = echo_process();
  for (StoreClient* client : {ours.get(), theirs.get()}) {
    if (!client->set("key", "0123456789abcdef")) std::exit(1);
  }
  const auto get = [](StoreClient& client) {
    if (!client.get("key", 10s)) std::exit(1);
  };
  const auto add = [](StoreClient& client) {
    if (!client.add("counter", 1)) std::exit(1);
  };
  const auto echo_once = [&] {
    std::array<char, kAddBytes> bytes{};
    const Deadline deadline(10s);
    if (!echo.send_all({bytes.data(), bytes.size()}, deadline)) std::exit(1);
    if (!echo.receive(bytes, deadline)) std::exit(1);
  };
  const std::vector<std::pair<std::string, std::function<void()>>> measured{
      {"get, ddprun's client, ddp-store", [&] { get(*ours); }},
      {"get, ddprun's client, libuv", [&] { get(*theirs); }},
      {"add, ddprun's client, ddp-store", [&] { add(*ours); }},
      {"add, ddprun's client, libuv", [&] { add(*theirs); }},
      {"blocking echo (floor of add)", echo_once},
  };
  std::map<std::string, std::vector<double>> rates;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& [name, call] : measured) rates[name].push_back(per_second(call));
  }
  for (const auto& [name, call] : measured) {
    std::vector<double>& all = rates[name];
    std::nth_element(all.begin(), all.begin() + kRounds / 2, all.end());
    std::printf("%-36s %10.0f /s\n", name.c_str(), all[kRounds / 2]);
  }
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  ddprun::run(argv[1], argv[2]);
  return 0;
}
