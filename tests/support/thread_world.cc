#include "tests/support/thread_world.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "worker_lib/backend_cpu.h"

namespace ddprun {
namespace {

torch::ScalarType scalar_type(ElementType type) {
  switch (type) {
    case ElementType::kBool: return torch::kBool;
    case ElementType::kU8: return torch::kUInt8;
    case ElementType::kI8: return torch::kInt8;
    case ElementType::kI16: return torch::kInt16;
    case ElementType::kI32: return torch::kInt32;
    case ElementType::kI64: return torch::kInt64;
    case ElementType::kF16: return torch::kFloat16;
    case ElementType::kBF16: return torch::kBFloat16;
    case ElementType::kF32: return torch::kFloat32;
    case ElementType::kF64: return torch::kFloat64;
  }
  return torch::kFloat32;
}

Error unsupported() {
  return {.kind = ErrorKind::kUnsupported, .doing = "thread world", .cause = "not in this fake"};
}

}  // namespace

// Where the ranks meet. A collective is done by the last rank that comes to it.
struct ThreadWorld::Meeting {
  struct Seat {
    const void* input = nullptr;
    std::vector<void*> outputs;
  };
  // Does the collective, given what every rank brought.
  using Deed = std::function<void(std::vector<Seat>&)>;

  explicit Meeting(int size) : seats(size), here(size) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Seat> seats;
  std::vector<char> here;
  Call current;
  int arrived = 0;
  long round = 0;
  std::optional<Error> broken;
  std::set<int> gone;
  std::vector<Call> calls;

  Result<void> meet(int rank, const Call& call, Seat seat, const Deed& deed, Duration timeout) {
    std::unique_lock lock(mutex);
    const std::string doing = call.name + " of " + std::to_string(call.bytes) + " bytes";
    if (broken) return *broken;
    if (arrived > 0 && (current.name != call.name || current.bytes != call.bytes))
      return fail({.kind = ErrorKind::kInvalidArgument,
                   .doing = "rank " + std::to_string(rank) + ": " + doing,
                   .cause = "another rank is in " + current.name + " of " +
                            std::to_string(current.bytes) + " bytes"});
    current = call;
    seats[rank] = std::move(seat);
    here[rank] = 1;
    const long own_round = round;
    if (++arrived == static_cast<int>(seats.size())) {
      deed(seats);
      calls.push_back(call);
      arrived = 0;
      std::ranges::fill(here, 0);
      ++round;
      changed.notify_all();
      return {};
    }
    const auto over = [&] {
      return round != own_round || broken || gone.contains(rank) || lost_rank() >= 0;
    };
    if (!changed.wait_for(lock, timeout, over))
      return fail(timeout_error(doing, "the others did not come", timeout, timeout));
    if (round != own_round) return {};
    if (broken) return *broken;
    if (gone.contains(rank)) {  // takes its seat back, so that nobody touches its memory
      here[rank] = 0;
      --arrived;
      return Error{.kind = ErrorKind::kStopped, .doing = doing, .cause = "aborted"};
    }
    Error lost{.kind = ErrorKind::kPeerLost, .doing = doing};
    lost.peer_rank = lost_rank();
    lost.cause = "rank " + std::to_string(lost.peer_rank) + " is gone";
    return fail(std::move(lost));
  }

  // A rank that is gone without having come to the current collective.
  int lost_rank() const {
    for (const int rank : gone)
      if (!here[rank]) return rank;
    return -1;
  }

  Error fail(Error error) {
    if (!broken) broken = std::move(error);
    changed.notify_all();
    return *broken;
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex);
    gone.insert(rank);
    changed.notify_all();
  }
};

