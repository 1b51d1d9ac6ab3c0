// Ranks of the cpu engine for benchmarks/collectives.py. The same processes also measure the
// physical floors. The calls, and the bytes that they take:
//
//   all_reduce, shared (an all_reduce in shared memory), broadcast, all_gather, reduce_scatter,
//   all_to_all       SIZE: of a rank's larger buffer; f32 sums; the root is rank 0
//   barrier
//   copies           BUFFER IN OUT OWN READ AT PART: copies IN bytes of one buffer into shared
//                    memory, and OUT bytes from another rank's shared memory. At offset AT of
//                    the buffer it copies OWN bytes from buffer to buffer, or only reads READ
//                    bytes. No rank waits. It copies in parts of PART bytes. They go around in a
//                    ring as the engine's stages do, so they stay in the cache, and they are
//                    read when their writer is elsewhere. The bytes from shared memory go into
//                    the other buffer if OWN or READ is not 0, as in a call that keeps its
//                    input; else into the buffer that they came from
//   single           SIZE: what an all_reduce of two buffers that both ranks reach must move:
//                    each rank reads its half of both and writes it to both. It is an exchange
//                    of these halves, with the widest registers; 2 ranks
//   exchange         SIZE: sends this many bytes over a bare TCP connection to the rank of the same
//                    place on the other one of two nodes, and receives as many
//   meet             HOW: all ranks wait until all have come; 0: they spin, 1: they yield, 2:
//                    they sleep on a futex
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <CLI/CLI.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "benchmarks/bare_connection.h"
#include "benchmarks/forked_ranks.h"
#include "benchmarks/give_up.h"
#include "benchmarks/round_server.h"
#include "ddprun/store.h"
#include "tests/worker_lib/support/tuning_overrides.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_shm/futex.h"

namespace ddprun::benchmarks {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(300);
constexpr std::size_t kSlots = 4;  // number of parts in the ring of `copies`

struct Plan {
  std::string driver;
  int world = 2;
  int nodes = 1;  // blocks of ranks that do not share memory
  ForkedRanks here;
  std::string address = "127.0.0.1";  // at which other nodes reach these ranks
  std::size_t longest = std::size_t{100} << 20;
  bool bind = true;
  TuningOverrides tuning;
};

// RankSetup: the shared memory in which the ranks wait for each other in `meet`.
struct RankSetup {
  static constexpr int kMost = 64;  // maximum number of ranks
  struct alignas(128) Place {
    std::atomic<std::uint64_t> turn;
  };
  Place places[kMost];
  alignas(128) std::atomic<std::uint32_t> here;
  alignas(128) std::atomic<std::uint32_t> round;
};

// Arena: memory that all ranks share: a part for each rank, as long as the longest buffer.
struct Arena {
  char* memory = nullptr;
  std::size_t each = 0;
  RankSetup* meeting = nullptr;
  char* of(int rank) const { return memory + static_cast<std::size_t>(rank) * each; }
};

// Exchanges the contents of both. Each byte is read once and written once.
#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#endif
void exchange_words(char* left, char* right, std::size_t bytes) {
  auto* a = reinterpret_cast<std::uint64_t*>(left);
  auto* b = reinterpret_cast<std::uint64_t*>(right);
#pragma GCC ivdep
  for (std::size_t i = 0; i < bytes / sizeof *a; ++i) std::swap(a[i], b[i]);
}

void* shared_zeros(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  return memory;
}

class CpuRank final : public MeasuredSystem {
 public:
  CpuRank(CpuGroup& group, UniqueFd connection, const Plan& plan, const Arena& arena)
      : group_(group),
        connection_(std::move(connection)),
        arena_(arena),
        one_(plan.longest),
        other_(plan.longest),
        shared_(plan.nodes == 1 ? group.shared_memory(plan.longest) : nullptr) {}

