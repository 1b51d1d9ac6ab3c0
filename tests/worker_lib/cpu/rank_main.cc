// cpu_test_rank: one rank of a world, as a process of its own, for tests that kill and stop ranks.
//
//   cpu_test_rank STORE_PORT LETTERS RANK SCENARIO TIMEOUT_MS
//
// Forms the group, passes a barrier, says "ready", and then calls one collective again and again,
// checking every result, until a call fails. Then it says
//
//   end KIND PEER_RANK MESSAGE     (or "wrong ..." when a result was not what it must be)
//
// destroys the group, and says "open N" with the descriptors that are left beyond those it began
// with.
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker_lib/cpu/world.h"

namespace ddprun {
namespace {

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return std::distance(begin(descriptors), end(descriptors));
}

using Numbers = std::vector<std::int32_t>;

class Scenarios {
 public:
  Scenarios(CpuGroup& group, Duration timeout) : group_(group), timeout_(timeout) {}

  // One call of the scenario's collective, and whether its result is right.
  Result<void> call(const std::string& name, int round) {
    round_ = round;
    const std::size_t small = 25;
    const std::size_t large = 700'001;
    if (name == "all_reduce_small") return all_reduce(small);
    if (name == "all_reduce_large") return all_reduce(large);
    if (name == "reduce") return reduce(large);
    if (name == "broadcast") return broadcast(large);
    if (name == "all_gather") return all_gather(large / 4);
    if (name == "reduce_scatter") return reduce_scatter(large / 4);
    if (name == "gather") return gather(large / 4);
    if (name == "scatter") return scatter(large / 4);
    if (name == "all_to_all") return all_to_all(large / 4, /*is_uneven=*/false);
    if (name == "all_to_all_uneven") return all_to_all(large / 8, /*is_uneven=*/true);
    if (name == "all_reduce_list") return all_reduce_list(large);
    if (name == "barrier") return group_.barrier(timeout_);
    if (name == "send_recv") return send_recv(large);
    if (name == "messages") return messages(large);
    std::fprintf(stderr, "no scenario '%s'\n", name.c_str());
    std::exit(2);
  }

 private:
  int n() const { return group_.size(); }
  int root() const { return round_ % n(); }
  Numbers of(int rank, std::size_t count) const { return Numbers(count, 1000 * rank + round_); }
  Numbers sum(std::size_t count) const {
    return Numbers(count, 1000 * n() * (n() - 1) / 2 + n() * round_);
  }

  Result<void> checked(const Result<void>& result, const Numbers& got,
                       const Numbers& expected) const {
    if (result && got != expected) {
      std::printf("wrong data in round %d\n", round_);
      std::exit(3);
    }
    return result;
  }

  Result<void> all_reduce(std::size_t count) {
    Numbers data = of(group_.rank(), count);
    const auto result =
        group_.all_reduce(list_of(writable(data)), ElementType::kI32, ReduceOp::kSum, timeout_);
    return checked(result, data, sum(count));
  }

  Result<void> reduce(std::size_t count) {
    Numbers data = of(group_.rank(), count);
    const auto result = group_.reduce(list_of(writable(data)), ElementType::kI32, ReduceOp::kSum,
                                      Rank(root()), timeout_);
    return checked(result, data, group_.rank() == root() ? sum(count) : of(group_.rank(), count));
  }

  Result<void> broadcast(std::size_t count) {
    Numbers data = of(group_.rank(), count);
    const auto result = group_.broadcast(list_of(writable(data)), Rank(root()), timeout_);
    return checked(result, data, of(root(), count));
  }

