// Measures messages of the CPU engine: latency and bandwidth by size, against floors measured in
// the same run.
//
// There are two ranks, which are processes of this host. With --nodes 2 they share no memory and
// communicate over loopback TCP. For each size, each round measures all of the following, so a busy
// machine slows all of them. The table shows medians over the rounds:
//
//   ping-pong  half the time of a message there and one back, with blocking calls
//   one way    rank 0 sends a window of messages, rank 1 receives them
//   both ways  both ranks send and receive at once: start_send and start_recv
//   shared     the floor of ping-pong on one node: two copies through shared memory, and two flags
//              that are polled without sleeping
//   sockets    the floor between nodes: the same over a bare pair of TCP sockets, with poll
//
// Usage: cpu_messages [--nodes N] [--rounds N] [--budget-ms N] [--no-bind] [--json]
//                     [--sizes BYTES...]
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <CLI/CLI.hpp>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "benchmarks/forked_ranks.h"
#include "benchmarks/give_up.h"
#include "benchmarks/round_server.h"
#include "benchmarks/statistics.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/listen.h"
#include "tests/support/store_of.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun::benchmarks {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);

struct Plan {
  int nodes = 1;
  int rounds = 11;
  int budget_ms = 20;  // time of one measurement
  int window = 16;
  bool bind = true;
  bool json = false;
  std::vector<std::size_t> sizes{0,         64,      1 << 10, 16 << 10, 64 << 10,
                                 256 << 10, 1 << 20, 4 << 20, 64 << 20};
};

// Shared: the memory of the floor of one node: two half buffers and two counters in each direction.
struct Shared {
  static constexpr std::size_t kPart = std::size_t{64} << 10;
  alignas(64) std::atomic<std::uint64_t> written[2];
  alignas(64) std::atomic<std::uint64_t> read[2];
  alignas(64) char bytes[2][2][kPart];
};

struct Floors {
  Shared* shared = nullptr;
  int socket = -1;  // this rank's end of the connection
};

class Pair {
 public:
  Pair(CpuGroup& group, const Plan& plan, const Floors& floors, std::size_t bytes)
      : group_(group),
        plan_(plan),
        floors_(floors),
        bytes_(bytes),
        mine_(std::max<std::size_t>(bytes, 1), 'm'),
        theirs_(std::max<std::size_t>(bytes, 1)) {}

  void measure_and_print() {
    const auto ping_pong = [&](auto send, auto receive) {
      return [=, this] {
        if (group_.rank() == 0) send();
        receive();
        if (group_.rank() == 1) send();
      };
    };
    const int window =
        std::clamp<int>(static_cast<int>((std::size_t{64} << 20) / mine_.size()), 1, plan_.window);
    const std::function<void()> calls[] = {
        ping_pong([this] { need(group_.send(mine_.data(), bytes_, other(), 1, kTimeout)); },
                  [this] { need(group_.recv(theirs_.data(), bytes_, other(), 1, kTimeout)); }),
        [=, this] { go(window, group_.rank() == 0, group_.rank() == 1); },
        [=, this] { go(window, true, true); },
        ping_pong([this] { write_shared(); }, [this] { read_shared(); }),
        ping_pong([this] { move_socket(true); }, [this] { move_socket(false); }),
    };
    std::vector<double> times[5];
    for (int round = -1; round < plan_.rounds; ++round) {  // the first round is warm-up
      for (int i = 0; i < 5; ++i) {
        const double us = time_us(calls[i]);
        if (round >= 0) times[i].push_back(us);
      }
    }
    if (group_.rank() != 0) return;
    const auto half = [&](int i) { return percentile(times[i], 0.5) / 2; };
    const auto rate = [&](int i, int directions) {
      return static_cast<double>(bytes_) * window * directions / percentile(times[i], 0.5) / 1e3;
    };
    if (plan_.json) {
      std::printf(
          "{\"bytes\": %zu, \"ping_pong_us\": %.3f, \"one_way_gbs\": %.3f, \"both_ways_gbs\": "
          "%.3f, "
          "\"shared_us\": %.3f, \"sockets_us\": %.3f}\n",
          bytes_, half(0), rate(1, 1), rate(2, 2), half(3), half(4));
      std::fflush(stdout);
      return;
    }
    std::printf("%10zu B %10.2f us %9.2f GB/s %9.2f GB/s %10.2f us %10.2f us\n", bytes_, half(0),
                rate(1, 1), rate(2, 2), half(3), half(4));
    std::fflush(stdout);
  }

 private:
  Rank other() const { return Rank(1 - group_.rank()); }

