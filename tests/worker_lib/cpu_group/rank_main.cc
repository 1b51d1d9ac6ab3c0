// cpu_test_rank: one rank of a world as its own process, for tests that kill ranks, stop ranks
// and cut cables.
//
//   cpu_test_rank STORE LETTERS RANK COLLECTIVE BYTES TIMEOUT_MS [ADDRESS]
//
// STORE: host:port. BYTES: about the bytes of a rank's data, in all. ADDRESS: at which the
// other ranks reach it.
//
// It forms the group, passes a barrier, and prints "ready". Then it calls one collective
// repeatedly and checks every result, until a call fails. Then it prints
//
//   end KIND PEER_RANK MESSAGE     (or "wrong ..." if a result was wrong)
//
// Last, it destroys the group and prints "open N". N is the number of descriptors that are
// open beyond those at the start.
#include <sys/mman.h>

#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/host_port.h"
#include "ddprun/store.h"
#include "tests/support/eventually.h"
#include "tests/worker_lib/cpu_group/world.h"

namespace ddprun {
namespace {

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return std::distance(begin(descriptors), end(descriptors));
}

using Numbers = std::vector<std::int32_t>;

constexpr std::size_t kPage = 4096;
char* page_to_stop_at = nullptr;

// Stops this process at the next access to the page of these data. Later accesses do not stop
// it.
void stop_when_touched(char* data) {
  page_to_stop_at = data - reinterpret_cast<std::uintptr_t>(data) % kPage;
  struct sigaction stop {};
  stop.sa_handler = [](int) {
    mprotect(page_to_stop_at, kPage, PROT_READ | PROT_WRITE);
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSTOP);
  };
  sigaction(SIGSEGV, &stop, nullptr);
  mprotect(page_to_stop_at, kPage, PROT_NONE);
}

[[noreturn]] void wrong(const std::string& what) {
  std::printf("wrong %s\n", what.c_str());
  std::exit(3);
}

class Scenarios {
 public:
  Scenarios(CpuGroup& group, std::size_t bytes, Duration timeout)
      : group_(group), count_(bytes / sizeof(std::int32_t)), timeout_(timeout) {}

  // Runs one call of the collective, and returns whether its result is right.
  Result<void> call(const std::string& name, int round) {
    round_ = round;
    if (name == "all_reduce") return all_reduce();
    if (name == "all_reduce_list") return all_reduce_list();
    if (name == "all_reduce_shared") return all_reduce_shared();
    if (name == "late_writer") return late_writer();
    if (name == "reduce") return reduce();
    if (name == "broadcast") return broadcast();
    if (name == "all_gather") return all_gather();
    if (name == "reduce_scatter") return reduce_scatter();
    if (name == "gather") return gather();
    if (name == "scatter") return scatter();
    if (name == "all_to_all") return all_to_all(/*is_uneven=*/false);
    if (name == "all_to_all_uneven") return all_to_all(/*is_uneven=*/true);
    if (name == "barrier") return group_.barrier(timeout_);
    if (name == "send_recv") return send_recv();
    if (name == "isend_irecv") return isend_irecv();
    if (name == "any_source") return any_source();
    std::fprintf(stderr, "no collective '%s'\n", name.c_str());
    std::exit(2);
  }

 private:
  int n() const { return group_.size(); }
  int root() const { return round_ % n(); }
  // The number of elements in a rank's block for each rank.
  std::size_t share() const { return count_ / n(); }