  // Blocks of all ranks, one behind the other.
  template <class Byte>
  std::vector<std::span<Byte>> blocks(std::span<Byte> all) const {
    std::vector<std::span<Byte>> result;
    const std::size_t each = all.size() / n();
    for (int rank = 0; rank < n(); ++rank) result.push_back(all.subspan(rank * each, each));
    return result;
  }
  Numbers of_all(std::size_t count) const {
    Numbers all;
    for (int rank = 0; rank < n(); ++rank) {
      const Numbers one = of(rank, count);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  Result<void> all_gather(std::size_t count) {
    const Numbers mine = of(group_.rank(), count);
    Numbers all(count * n());
    const auto result = group_.all_gather(list_of(readable(mine)), blocks(writable(all)), timeout_);
    return checked(result, all, of_all(count));
  }

  Result<void> reduce_scatter(std::size_t count) {
    const Numbers mine = of(group_.rank(), count * n());
    Numbers output(count);
    const auto result = group_.reduce_scatter(blocks(readable(mine)), list_of(writable(output)),
                                              ElementType::kI32, ReduceOp::kSum, timeout_);
    return checked(result, output, sum(count));
  }

  Result<void> gather(std::size_t count) {
    const bool is_root = group_.rank() == root();
    const Numbers mine = of(group_.rank(), count);
    Numbers all(is_root ? count * n() : 0);
    const auto outputs = is_root ? blocks(writable(all)) : std::vector<WritableBytes>{};
    const auto result = group_.gather(readable(mine), outputs, Rank(root()), timeout_);
    return checked(result, all, is_root ? of_all(count) : Numbers{});
  }

  Result<void> scatter(std::size_t count) {
    const Numbers all = of_all(count);
    Numbers output(count);
    const bool is_root = group_.rank() == root();
    const auto inputs = is_root ? blocks(readable(all)) : std::vector<ReadableBytes>{};
    const auto result = group_.scatter(inputs, writable(output), Rank(root()), timeout_);
    return checked(result, output, of(group_.rank(), count));
  }

  // Every rank sends what it sends to everybody; with `is_uneven` each gets more than the one before.
  Result<void> all_to_all(std::size_t count, bool is_uneven) {
    std::vector<Numbers> sent, got, expected;
    for (int rank = 0; rank < n(); ++rank) {
      sent.push_back(of(group_.rank(), is_uneven ? count * rank : count));
      expected.push_back(of(rank, is_uneven ? count * group_.rank() : count));
      got.emplace_back(expected.back().size());
    }
    const auto result = group_.all_to_all(readable_each(sent), writable_each(got), timeout_);
    for (int rank = 0; result && rank < n(); ++rank)
      (void)checked(result, got[rank], expected[rank]);
    return result;
  }

  // Many tensors as one.
  Result<void> all_reduce_list(std::size_t count) {
    std::vector<Numbers> tensors;
    for (std::size_t i = 0; i < 40; ++i) tensors.push_back(of(group_.rank(), i * count / 800));
    const auto result =
        group_.all_reduce(writable_each(tensors), ElementType::kI32, ReduceOp::kSum, timeout_);
    for (const Numbers& one : tensors) {
      if (result) (void)checked(result, one, sum(one.size()));
    }
    return result;
  }

  // Around the ring; rank 0 begins, so that each waits for the one before it.
  Result<void> send_recv(std::size_t count) {
    const Rank next((group_.rank() + 1) % n());
    const Rank before((group_.rank() + n() - 1) % n());
    Numbers data = of(group_.rank(), count);
    const auto send = [&] { return group_.send(data.data(), count * 4, next, 5, timeout_); };
    Numbers got(count);
    const auto recv = [&]() -> Result<void> {
      const Result<Rank> received = group_.recv(got.data(), count * 4, before, 5, timeout_);
      if (!received) return received.error();
      return {};
    };
    const auto first = group_.rank() == 0 ? send() : recv();
    if (!first) return first;
    const auto second = group_.rank() == 0 ? recv() : send();
    return checked(second, got, of(before.value, count));
  }

  // Everybody to everybody at once, small and large, the small ones received from any source.
  Result<void> messages(std::size_t count) {
    const std::size_t small = 5;
    Numbers mine = of(group_.rank(), count);
    std::vector<Numbers> large_ones, small_ones;
    for (int rank = 0; rank < n(); ++rank) {
      large_ones.emplace_back(count);
      small_ones.emplace_back(small);
    }
    std::mutex mutex;
    std::condition_variable changed;
    int left = 4 * (n() - 1);
    std::optional<Error> failure;
    const auto end = [&](const Result<Rank>& result) {
      const std::lock_guard lock(mutex);
      if (!result && !failure) failure = result.error();
      --left;
      changed.notify_all();
    };
    for (int rank = 0; rank < n(); ++rank) {
      if (rank == group_.rank()) continue;
      group_.start_send(mine.data(), count * 4, Rank(rank), 1, timeout_, end);
      group_.start_send(mine.data(), small * 4, Rank(rank), 2 + round_, timeout_, end);
      group_.start_recv(large_ones[rank].data(), count * 4, Rank(rank), 1, timeout_, end);
      group_.start_recv(small_ones[rank].data(), small * 4, std::nullopt, 2 + round_, timeout_,
                        [&, rank](const Result<Rank>& result) {
                          if (result && small_ones[rank] != of(result->value, 5)) {
                            std::printf("wrong data in round %d\n", round_);
                            std::exit(3);
                          }
                          end(result);
                        });
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return left == 0; });
    if (failure) return *failure;
    for (int rank = 0; rank < n(); ++rank) {
      if (rank != group_.rank()) {
        if (const auto right = checked({}, large_ones[rank], of(rank, count)); !right) return right;
      }
    }
    return {};
  }

  CpuGroup& group_;
  Duration timeout_;
  int round_ = 0;
};

int run(char** argv) {
  const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  const std::string letters = argv[2];
  const Duration timeout = std::chrono::milliseconds(std::atoi(argv[5]));
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::ptrdiff_t before = open_descriptors();
  std::unique_ptr<CpuGroup> group = form_rank(port, letters, std::atoi(argv[3]), "world");
  if (!group->barrier(std::chrono::seconds(30))) return 1;
  std::printf("ready\n");
  Scenarios scenarios(*group, timeout);
  for (int round = 0;; ++round) {
    const Result<void> result = scenarios.call(argv[4], round);
    if (result) continue;
    const Error& error = result.error();
    std::printf("end %s %d %s\n", std::string(to_text(error.kind)).c_str(), error.peer_rank,
                error.message().c_str());
    break;
  }
  group.reset();
  std::printf("open %td\n", open_descriptors() - before);
  return 0;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  if (argc != 6)
    return std::fprintf(stderr, "usage: cpu_test_rank PORT LETTERS RANK SCENARIO TIMEOUT_MS\n"), 2;
  return ddprun::run(argv);
}
