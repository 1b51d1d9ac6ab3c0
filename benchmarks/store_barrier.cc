// Measures how long a barrier of 1,000 clients takes, for store_barrier.py, which starts the
// servers.
//
//   store_barrier DDP_STORE_PORT ITS_PID LIBUV_PORT ITS_PID [CLIENTS]
//
// All clients are connections of this process (many_clients.h), so they cost the same with every
// server. The floor is a bare server. It receives the same bytes, and answers as many with plain
// recv() and send(), at the times when a barrier may answer. So it shows what the kernel and
// this process take. Servers alternate; medians are printed.
//
//   add + wait   as torch.distributed.elastic.utils.store does it: all clients ADD; the last one
//                SETs a key, for which all WAIT
//   BARRIER      one request and one answer for each client; PyTorch 2.11's servers do not have it
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor_limit.h"
#include "benchmarks/give_up.h"
#include "benchmarks/many_clients.h"
#include "benchmarks/statistics.h"
#include "tests/support/store_bytes.h"

namespace ddprun::benchmarks {
namespace {

using namespace std::chrono_literals;
using testing_support::handshake;
using testing_support::request;

constexpr int kRounds = 31;
constexpr std::size_t kSumBytes = 8;
constexpr std::size_t kDoneBytes = 1;

// Clients: the clients of one server. Each barrier has keys of its own.
class Clients {
 public:
  // hello: what each client sends first; it gets no answer.
  Clients(std::uint16_t port, std::size_t count, const std::string& hello)
      : clients_(port, [this](std::size_t client, std::string_view bytes) { take(client, bytes); }),
        received_(count) {
    for (std::size_t client = 0; client < count; ++client) {
      clients_.connect();
      if (!hello.empty()) clients_.send(client, hello);
    }
  }

  double add_and_wait(int number) {
    const std::string name = "/barrier" + std::to_string(number);
    last_ = name + "/last_member";
    wait_ = request(Command::kWait, {last_});
    sum_bytes_ = kSumBytes;
    return all_ask(request(Command::kAdd, {name + "/num_members"}, 1));
  }
  double barrier(int number) {
    sum_bytes_ = 0;
    return all_ask(request(Command::kBarrier, {"/one" + std::to_string(number)},
                           static_cast<std::int64_t>(received_.size())));
  }

 private:
  double all_ask(const std::string& first) {
    through_ = added_ = 0;
    std::fill(received_.begin(), received_.end(), std::string());
    const TimePoint begin = BootClock::now();
    for (std::size_t client = 0; client < received_.size(); ++client) {
      clients_.send(client, first);
      if (client % 32 == 31) clients_.serve(0ns);
    }
    while (through_ < received_.size()) {
      clients_.serve(1s);
      if (BootClock::now() > begin + 60s) give_up("a client is not let through its barrier");
    }
    return ms_since(begin);
  }
  void take(std::size_t client, std::string_view bytes) {
    std::string& received = received_[client];
    received += bytes;
    if (received.size() == sum_bytes_ + kDoneBytes) ++through_;
    if (sum_bytes_ == 0 || received.size() != sum_bytes_) return;
    // The sum has come. (This program counts the sums itself, because the bare server does not
    // count.)
    std::string next = wait_;
    if (++added_ == received_.size()) next = request(Command::kSet, {last_, "<val>"}) + wait_;
    clients_.send(client, next);
  }

  ManyClients clients_;
  std::vector<std::string> received_;  // by each client in this barrier
  std::string last_;
  std::string wait_;
  std::size_t sum_bytes_ = 0;
  std::size_t added_ = 0;
  std::size_t through_ = 0;
};

// BareBarrier: gives answers as long as the store's. The SET, or the last BARRIER, releases all
// clients at once. So the server need not know which clients wait.
class BareBarrier {
 public:
  explicit BareBarrier(std::size_t clients) : clients_(clients) {}

