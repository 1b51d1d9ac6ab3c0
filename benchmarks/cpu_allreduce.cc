// All-reduce of the CPU engine: time by size against the physical floor, measured in the same run.
//
// Ranks are processes of one node. For each size, rounds of back-to-back f32 sums, of private tensors
// and of shared ones, alternate with rounds of the two floors, so that a busy machine slows all of them;
// the table shows medians over the rounds.
//
//   staged floor  What an all-reduce of private buffers of S bytes must move through shared memory,
//                 copied without reducing or waiting: each of n ranks stages the shares of the
//                 others and its own result, S bytes in all, and reads 2S(n-1)/n: its share from
//                 everybody, the other results from where they were made. In parts of the best size
//                 of those tried.
//   single floor  What an all-reduce of buffers that all ranks can reach must move: each rank reads
//                 its share of all buffers and writes it to all of them; as a copy, S bytes per rank.
//
// Usage: cpu_allreduce [--ranks N] [--nodes N] [--rounds N] [--budget-ms N] [--no-bind] [--sizes
// BYTES...]
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/usable_cpus.h"
#include "base/wait_status.h"
#include "benchmarks/give_up.h"
#include "benchmarks/statistics.h"
#include "rendezvous/listen.h"
#include "rendezvous/store_server.h"
#include "tests/support/store_of.h"
#include "worker_lib/cpu/cpu_group.h"

namespace ddprun::benchmarks {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);

struct Plan {
  int ranks = 2;
  int nodes = 1;  // simulated: TCP over loopback between blocks of ranks
  int rounds = 11;
  int budget_ms = 20;  // of one measurement
  bool bind = true;
  std::vector<std::size_t> sizes{4, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20};
};

// Memory that all ranks see: a part for each, as long as the longest buffer.
struct Arena {
  char* memory = nullptr;
  std::size_t each = 0;
  char* of(int rank) const { return memory + static_cast<std::size_t>(rank) * each; }
};

class Rank0AndFriends {
 public:
  Rank0AndFriends(CpuGroup& group, const Plan& plan, const Arena& arena, std::size_t bytes)
      : group_(group),
        plan_(plan),
        arena_(arena),
        bytes_(bytes),
        data_(std::max<std::size_t>(bytes / 4, 1), 0) {}

  void measure_and_print() {
    const int other = (group_.rank() + 1) % group_.size();
    const auto reduce = [&] {
      const WritableBytes all(reinterpret_cast<char*>(data_.data()), bytes_);
      need(group_.all_reduce(list_of(all), ElementType::kF32, ReduceOp::kSum, kTimeout));
    };
    std::vector<std::function<void()>> floors;
    for (const std::size_t part :
         {std::size_t{64} << 10, std::size_t{256} << 10, std::size_t{1} << 20, bytes_}) {
      if (part > bytes_) continue;
      floors.push_back([this, other, part] {
        copy_in_and_out(arena_.of(group_.rank()), arena_.of(other), part);
      });
    }
    const auto single = [&] {
      std::memcpy(arena_.of(group_.rank()), arena_.of(other), bytes_ / 2);
      std::memcpy(arena_.of(other) + bytes_ / 2, arena_.of(group_.rank()) + bytes_ / 2,
                  bytes_ - bytes_ / 2);
    };

    const std::shared_ptr<char> shared = group_.shared_memory(bytes_);
    const auto reduce_shared = [&] {
      const WritableBytes all(shared.get(), bytes_);
      need(group_.all_reduce(list_of(all), ElementType::kF32, ReduceOp::kSum, kTimeout));
    };

    std::vector<double> reduced, in_place, one_copy;
    std::vector<std::vector<double>> staged(floors.size());
    for (int round = -1; round < plan_.rounds; ++round) {  // the first warms up
      const double reduce_us = time_us(reduce);
      const double in_place_us = shared ? time_us(reduce_shared) : 0;
      const double single_us = time_us(single);
      for (std::size_t i = 0; i < floors.size(); ++i) {
        const double us = time_us(floors[i]);
        if (round >= 0) staged[i].push_back(us);
      }
      if (round < 0) continue;
      reduced.push_back(reduce_us);
      in_place.push_back(in_place_us);
      one_copy.push_back(single_us);
    }
    double floor = 1e300;
    for (const auto& times : staged) floor = std::min(floor, percentile(times, 0.5));
    if (group_.rank() != 0) return;
    const double us = percentile(reduced, 0.5), single_us = percentile(one_copy, 0.5);
    const double in_place_us = percentile(in_place, 0.5);
    std::printf(
        "%11zu B %12.2f us %9.2f GB/s %12.2f us %8.2f x %12.2f us %12.2f us %8.2f x   [%.2f .. "
        "%.2f]\n",
        bytes_, us, static_cast<double>(bytes_) / us / 1e3, floor, us / floor, in_place_us,
        single_us, in_place_us / single_us, percentile(reduced, 0), percentile(reduced, 1));
    std::fflush(stdout);
  }