  void go(int window, bool sends, bool receives) {
    std::mutex mutex;
    std::condition_variable changed;
    int left = (sends ? window : 0) + (receives ? window : 0);
    const auto end = [&](const Result<Rank>& result) {
      need(result);
      const std::lock_guard lock(mutex);
      if (--left == 0) changed.notify_all();
    };
    for (int i = 0; i < window; ++i) {
      if (receives) group_.start_recv(theirs_.data(), bytes_, other(), 2, kTimeout, end);
      if (sends) group_.start_send(mine_.data(), bytes_, other(), 2, kTimeout, end);
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return left == 0; });
  }

  // Copies the message through two half buffers: one is filled while the other is emptied.
  void write_shared() {
    const int way = group_.rank();
    for (std::size_t at = 0; at < std::max<std::size_t>(bytes_, 1); at += Shared::kPart) {
      const std::uint64_t turn = floors_.shared->written[way].load();
      while (turn - floors_.shared->read[way].load() >= 2) {
      }
      std::memcpy(floors_.shared->bytes[way][turn % 2], mine_.data() + at,
                  std::min(Shared::kPart, bytes_ - at));
      floors_.shared->written[way].store(turn + 1);
    }
  }
  void read_shared() {
    const int way = 1 - group_.rank();
    for (std::size_t at = 0; at < std::max<std::size_t>(bytes_, 1); at += Shared::kPart) {
      const std::uint64_t turn = floors_.shared->read[way].load();
      while (floors_.shared->written[way].load() == turn) {
      }
      std::memcpy(theirs_.data() + at, floors_.shared->bytes[way][turn % 2],
                  std::min(Shared::kPart, bytes_ - at));
      floors_.shared->read[way].store(turn + 1);
    }
  }

  void move_socket(bool sends) {
    const std::size_t bytes = std::max<std::size_t>(bytes_, 1);
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t moved =
          sends ? ::send(floors_.socket, mine_.data() + done, bytes - done, MSG_DONTWAIT)
                : ::recv(floors_.socket, theirs_.data() + done, bytes - done, MSG_DONTWAIT);
      if (moved > 0) {
        done += static_cast<std::size_t>(moved);
        continue;
      }
      must(moved < 0 && errno == EAGAIN, "the sockets of the floor");
      pollfd watched{floors_.socket, static_cast<short>(sends ? POLLOUT : POLLIN), 0};
      ::poll(&watched, 1, -1);
    }
  }

  double time_us(const std::function<void()>& call) {
    barrier();
    const TimePoint before = BootClock::now();
    call();
    const Duration once =
        std::max<Duration>(BootClock::now() - before, std::chrono::nanoseconds(200));
    std::int64_t count =
        std::clamp<std::int64_t>(std::chrono::milliseconds(plan_.budget_ms) / once, 3, 100'000);
    const WritableBytes as_bytes(reinterpret_cast<char*>(&count), sizeof count);
    need(group_.broadcast(list_of(as_bytes), Rank(0), kTimeout));
    barrier();
    const TimePoint start = BootClock::now();
    for (std::int64_t i = 0; i < count; ++i) call();
    barrier();
    const Duration all = BootClock::now() - start;
    return std::chrono::duration<double, std::micro>(all).count() / static_cast<double>(count);
  }

  void barrier() { need(group_.barrier(kTimeout)); }

  CpuGroup& group_;
  const Plan& plan_;
  const Floors& floors_;
  std::size_t bytes_;
  std::vector<char> mine_, theirs_;
};

void run_rank(int rank, std::uint16_t port, const Plan& plan, const Floors& floors) {
  if (plan.bind) bind_to_core(rank);
  const auto store = testing_support::store_of(port);
  const auto group = need(CpuGroup::form(*store, {.rank = Rank(rank),
                                                  .world_size = 2,
                                                  .node_id = plan.nodes == 1 ? "0"
                                                             : rank          ? "1"
                                                                             : "0",
                                                  .name = "bench",
                                                  .timeout = kTimeout}));
  if (rank == 0 && !plan.json) {
    std::printf("2 ranks on %d node%s\n%12s %13s %14s %14s %13s %13s\n", plan.nodes,
                plan.nodes == 1 ? "" : "s", "size", "ping-pong", "one way", "both ways", "shared",
                "sockets");
  }
  for (const std::size_t bytes : plan.sizes) Pair(*group, plan, floors, bytes).measure_and_print();
}

// Makes a pair of TCP sockets that are connected over loopback.
void connect_pair(int (&ends)[2]) {
  Listener listener = need(listen_tcp({.host = "127.0.0.1", .port = 0}));
  auto first =
      need(BlockingSocket::connect(*numeric_address(listener.address), Deadline(kTimeout)));
  pollfd watched{listener.socket.get(), POLLIN, 0};
  ::poll(&watched, 1, -1);
  ends[0] = std::move(first).take().release();
  ends[1] = accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC);
  must(ends[1] >= 0, "accept");
  disable_nagle(ends[1]);
}

int benchmark(int argc, char** argv) {
  Plan plan;
  CLI::App app("Messages of the CPU engine against the floors");
  app.add_option("--nodes", plan.nodes, "1: shared memory, 2: TCP over loopback")
      ->check(CLI::Range(1, 2));
  app.add_option("--rounds", plan.rounds, "rounds; medians are taken over them");
  app.add_option("--budget-ms", plan.budget_ms, "time of one measurement in a round");
  app.add_option("--window", plan.window, "messages in flight of one way and both ways");
  app.add_flag("--json", plan.json, "a line of JSON for each size, for collectives.py");
  app.add_flag("!--no-bind", plan.bind, "let the system choose the core of each rank");
  app.add_option("--sizes", plan.sizes, "bytes of a message");
  CLI11_PARSE(app, argc, argv);

  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  int ends[2] = {-1, -1};
  connect_pair(ends);
  return run_forked_ranks({.count = 2}, [&](int rank, std::uint16_t port) {
    run_rank(rank, port, plan, {.shared = static_cast<Shared*>(memory), .socket = ends[rank]});
  });
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