  BareAnswer operator()(std::string_view bytes) {
    switch (static_cast<Command>(bytes[0])) {
      case Command::kAdd: return {.bytes = kSumBytes};
      case Command::kSet: return {.bytes = kDoneBytes, .to_all = true};
      case Command::kBarrier:
        if (++arrived_ % clients_ == 0) return {.bytes = kDoneBytes, .to_all = true};
        return {};
      default: return {};
    }
  }

 private:
  std::size_t clients_;
  std::size_t arrived_ = 0;
};

// Side: one server, and the times of its barriers.
struct Side {
  Side(pid_t server, std::uint16_t port, std::size_t count, const std::string& hello)
      : pid(server), clients(port, count, hello) {}

  template <class Act>
  void measure(const std::string& way, Act&& act) {
    const double before = cpu_seconds_of(pid);
    milliseconds[way].push_back(act(clients));
    cpu_ms[way] += (cpu_seconds_of(pid) - before) * 1000 / kRounds;
  }
  double median(const std::string& way) const { return percentile(milliseconds.at(way), 0.5); }

  pid_t pid;
  Clients clients;
  std::map<std::string, std::vector<double>> milliseconds;
  std::map<std::string, double> cpu_ms;  // of the server, for each barrier
};

const std::string kAddWait = "add + wait";
const std::string kBarrier = "BARRIER";

void print(std::size_t count, const std::string& way, const Side& ours, const Side& theirs,
           const Side& floor) {
  const std::string label = std::to_string(count) + " clients, " + way;
  std::printf("%-26s%10.1f%10.1f%10.1f%8.2f |%10.1f%10.1f%10.1f%8.2f\n", label.c_str(),
              ours.median(way), theirs.median(kAddWait), floor.median(way),
              theirs.median(kAddWait) / ours.median(way), ours.cpu_ms.at(way),
              theirs.cpu_ms.at(kAddWait), floor.cpu_ms.at(way),
              theirs.cpu_ms.at(kAddWait) / ours.cpu_ms.at(way));
}

struct Address {
  std::uint16_t port;
  pid_t pid;
};

void run(Address ours_at, Address theirs_at, std::size_t count) {
  const BareServer bare{BareBarrier(count)};
  Side ours(ours_at.pid, ours_at.port, count, handshake());
  Side theirs(theirs_at.pid, theirs_at.port, count, handshake());
  Side floor(bare.process.pid(), bare.port, count, "");
  for (int round = 0; round < kRounds; ++round) {
    const auto add_and_wait = [&](Clients& clients) { return clients.add_and_wait(round); };
    const auto barrier = [&](Clients& clients) { return clients.barrier(round); };
    for (Side* side : {&ours, &theirs, &floor}) side->measure(kAddWait, add_and_wait);
    for (Side* side : {&ours, &floor}) side->measure(kBarrier, barrier);
  }
  std::printf("%-26s%38s |%38s\n", "", "milliseconds, median", "CPU milliseconds of the server");
  std::printf("%-26s%10s%10s%10s%8s |%10s%10s%10s%8s\n", "", "ddp-store", "libuv", "floor", "R",
              "ddp-store", "libuv", "floor", "R");
  print(count, kAddWait, ours, theirs, floor);
  print(count, kBarrier, ours, theirs, floor);
  std::printf("libuv has no BARRIER: its add + wait stands in both rows\n");
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) {
  using namespace ddprun::benchmarks;
  if (argc < 5) give_up("store_barrier DDP_STORE_PORT ITS_PID LIBUV_PORT ITS_PID [CLIENTS]");
  ddprun::raise_descriptor_limit();
  const auto at = [&](int first) {
    return Address{static_cast<std::uint16_t>(std::atoi(argv[first])), std::atoi(argv[first + 1])};
  };
  run(at(1), at(3), argc > 5 ? static_cast<std::size_t>(std::atoi(argv[5])) : 1000);
  return 0;
}