class ThreadWorld::Group final : public CpuGroup {
 public:
  Group(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}
  ~Group() override { meeting_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->seats.size()); }

  // Sums in rank order, in the tensor's own dtype.
  Result<void> all_reduce(void* data, std::size_t count, ElementType type, ReduceOp op,
                          Duration timeout) override {
    if (op != ReduceOp::kSum) return unsupported();
    return meeting_->meet(
        rank_, {"all_reduce", count * size_of(type)}, {data, {data}},
        [&](std::vector<Meeting::Seat>& seats) {
          const auto n = static_cast<std::int64_t>(count);
          const auto view = [&](void* memory) {
            return torch::from_blob(memory, {n}, scalar_type(type));
          };
          torch::Tensor sum = view(seats[0].outputs[0]).clone();
          for (std::size_t r = 1; r < seats.size(); ++r) sum += view(seats[r].outputs[0]);
          for (Meeting::Seat& seat : seats) view(seat.outputs[0]).copy_(sum);
        },
        timeout);
  }
  Result<void> broadcast(void* data, std::size_t bytes, Rank root, Duration timeout) override {
    return meeting_->meet(
        rank_, {"broadcast", bytes}, {data, {data}},
        [&](std::vector<Meeting::Seat>& seats) {
          for (std::size_t r = 0; r < seats.size(); ++r)
            if (static_cast<int>(r) != root.value)
              std::memcpy(seats[r].outputs[0], seats[root.value].input, bytes);
        },
        timeout);
  }
  Result<void> all_gather(const void* input, std::span<void* const> outputs, std::size_t bytes,
                          Duration timeout) override {
    return meeting_->meet(
        rank_, {"all_gather", bytes}, {input, {outputs.begin(), outputs.end()}},
        [&](std::vector<Meeting::Seat>& seats) {
          for (Meeting::Seat& to : seats)
            for (std::size_t r = 0; r < seats.size(); ++r)
              std::memmove(to.outputs[r], seats[r].input, bytes);
        },
        timeout);
  }
  Result<void> barrier(Duration timeout) override {
    return meeting_->meet(
        rank_, {"barrier", 0}, {}, [](auto&) {}, timeout);
  }

  Result<void> reduce(void*, std::size_t, ElementType, ReduceOp, Rank, Duration) override {
    return unsupported();
  }
  Result<void> reduce_scatter(std::span<const void* const>, void*, std::size_t, ElementType,
                              ReduceOp, Duration) override {
    return unsupported();
  }
  Result<void> gather(const void*, std::span<void* const>, std::size_t, Rank, Duration) override {
    return unsupported();
  }
  Result<void> scatter(std::span<const void* const>, void*, std::size_t, Rank, Duration) override {
    return unsupported();
  }
  Result<void> send(const void*, std::size_t, Rank, int, Duration) override {
    return unsupported();
  }
  Result<void> recv(void*, std::size_t, Rank, int, Duration) override { return unsupported(); }

  void abort(const std::string&) override { meeting_->leave(rank_); }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

ThreadWorld::ThreadWorld(int size, Timeout timeout) : size_(size), timeout_(timeout) {}

ThreadWorld::~ThreadWorld() = default;

std::vector<std::string> ThreadWorld::errors(const std::function<void(ProcessGroup&)>& rank_body) {
  const auto meeting = meeting_ = std::make_shared<Meeting>(size_);
  std::vector<std::string> result(size_);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size_; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      ProcessGroup group(std::make_unique<CpuBackend>(std::make_unique<Group>(meeting, rank)),
                         torch::kCPU, timeout_);
      try {
        rank_body(group);
      } catch (const std::exception& thrown) {
        result[rank] = thrown.what();
      }
      meeting->leave(rank);
    });
  for (std::thread& thread : threads) thread.join();
  return result;
}

void ThreadWorld::run(const std::function<void(ProcessGroup&)>& rank_body) {
  const std::vector<std::string> thrown = errors(rank_body);
  for (int rank = 0; rank < size_; ++rank) EXPECT_EQ(thrown[rank], "") << "on rank " << rank;
}

std::vector<ThreadWorld::Call> ThreadWorld::calls() const {
  const std::lock_guard lock(meeting_->mutex);
  return meeting_->calls;
}

}  // namespace ddprun
