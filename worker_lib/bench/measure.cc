#include "worker_lib/bench/measure.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "worker_lib/bench/core/pairing.h"
#include "worker_lib/bench/gpus.h"

namespace ddprun {
namespace {

constexpr int kTag = 1;
constexpr std::size_t kMessage = std::size_t{1} << 20;
constexpr int kMessages = 8;  // of one transfer
constexpr int kTransfers = 3;
constexpr int kRoundTrips = 200;
constexpr std::size_t kCopied = std::size_t{64} << 20;
constexpr int kCopies = 5;
constexpr double kSlowReduce = 1;    // s; larger all_reduces are left out
constexpr double kSlowTransfer = 1;  // s; it is not repeated

// Place: where a rank is, and memory and GPUs of its node; all ranks know those of all.
struct Place {
  int node = 0;
  int local_rank = 0;
  double memory_gbs = 0;
  int gpus = 0;
  double gpu_bytes_per_s = 0;
  double gpu_multiplies_per_s = 0;
  std::array<char, 64> host{};
  std::array<char, 256> gpu_fault{};
};

// Cuts a text that is too long.
template <std::size_t kSize>
void put(const std::string& text, std::array<char, kSize>& place) {
  std::strncpy(place.data(), text.c_str(), kSize - 1);
}

// Link: the way from one node to another.
struct Link {
  double latency_s = 0;
  double gbs = 0;
};

double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(BootClock::now() - start).count();
}

// Returns GB/s. The first copy makes the pages.
double measure_memory() {
  const std::vector<char> from(kCopied, 'a');
  std::vector<char> to(kCopied);
  double best = 0;
  for (int i = 0; i <= kCopies; ++i) {
    const TimePoint start = BootClock::now();
    std::memcpy(to.data(), from.data(), kCopied);
    asm volatile("" : : "r"(to.data()) : "memory");  // keeps the compiler from removing the copy
    if (i > 0) best = std::max(best, static_cast<double>(kCopied) / seconds_since(start) / 1e9);
  }
  return best;
}

// Measurement: one run of measure_nodes().
class Measurement {
 public:
  Measurement(CpuGroup& group, const BenchOptions& options) : group_(group), options_(options) {}

  Result<void> gather_places(const Place& own) {
    places_.resize(static_cast<std::size_t>(group_.size()));
    // Other nodes may still measure their GPUs.
    const Result<void> gathered =
        gather(&own, sizeof own, places_.data(), options_.timeout + kGpuPatience);
    if (!gathered) return gathered;
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      const auto node = static_cast<std::size_t>(places_[rank].node);
      if (node >= leaders_.size()) leaders_.resize(node + 1, -1);
      int& leader = leaders_[node];
      if (leader < 0 || places_[rank].local_rank < place_of(leader).local_rank)
        leader = static_cast<int>(rank);
    }
    return {};
  }

  // Each pair of nodes measures both directions, in rounds.
  Result<void> measure_links() {
    own_links_.resize(leaders_.size());
    for (const auto& pairs : pair_rounds(static_cast<int>(leaders_.size()))) {
      for (const auto& [low, high] : pairs) {
        const int a = leader_of(low), b = leader_of(high);
        if (group_.rank() != a && group_.rank() != b) continue;
        const bool is_low = group_.rank() == a;
        const Result<void> measured =
            measure_link(is_low ? b : a, is_low, link_to(is_low ? high : low));
        if (!measured) return measured;
      }
      // A node without a partner waits here for all transfers of a slow pair.
      const Result<void> all_are_here =
          group_.barrier(options_.timeout * (2 * kTransfers * (kMessages + 1)));
      if (!all_are_here) return all_are_here;
    }
    return {};
  }

  // Measures sizes until one takes too long. What is measured is in the report, also after an
  // error.
  Result<void> measure_all_reduces(BenchReport& report) {
    double first_s = 0;  // of the first one of the last size, on the slowest rank
    for (std::uint64_t bytes = 1 << 10; bytes <= options_.most_bytes && first_s < kSlowReduce;
         bytes <<= 4) {
      std::vector<char> buffer(bytes);
      const WritableBytes all(buffer.data(), buffer.size());
      const auto reduce = [&]() -> Result<double> {
        const TimePoint start = BootClock::now();
        const Result<void> reduced =
            group_.all_reduce({&all, 1}, ElementType::kF32, ReduceOp::kSum, options_.timeout);
        if (!reduced) return reduced.error();
        return seconds_since(start);
      };
      const Result<double> first = reduce();  // makes buffers
      if (!first) return first.error();
      first_s = *first;
      const WritableBytes slowest(reinterpret_cast<char*>(&first_s), sizeof first_s);
      const Result<void> agreed =
          group_.all_reduce({&slowest, 1}, ElementType::kF64, ReduceOp::kMax, options_.timeout);
      if (!agreed) return agreed;
      std::vector<double> seconds;
      const int rounds = first_s > kSlowReduce / 10 ? 1 : bytes <= 64 << 10 ? 100 : 20;
      for (int round = 0; round < rounds; ++round) {
        const Result<double> took = reduce();
        if (!took) return took.error();
        seconds.push_back(*took);
      }
      report.all_reduces.push_back({bytes, median(std::move(seconds))});
    }
    return {};
  }