  std::function<void()> prepare(const Order& order) override {
    const std::size_t size = order.size(0), share = size / group_.size();
    if (order.call == "all_reduce") return [=, this] { reduce(one_.data(), size); };
    if (order.call == "shared" && shared_) return [=, this] { reduce(shared_.get(), size); };
    if (order.call == "broadcast") {
      return [=, this] {
        const WritableBytes all(one_.data(), size);
        need(group_.broadcast(list_of(all), Rank(0), kTimeout));
      };
    }
    if (order.call == "all_gather") {
      return [=, this, inputs = shares<const char>(one_, share, 1),
              outputs = shares<char>(other_, share, group_.size())] {
        need(group_.all_gather(inputs, outputs, kTimeout));
      };
    }
    if (order.call == "reduce_scatter") {
      return [=, this, inputs = shares<const char>(one_, share, group_.size()),
              outputs = shares<char>(other_, share, 1)] {
        need(group_.reduce_scatter(inputs, outputs, ElementType::kF32, ReduceOp::kSum, kTimeout));
      };
    }
    if (order.call == "all_to_all") {
      return [=, this, inputs = shares<const char>(one_, share, group_.size()),
              outputs = shares<char>(other_, share, group_.size())] {
        need(group_.all_to_all(inputs, outputs, kTimeout));
      };
    }
    if (order.call == "barrier") return [this] { barrier(); };
    if (order.call == "copies") return [=, this] { copy(order); };
    if (order.call == "single" && group_.size() == 2) {
      return [=, this] { exchange_halves(size); };
    }
    if (order.call == "exchange" && connection_.valid()) {
      return
          [=, this] { benchmarks::exchange(connection_.get(), one_.data(), other_.data(), size); };
    }
    if (order.call == "meet") return [=, this] { meet(order.size(0)); };
    return nullptr;
  }

  void barrier() override { need(group_.barrier(kTimeout)); }

 private:
  template <class Byte>
  static std::vector<std::span<Byte>> shares(const Buffer& buffer, std::size_t bytes, int count) {
    std::vector<std::span<Byte>> found;
    for (int i = 0; i < count; ++i) found.emplace_back(buffer.data() + i * bytes, bytes);
    return found;
  }

  void reduce(char* data, std::size_t bytes) {
    const WritableBytes all(data, bytes);
    need(group_.all_reduce(list_of(all), ElementType::kF32, ReduceOp::kSum, kTimeout));
  }

  void copy(const Order& order) {
    const std::size_t buffer = order.size(0), part = order.size(6);
    const std::size_t in = order.size(1), out = order.size(2), own = order.size(3),
                      read_only = order.size(4), own_at = order.size(5);
    char* const results = own + read_only > 0 ? other_.data() : one_.data();
    char* const mine = arena_.of(group_.rank());
    const char* const others = arena_.of((group_.rank() + 1) % group_.size());
    const std::size_t steps = std::max<std::size_t>(1, (buffer + part - 1) / part);
    const auto each_step = [&](std::size_t all, std::size_t step, auto copy_part) {
      const std::size_t end = all * (step + 1) / steps;
      for (std::size_t at = all * step / steps; at < end;) {
        const std::size_t from = at % buffer;
        const std::size_t bytes = std::min({end - at, part, buffer - from});
        copy_part(from, bytes);
        at += bytes;
      }
    };
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t slot = step_ % kSlots * part;
      const std::size_t read = (step_ + kSlots / 2) % kSlots * part;
      ++step_;
      each_step(in, step, [&](std::size_t from, std::size_t bytes) {
        std::memcpy(mine + slot, one_.data() + from, bytes);
      });
      each_step(out, step, [&](std::size_t from, std::size_t bytes) {
        std::memcpy(results + from, others + read, bytes);
      });
      each_step(own, step, [&](std::size_t from, std::size_t bytes) {
        std::memcpy(other_.data() + (buffer - own) + from, one_.data() + own_at + from, bytes);
      });
      each_step(read_only, step, [&](std::size_t from, std::size_t bytes) {
        look_at(one_.data() + own_at + from, bytes);
      });
    }
  }