  // Returns a rank's data in this round. They differ by rank, by round and by index.
  Numbers of(int rank, std::size_t count) const {
    Numbers numbers(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = 1000 * rank + round_ + period(i);
    return numbers;
  }
  Numbers sum(std::size_t count) const {
    Numbers numbers(count);
    for (std::size_t i = 0; i < count; ++i)
      numbers[i] = 1000 * n() * (n() - 1) / 2 + n() * (round_ + period(i));
    return numbers;
  }
  static std::int32_t period(std::size_t place) { return static_cast<std::int32_t>(place % 97); }

  template <class Got>
  Result<void> checked(const Result<void>& result, const Got& got, const Numbers& expected) const {
    if (result && !std::ranges::equal(got, expected)) {
      wrong("data in round " + std::to_string(round_));
    }
    return result;
  }

  Result<void> sum_up(std::span<const WritableBytes> tensors) {
    return group_.all_reduce(tensors, ElementType::kI32, ReduceOp::kSum, timeout_);
  }

  Result<void> all_reduce() {
    Numbers data = of(group_.rank(), count_);
    return checked(sum_up(list_of(writable(data))), data, sum(count_));
  }

  // Reduces many tensors as one.
  Result<void> all_reduce_list() {
    constexpr std::size_t kTensors = 20;
    std::vector<Numbers> tensors;
    for (std::size_t i = 0; i < kTensors; ++i)
      tensors.push_back(of(group_.rank(), 2 * i * count_ / (kTensors * kTensors)));
    const auto result = sum_up(writable_each(tensors));
    for (const Numbers& one : tensors) (void)checked(result, one, sum(one.size()));
    return result;
  }

  Result<void> all_reduce_shared() {
    const std::size_t bytes = count_ * sizeof(std::int32_t);
    if (!shared_) shared_ = group_.shared_memory(bytes);
    if (!shared_) wrong("memory: there is none to be shared");
    const Numbers mine = of(group_.rank(), count_);
    const std::span<std::int32_t> data(reinterpret_cast<std::int32_t*>(shared_.get()), count_);
    std::ranges::copy(mine, data.begin());
    const auto result = sum_up(list_of(WritableBytes(shared_.get(), bytes)));
    if (!result) {  // it is ours again: neighbours must neither reduce nor write it
      std::ranges::fill(data, -1);
      testing_support::let_pass(std::chrono::milliseconds(3));
      if (std::ranges::count(data, -1) != std::ssize(data)) wrong("data after the failure");
    }
    return checked(result, data, sum(count_));
  }

  // An all_reduce in which this rank stops after it has begun to write to the others' tensors.
  // It continues at SIGCONT.
  Result<void> late_writer() {
    const std::size_t bytes = count_ * sizeof(std::int32_t);
    shared_ = group_.shared_memory(bytes);
    const std::span<std::int32_t> data(reinterpret_cast<std::int32_t*>(shared_.get()), count_);
    std::ranges::copy(of(group_.rank(), count_), data.begin());
    if (const Result<void> met = group_.barrier(timeout_); !met) return met;
    stop_when_touched(shared_.get() + bytes / n() * group_.rank());  // this rank reduces this share
    return sum_up(list_of(WritableBytes(shared_.get(), bytes)));
  }

  Result<void> reduce() {
    Numbers data = of(group_.rank(), count_);
    const auto result = group_.reduce(list_of(writable(data)), ElementType::kI32, ReduceOp::kSum,
                                      Rank(root()), timeout_);
    return checked(result, data, group_.rank() == root() ? sum(count_) : of(group_.rank(), count_));
  }

  Result<void> broadcast() {
    Numbers data = of(group_.rank(), count_);
    const auto result = group_.broadcast(list_of(writable(data)), Rank(root()), timeout_);
    return checked(result, data, of(root(), count_));
  }

  // Returns the blocks of all ranks, in order.
  template <class Byte>
  std::vector<std::span<Byte>> blocks(std::span<Byte> all) const {
    std::vector<std::span<Byte>> result;
    const std::size_t each = all.size() / n();
    for (int rank = 0; rank < n(); ++rank) result.push_back(all.subspan(rank * each, each));
    return result;
  }
  Numbers of_all() const {
    Numbers all;
    for (int rank = 0; rank < n(); ++rank) {
      const Numbers one = of(rank, share());
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  Result<void> all_gather() {
    const Numbers mine = of(group_.rank(), share());
    Numbers all(share() * n());
    const auto result = group_.all_gather(list_of(readable(mine)), blocks(writable(all)), timeout_);
    return checked(result, all, of_all());
  }

  Result<void> reduce_scatter() {
    Numbers mine;
    for (int rank = 0; rank < n(); ++rank) {
      const Numbers block = of(group_.rank(), share());
      mine.insert(mine.end(), block.begin(), block.end());
    }
    Numbers output(share());
    const auto result = group_.reduce_scatter(blocks(readable(mine)), list_of(writable(output)),
                                              ElementType::kI32, ReduceOp::kSum, timeout_);
    return checked(result, output, sum(share()));
  }

  Result<void> gather() {
    const bool is_root = group_.rank() == root();
    const Numbers mine = of(group_.rank(), share());
    Numbers all(is_root ? share() * n() : 0);
    const auto outputs = is_root ? blocks(writable(all)) : std::vector<WritableBytes>{};
    const auto result = group_.gather(readable(mine), outputs, Rank(root()), timeout_);
    return checked(result, all, is_root ? of_all() : Numbers{});
  }

  Result<void> scatter() {
    const Numbers all = of_all();
    Numbers output(share());
    const bool is_root = group_.rank() == root();
    const auto inputs = is_root ? blocks(readable(all)) : std::vector<ReadableBytes>{};
    const auto result = group_.scatter(inputs, writable(output), Rank(root()), timeout_);
    return checked(result, output, of(group_.rank(), share()));
  }

  // Every rank sends to every rank. With `is_uneven` each rank gets more than the rank before
  // it.
  Result<void> all_to_all(bool is_uneven) {
    std::vector<Numbers> sent, got, expected;
    for (int rank = 0; rank < n(); ++rank) {
      sent.push_back(of(group_.rank(), is_uneven ? share() * rank : share()));
      expected.push_back(of(rank, is_uneven ? share() * group_.rank() : share()));
      got.emplace_back(expected.back().size());
    }
    const auto result = group_.all_to_all(readable_each(sent), writable_each(got), timeout_);
    for (int rank = 0; rank < n(); ++rank) (void)checked(result, got[rank], expected[rank]);
    return result;
  }

  // Sends around the ring. Rank 0 begins, and each rank waits for the one before it.
  Result<void> send_recv() {
    const Rank next((group_.rank() + 1) % n());
    const Rank before((group_.rank() + n() - 1) % n());
    const Numbers data = of(group_.rank(), count_);
    Numbers got(count_);
    const auto send = [&] {
      return group_.send(data.data(), readable(data).size(), next, 5, timeout_);
    };
    const auto recv = [&]() -> Result<void> {
      const Result<Rank> received =
          group_.recv(got.data(), writable(got).size(), before, 5, timeout_);
      if (!received) return received.error();
      return {};
    };
    const auto first = group_.rank() == 0 ? send() : recv();
    if (!first) return first;
    const auto second = group_.rank() == 0 ? recv() : send();
    return checked(second, got, of(before.value, count_));
  }

  // Collects transfers in flight, and the first failure among them.
  class Flight {
   public:
    TransferDone one() {
      const std::lock_guard lock(mutex_);
      ++in_flight_;
      return [this](const Result<Rank>& result) { land(result); };
    }
    Result<void> wait() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return in_flight_ == 0; });
      if (failure_) return *failure_;
      return {};
    }

   private:
    void land(const Result<Rank>& result) {
      const std::lock_guard lock(mutex_);
      // A transfer that began after the group had failed may end before those that failed with
      // the group.
      const bool is_first = !failure_ || failure_->kind == ErrorKind::kStopped;
      if (!result && is_first) failure_ = result.error();
      --in_flight_;
      changed_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    int in_flight_ = 0;
    std::optional<Error> failure_;
  };

  // Every rank sends to every rank at once.
  Result<void> isend_irecv() {
    const Numbers mine = of(group_.rank(), share());
    std::vector<Numbers> got(n(), Numbers(share()));
    Flight flight;
    for (int rank = 0; rank < n(); ++rank) {
      if (rank == group_.rank()) continue;
      group_.start_send(mine.data(), readable(mine).size(), Rank(rank), 1, timeout_, flight.one());
      group_.start_recv(got[rank].data(), writable(got[rank]).size(), Rank(rank), 1, timeout_,
                        flight.one());
    }
    const Result<void> result = flight.wait();
    for (int rank = 0; rank < n(); ++rank) {
      if (rank != group_.rank()) (void)checked(result, got[rank], of(rank, share()));
    }
    return result;
  }

  // Does the same, but receives from any source.
  Result<void> any_source() {
    const Numbers mine = of(group_.rank(), share());
    Numbers got(share());
    Flight flight;
    for (int rank = 0; rank < n(); ++rank) {
      if (rank == group_.rank()) continue;
      group_.start_send(mine.data(), readable(mine).size(), Rank(rank), round_, timeout_,
                        flight.one());
    }
    Result<void> result;
    for (int i = 1; i < n() && result; ++i) {
      const Result<Rank> from =
          group_.recv(got.data(), writable(got).size(), std::nullopt, round_, timeout_);
      result = from ? checked({}, got, of(from->value, share())) : Result<void>(from.error());
    }
    const Result<void> sent = flight.wait();
    return sent ? result : sent;  // returns the first failure; a receive may have started after it
  }

  CpuGroup& group_;
  std::size_t count_;
  Duration timeout_;
  int round_ = 0;
  std::shared_ptr<char> shared_;
};

int run(int argc, char** argv) {
  const HostPort place = parse_host_port(argv[1]).value();
  const std::string letters = argv[2];
  const int rank = std::atoi(argv[3]);
  const std::size_t bytes = std::strtoull(argv[5], nullptr, 10);
  const Duration timeout = std::chrono::milliseconds(std::atoi(argv[6]));
  constexpr Duration kPatience = std::chrono::seconds(30);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::ptrdiff_t before = open_descriptors();
  std::unique_ptr<CpuGroup> group;
  {
    const auto store =
        connect_tcp_store({.host = place.host, .port = place.port, .connect_timeout = kPatience});
    group = CpuGroup::form(*store, {.rank = Rank(rank),
                                    .world_size = static_cast<int>(letters.size()),
                                    .node_id = letters.substr(rank, 1),
                                    .name = "world",
                                    .address = argc == 8 ? argv[7] : "127.0.0.1",
                                    .timeout = kPatience})
                .value();
  }
  if (!group->barrier(kPatience)) return 1;
  std::printf("ready\n");
  {
    Scenarios scenarios(*group, bytes, timeout);
    for (int round = 0;; ++round) {
      const Result<void> result = scenarios.call(argv[4], round);
      if (result) continue;
      const Error& error = result.error();
      std::printf("end %s %d %s\n", std::string(to_text(error.kind)).c_str(), error.peer_rank,
                  error.message().c_str());
      break;
    }
  }
  group.reset();
  std::printf("open %td\n", open_descriptors() - before);
  return 0;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) {
    std::fprintf(stderr,
                 "usage: cpu_test_rank STORE LETTERS RANK COLLECTIVE BYTES TIMEOUT_MS [ADDRESS]\n");
    return 2;
  }
  return ddprun::run(argc, argv);
}