  Result<BenchReport> report() {
    const std::size_t nodes = leaders_.size();
    std::vector<Link> links(static_cast<std::size_t>(group_.size()) * nodes);
    const Result<void> gathered =
        gather(own_links_.data(), nodes * sizeof(Link), links.data(), options_.timeout);
    if (!gathered) return gathered.error();
    BenchReport report{.ranks = group_.size()};
    for (const int leader : leaders_) {
      const Place& place = place_of(leader);
      report.nodes.push_back({.host = place.host.data(),
                              .memory_gbs = place.memory_gbs,
                              .gpu = {.gpus = place.gpus,
                                      .bytes_per_s = place.gpu_bytes_per_s,
                                      .multiplies_per_s = place.gpu_multiplies_per_s,
                                      .fault = place.gpu_fault.data()}});
      report.latency_s.emplace_back();
      report.link_gbs.emplace_back();
      for (std::size_t to = 0; to < nodes; ++to) {
        const Link& link = links[static_cast<std::size_t>(leader) * nodes + to];
        report.latency_s.back().push_back(link.latency_s);
        report.link_gbs.back().push_back(link.gbs);
      }
    }
    return report;
  }

 private:
  const Place& place_of(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  int leader_of(int node) const { return leaders_[static_cast<std::size_t>(node)]; }
  Link& link_to(int node) { return own_links_[static_cast<std::size_t>(node)]; }

  // all: for each rank `bytes`.
  Result<void> gather(const void* own, std::size_t bytes, void* all, Duration timeout) {
    const ReadableBytes input(static_cast<const char*>(own), bytes);
    std::vector<WritableBytes> outputs;
    for (int rank = 0; rank < group_.size(); ++rank)
      outputs.emplace_back(static_cast<char*>(all) + static_cast<std::size_t>(rank) * bytes, bytes);
    return group_.all_gather({&input, 1}, outputs, timeout);
  }

  Result<void> send(int partner, std::size_t bytes) {
    return group_.send(buffer_.data(), bytes, Rank(partner), kTag, options_.timeout);
  }
  Result<void> recv(int partner, std::size_t bytes) {
    const Result<Rank> received =
        group_.recv(buffer_.data(), bytes, Rank(partner), kTag, options_.timeout);
    if (!received) return received.error();
    return {};
  }
  // One of the two sends and then receives, the other one the other way round.
  Result<void> round_trip(int partner, bool is_first, std::size_t bytes) {
    const Result<void> one = is_first ? send(partner, bytes) : recv(partner, bytes);
    if (!one) return one;
    return is_first ? recv(partner, bytes) : send(partner, bytes);
  }

  // Sends messages and waits for a short answer, or the other way round. Returns the seconds.
  Result<double> transfer(int partner, bool is_sender) {
    const TimePoint start = BootClock::now();
    for (int i = 0; i < kMessages; ++i)
      if (const Result<void> one = is_sender ? send(partner, kMessage) : recv(partner, kMessage);
          !one)
        return one.error();
    const Result<void> answer = is_sender ? recv(partner, 1) : send(partner, 1);
    if (!answer) return answer.error();
    return seconds_since(start);
  }

  // Returns whether both ends of a pair say yes.
  Result<bool> agree(int partner, bool is_first, bool yes) {
    bool all = yes;
    for (const bool is_sender : {is_first, !is_first}) {
      if (is_sender) buffer_[0] = yes ? 1 : 0;
      const Result<void> notified = is_sender ? send(partner, 1) : recv(partner, 1);
      if (!notified) return notified.error();
      if (!is_sender) all = all && buffer_[0] == 1;
    }
    return all;
  }

  // Fills `own`: the way from this node to the partner's.
  Result<void> measure_link(int partner, bool is_first, Link& own) {
    std::vector<double> seconds;
    for (int i = 0; i < kRoundTrips; ++i) {
      const TimePoint start = BootClock::now();
      if (const Result<void> trip = round_trip(partner, is_first, 8); !trip) return trip;
      seconds.push_back(seconds_since(start) / 2);
    }
    own.latency_s = median(std::move(seconds));
    double slowest = 0;
    for (int i = 0; i < kTransfers; ++i) {
      for (const bool is_sender : {is_first, !is_first}) {
        const Result<double> took = transfer(partner, is_sender);
        if (!took) return took.error();
        if (is_sender)
          own.gbs = std::max(own.gbs, static_cast<double>(kMessage * kMessages) / *took / 1e9);
        slowest = std::max(slowest, *took);
      }
      // Both ends must come to the same decision.
      const Result<bool> repeats = agree(partner, is_first, slowest < kSlowTransfer);
      if (!repeats) return repeats.error();
      if (!*repeats) break;
    }
    return {};
  }

  CpuGroup& group_;
  const BenchOptions& options_;
  std::vector<Place> places_;
  std::vector<int> leaders_;  // of each node
  std::vector<Link> own_links_;
  std::vector<char> buffer_ = std::vector<char>(kMessage);
};

}  // namespace

Result<void> measure_nodes(CpuGroup& group, const WorkerEnv& env, const std::string& host,
                           const BenchOptions& options, BenchReport& report) {
  Place own{.node = env.node_rank.value, .local_rank = env.local_rank.value};
  put(host, own.host);
  if (own.local_rank == 0) {
    own.memory_gbs = measure_memory();
    const GpuSpeeds gpu = measure_gpus();
    own.gpus = gpu.gpus;
    own.gpu_bytes_per_s = gpu.bytes_per_s;
    own.gpu_multiplies_per_s = gpu.multiplies_per_s;
    put(gpu.fault, own.gpu_fault);
  }
  Measurement measurement(group, options);
  if (const Result<void> known = measurement.gather_places(own); !known) return known;
  if (const Result<void> linked = measurement.measure_links(); !linked) return linked;
  Result<BenchReport> gathered = measurement.report();
  if (!gathered) return gathered.error();
  report = std::move(*gathered);
  return measurement.measure_all_reduces(report);
}

}  // namespace ddprun
