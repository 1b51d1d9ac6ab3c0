// After an error, a tensor belongs to its caller alone. A rank may be stopped in the middle of
// an all_reduce and continue later. Then it must not change tensors that its neighbours have
// got back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "tests/support/child_process.h"
#include "tests/support/program.h"
#include "tests/worker_lib/cpu_group/world.h"

#if !defined(DDPRUN_SANITIZED)
namespace {
// Allocations of exactly this size by this thread fail. 0: none.
thread_local std::size_t fails_for_bytes = 0;
}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = bytes == fails_for_bytes && bytes != 0 ? nullptr : std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::ChildProcess;
using testing_support::kPatience;
using testing_support::program;

constexpr std::size_t kBytes = std::size_t{8} << 20;

// Sanitizers replace operator new themselves.
#if !defined(DDPRUN_SANITIZED)
TEST(CpuGroupException, InTheMiddleOfACollectiveEndsItForTheOthers) {
  EngineWorld world("aa");
  world.run([](CpuGroup& group, int rank) {
    const auto memory = group.shared_memory(kBytes);
    const auto all_reduce = [&] {
      return group.all_reduce(list_of(WritableBytes(memory.get(), kBytes)), ElementType::kI32,
                              ReduceOp::kSum, kPatience);
    };
    if (rank == 1) {
      fails_for_bytes = sizeof(void*);  // the list of the other tensor, in the reduction
      EXPECT_THROW(static_cast<void>(all_reduce()), std::bad_alloc);
      fails_for_bytes = 0;
      return;
    }
    const Error error = all_reduce().error();
    EXPECT_EQ(error.kind, ErrorKind::kResource) << error.message();
    EXPECT_THAT(error.message(), HasSubstr("rank 1 cannot go on with all_reduce #1"));
    EXPECT_FALSE(group.shared_memory(1) == nullptr) << "nobody is taken for a late writer";
  });
}
#endif

// Rank 0 is this test. Rank 1 is a process that stops in the middle of its first all_reduce.
class LateWriter : public testing::Test {
 protected:
  LateWriter()
      : late_({program("cpu_test_rank"), "127.0.0.1:" + std::to_string(store_.port()), "aa", "1",
               "late_writer", std::to_string(kBytes), "10000"}),
        group_(form_rank(store_.port(), "aa", 0, "world")) {
    EXPECT_TRUE(group_->barrier(kPatience));
    memory_ = group_->shared_memory(kBytes);
    std::ranges::fill(numbers(), 1);
    EXPECT_TRUE(group_->barrier(kPatience)) << "rank 1 is about to begin, too";
  }

  std::span<std::int32_t> numbers() {
    return {reinterpret_cast<std::int32_t*>(memory_.get()), kBytes / sizeof(std::int32_t)};
  }
  std::ptrdiff_t count(std::int32_t value) { return std::ranges::count(numbers(), value); }

  Result<void> all_reduce() {
    return group_->all_reduce(list_of(WritableBytes(memory_.get(), kBytes)), ElementType::kI32,
                              ReduceOp::kSum, seconds(2));
  }

  testing_support::RunningStore store_;
  ChildProcess late_;
  std::unique_ptr<CpuGroup> group_;
  std::shared_ptr<char> memory_;
};

TEST_F(LateWriter, ChangesNoTensorThatItsNeighboursWereGivenBack) {
  const Error error = all_reduce().error();
  EXPECT_EQ(error.kind, ErrorKind::kTimeout);
  EXPECT_THAT(error.message(), HasSubstr("rank 1 is stopped"));
  std::ranges::fill(numbers(), 7);
  late_.signal(SIGCONT);
  EXPECT_EQ(late_.line(), "ready");
  EXPECT_THAT(late_.line().value_or(""), StartsWith("end timeout")) << late_.err();
  EXPECT_EQ(count(7), std::ssize(numbers()));
}

TEST_F(LateWriter, GetsNoMemoryThatIsGivenOutAfterTheError) {
  ASSERT_FALSE(all_reduce());
  const char* const before = memory_.get();
  memory_.reset();
  EXPECT_FALSE(group_->shared_memory(kBytes)) << "it was at " << static_cast<const void*>(before);
  late_.signal(SIGCONT);
  EXPECT_EQ(late_.wait(), 0) << late_.err();
}

// Sanitizers need more private memory themselves.
#if !defined(DDPRUN_SANITIZED)
TEST_F(LateWriter, IsKilledBeforeTheErrorIsReturnedWhereThereAreNoPrivatePages) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  const rlimit none{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &none), 0);
  const Result<void> reduced = all_reduce();
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
  EXPECT_FALSE(reduced);
  EXPECT_EQ(late_.wait(Duration::zero()), 128 + SIGKILL);
}
#endif

}  // namespace
}  // namespace ddprun