 private:
  void copy_in_and_out(char* mine, const char* others, std::size_t part) {
    // The parts go around in a ring like the engine's stages, so that they stay in the cache.
    const std::size_t ring = std::max<std::size_t>(part, std::min<std::size_t>(bytes_, 4 * part));
    const std::size_t ranks = group_.size();
    char* const data = reinterpret_cast<char*>(data_.data());
    for (std::size_t at = 0; at < bytes_; at += part) {
      const std::size_t n = std::min(part, bytes_ - at);
      const std::size_t slot = at % ring;
      std::memcpy(mine + slot, data + at, n);
      for (std::size_t left = 2 * n * (ranks - 1) / ranks, now = 0; left > 0; left -= now) {
        now = std::min(left, n);
        std::memcpy(data + at, others + slot, now);
      }
    }
  }

  // Mean of as many calls as fit the budget; the same number on all ranks, which start together,
  // until the last has made its last one.
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
  const Arena& arena_;
  std::size_t bytes_;
  std::vector<float> data_;
};

// Ranks on cores of their own, as a launcher binds them; with more ranks than cores they take
// turns.
void bind_to_core(int rank) {
  const std::vector<int> cpus = usable_cpus();
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cpus[static_cast<std::size_t>(rank) % cpus.size()], &own);
  sched_setaffinity(0, sizeof own, &own);
}

void run_rank(int rank, std::uint16_t port, const Plan& plan, const Arena& arena) {
  if (plan.bind) bind_to_core(rank);
  const auto store = testing_support::store_of(port);
  const TimePoint before = BootClock::now();
  const auto group =
      need(CpuGroup::form(*store, {.rank = Rank(rank),
                                   .world_size = plan.ranks,
                                   .node_id = std::to_string(rank * plan.nodes / plan.ranks),
                                   .name = "bench",
                                   .timeout = kTimeout}));
  need(group->barrier(kTimeout));
  if (rank == 0) {
    std::printf("%d ranks, f32 sum; group formed and first barrier passed in %s\n", plan.ranks,
                to_text(BootClock::now() - before).c_str());
    std::printf("%13s %15s %14s %15s %10s %15s %15s %10s   %s\n", "size", "all_reduce", "",
                "staged floor", "multiple", "shared tensor", "single floor", "multiple",
                "[fastest .. slowest round of the first, us]");
  }
  for (const std::size_t bytes : plan.sizes)
    Rank0AndFriends(*group, plan, arena, bytes).measure_and_print();
}

int benchmark(int argc, char** argv) {
  Plan plan;
  CLI::App app("All-reduce of the CPU engine against the physical floor");
  app.add_option("--ranks", plan.ranks, "processes on this node");
  app.add_option("--nodes", plan.nodes, "simulated nodes, joined by TCP over loopback");
  app.add_option("--rounds", plan.rounds, "rounds; medians are taken over them");
  app.add_option("--budget-ms", plan.budget_ms, "time of one measurement in a round");
  app.add_flag("!--no-bind", plan.bind, "let the system choose the core of each rank");
  app.add_option("--sizes", plan.sizes, "bytes each rank contributes");
  CLI11_PARSE(app, argc, argv);

  Arena arena;
  arena.each = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  void* const memory = mmap(nullptr, arena.each * plan.ranks, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  arena.memory = static_cast<char*>(memory);

  Listener listener = need(listen_tcp({.host = "127.0.0.1", .port = 0}));
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    ranks.push_back(fork());
    if (ranks.back() == 0) {
      listener.socket.reset();
      run_rank(rank, listener.address.port, plan, arena);
      std::exit(0);
    }
  }
  const pid_t server = fork();
  if (server == 0) {
    boost::asio::io_context io;
    Logger log("cpu_allreduce", stderr_sink());
    StoreServer store(io, log, std::move(listener.socket));
    store.start();
    io.run();
    std::_Exit(0);
  }
  int worst = 0;
  for (const pid_t rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    worst = std::max(worst, exit_code_of_status(status));
  }
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  return worst;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