  // Reads it all, into a block that stays in the cache.
  void look_at(const char* data, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += block_.size()) {
      std::memcpy(block_.data(), data + at, std::min(block_.size(), bytes - at));
    }
  }

  void exchange_halves(std::size_t size) {
    const std::size_t half = size / 2, at = static_cast<std::size_t>(group_.rank()) * half;
    exchange_words(arena_.of(0) + at, arena_.of(1) + at, half);
  }

  void meet(std::size_t how) {
    RankSetup& meeting = *arena_.meeting;
    if (how == 2) {
      const std::uint32_t round = meeting.round.load();
      if (meeting.here.fetch_add(1) + 1 == static_cast<std::uint32_t>(group_.size())) {
        meeting.here.store(0);
        meeting.round.store(round + 1);
        return futex_wake(meeting.round);
      }
      while (meeting.round.load() == round) {
        futex_wait(meeting.round, round, BootClock::now() + kTimeout);
      }
      return;
    }
    ++turn_;
    meeting.places[group_.rank()].turn.store(turn_, std::memory_order_release);
    for (int rank = 0; rank < group_.size(); ++rank) {
      while (meeting.places[rank].turn.load(std::memory_order_acquire) < turn_) {
        if (how == 1) sched_yield();
      }
    }
  }

  CpuGroup& group_;
  UniqueFd connection_;
  const Arena& arena_;
  Buffer one_, other_;
  std::array<char, 4096> block_{};
  std::shared_ptr<char> shared_;
  std::uint64_t turn_ = 0;  // number of calls of meet()
  std::size_t step_ = 0;    // number of steps of copy()
};

void run_rank(int rank, std::uint16_t port, const Plan& plan, const Arena& arena) {
  if (plan.bind) bind_to_core(rank);
  const auto store =
      connect_tcp_store({.host = plan.here.store.host, .port = port, .connect_timeout = kTimeout});
  const auto group =
      need(CpuGroup::form(*store, {.rank = Rank(rank),
                                   .world_size = plan.world,
                                   .node_id = std::to_string(rank * plan.nodes / plan.world),
                                   .name = "bench",
                                   .address = plan.address,
                                   .timeout = kTimeout,
                                   .tune = plan.tuning}));
  UniqueFd connection;
  if (plan.nodes == 2) {
    const int partner = (rank + plan.world / 2) % plan.world;
    connection = connect_to_partner(*store, rank, partner, plan.address);
  }
  CpuRank self(*group, std::move(connection), plan, arena);
  serve_rounds(plan.driver, rank, self);
}

int benchmark(int argc, char** argv) {
  Plan plan;
  int here = 0;
  CLI::App app("Ranks of the cpu engine for benchmarks/collectives.py");
  app.add_option("--driver", plan.driver, "the driver's Unix socket")->required();
  app.add_option("--ranks", plan.world, "of the world")->check(CLI::Range(1, RankSetup::kMost));
  app.add_option("--nodes", plan.nodes, "blocks of ranks that do not share memory");
  app.add_option("--first", plan.here.first, "rank of this program");
  app.add_option("--here", here, "ranks of this program; default: all");
  app.add_option("--address", plan.address, "at which other nodes reach these ranks");
  app.add_option("--store-host", plan.here.store.host, "where the program of rank 0 listens");
  app.add_option("--store-port", plan.here.store.port, "there; 0: any");
  app.add_option("--longest", plan.longest, "bytes of a buffer");
  app.add_flag("!--no-bind", plan.bind, "let the system choose the core of each rank");
  std::optional<std::int64_t> spin_us;
  app.add_option("--spin-us", spin_us, "how long waits spin");
  app.add_option("--stage-bytes", plan.tuning.stage_bytes, "of a stage");
  app.add_option("--small-reduce-bytes", plan.tuning.small_reduce_bytes,
                 "times ranks: all reduce all");
  app.add_option("--direct-chunk-bytes", plan.tuning.direct_chunk_bytes,
                 "of long all_reduces of two ranks");
  app.add_option("--in-place-bytes", plan.tuning.in_place_bytes, "shared tensors: less is staged");
  app.add_option("--repeated-bytes", plan.tuning.repeated_bytes, "sent beyond the least");
  app.add_option("--stream-bytes", plan.tuning.stream_bytes,
                 "of results: that many go past the caches");
  app.add_option("--pull-bytes", plan.tuning.pull_bytes, "from rank to rank: less is staged");
  CLI11_PARSE(app, argc, argv);
  if (spin_us) plan.tuning.spin = std::chrono::microseconds(*spin_us);
  plan.here.count = here > 0 ? here : plan.world;

  Arena arena;
  arena.each = std::max<std::size_t>(plan.longest, kSlots << 20);
  arena.memory = static_cast<char*>(shared_zeros(arena.each * plan.world));
  arena.meeting = static_cast<RankSetup*>(shared_zeros(sizeof(RankSetup)));
  return run_forked_ranks(plan.here,
                          [&](int rank, std::uint16_t port) { run_rank(rank, port, plan, arena); });
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
