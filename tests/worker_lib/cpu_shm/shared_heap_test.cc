#include "worker_lib/cpu_shm/shared_heap.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/file_size_limit.h"
#include "tests/worker_lib/cpu_group/world.h"

namespace ddprun {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSegmentBytes = 4096;  // without the heap

std::shared_ptr<const ShmSegment> new_segment() {
  Result<ShmSegment> segment = ShmSegment::create(kSegmentBytes);
  EXPECT_TRUE(segment) << segment.error().message();
  return std::make_shared<const ShmSegment>(std::move(*segment));
}

std::size_t bytes_taken(const ShmSegment& segment) {
  struct stat status {};
  EXPECT_EQ(fstat(segment.fd(), &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

TEST(SharedHeap, TwoRanksReachEachOthersBlocks) {
  const auto segment = new_segment();
  const auto first = std::make_shared<SharedHeap>(segment, 2, 0);
  const auto second = std::make_shared<SharedHeap>(segment, 2, 1);
  const auto mine = first->allocate(100);
  const auto theirs = second->allocate(100);
  ASSERT_TRUE(mine && theirs);
  *theirs = 'x';
  const std::optional<std::size_t> place = second->place_of(theirs.get(), 100);
  ASSERT_TRUE(place);
  EXPECT_EQ(*first->at(1, *place), 'x');
  EXPECT_FALSE(first->place_of(theirs.get(), 100));
  EXPECT_EQ(*mine, 0);
}

TEST(SharedHeap, OtherMemoryHasNoPlace) {
  const auto heap = std::make_shared<SharedHeap>(new_segment(), 1, 0);
  char own = 0;
  EXPECT_FALSE(heap->place_of(&own, 1));
  EXPECT_FALSE(heap->place_of(nullptr, 0));
  const auto block = heap->allocate(8);
  EXPECT_TRUE(heap->place_of(block.get() + 4, 4));
  EXPECT_FALSE(heap->place_of(block.get(), ~std::size_t{0}));
}

TEST(SharedHeap, TheChildOfAForkGivesNothingOfItsParentBack) {
  const auto heap = std::make_shared<SharedHeap>(new_segment(), 1, 0);
  auto block = heap->allocate(8);
  ASSERT_TRUE(block);
  *block = 'x';
  const pid_t child = fork();
  if (child == 0) {
    block.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*block, 'x');
}

TEST(SharedHeap, MemoryExistsWhenItIsUsedAndGoesBackWithTheLastPointer) {
  const auto segment = new_segment();
  auto heap = std::make_shared<SharedHeap>(segment, 1, 0);
  const std::size_t before = bytes_taken(*segment);
  auto block = heap->allocate(8 * kMiB);
  ASSERT_TRUE(block);
  EXPECT_LT(bytes_taken(*segment), before + kMiB);
  std::fill_n(block.get(), 8 * kMiB, 'x');
  EXPECT_GE(bytes_taken(*segment), before + 8 * kMiB);
  heap.reset();  // the block keeps the heap alive
  EXPECT_EQ(block.get()[8 * kMiB - 1], 'x');
  block.reset();
  EXPECT_LT(bytes_taken(*segment), before + kMiB);
}

TEST(SharedHeap, BlocksAreZerosAlsoWhenTheirPlaceWasUsedBefore) {
  const auto heap = std::make_shared<SharedHeap>(new_segment(), 1, 0);
  const char* where = nullptr;
  {
    const auto block = heap->allocate(kMiB);
    where = block.get();
    std::fill_n(block.get(), kMiB, 'x');
  }
  const auto block = heap->allocate(kMiB);
  EXPECT_EQ(block.get(), where);
  EXPECT_EQ(std::count(block.get(), block.get() + kMiB, 0), std::ptrdiff_t{kMiB});
}

TEST(SharedHeap, MemoryThatWasMadePrivateKeepsItsContentsAndIsOutOfReachOfOthers) {
  const auto segment = new_segment();
  const auto first = std::make_shared<SharedHeap>(segment, 2, 0);
  const auto second = std::make_shared<SharedHeap>(segment, 2, 1);
  const std::size_t bytes = 9 * kMiB + 5;
  auto before = first->allocate(1);
  auto block = first->allocate(bytes);
  const std::size_t place = *first->place_of(block.get(), bytes);
  std::fill_n(block.get(), bytes, 'x');
  const std::size_t taken = bytes_taken(*segment);
  // Another process has its own mapping. Here the second mapping is in this process, too.
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(),
                             static_cast<off_t>(segment->heap_offset() + place));
  ASSERT_NE(mapping, MAP_FAILED);
  ASSERT_TRUE(first->make_private(place, bytes));
  EXPECT_LT(bytes_taken(*segment), taken - 9 * kMiB) << "there are not two copies";
  std::fill_n(static_cast<char*>(mapping), bytes, 'y');
  EXPECT_EQ(std::count(block.get(), block.get() + bytes, 'x'), static_cast<std::ptrdiff_t>(bytes));
  EXPECT_FALSE(first->allocate(1));
  EXPECT_TRUE(second->allocate(1)) << "the part of another rank";
  block.reset();
  before.reset();
  munmap(mapping, bytes);
}

std::shared_ptr<SharedHeap> heap_under(std::size_t file_size) {
  const testing_support::FileSizeLimit limit(file_size);
  return std::make_shared<SharedHeap>(new_segment(), 2, 1);
}

TEST(SharedHeap, ALimitOfFileSizesMakesItSmallerOrLeavesNone) {
  const auto heap = heap_under(kSegmentBytes + 64 * kMiB);
  EXPECT_FALSE(heap->allocate(32 * kMiB + 1)) << "the other rank has half of it";
  const auto block = heap->allocate(32 * kMiB);
  ASSERT_TRUE(block);
  std::fill_n(block.get(), 32 * kMiB, 'x');  // the last byte of the file, too
  for (const std::size_t limit : {kSegmentBytes, kSegmentBytes + 1}) {
    const auto none = heap_under(limit);
    EXPECT_FALSE(none->allocate(1)) << limit;
    EXPECT_FALSE(none->place_of(block.get(), 1)) << limit;
  }
}

// Sanitizers need more address space than that themselves.
#if !defined(DDPRUN_SANITIZED)
TEST(SharedHeap, WithALimitOfAddressesAWorldDoesWithoutHeap) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit small{.rlim_cur = std::size_t{4} << 30, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  {
    EngineWorld world("aa");
    world.run([](CpuGroup& group, int) {
      EXPECT_FALSE(group.shared_memory(1));
      std::vector<float> data(100'000, 1);
      EXPECT_TRUE(group.all_reduce(list_of(writable(data)), ElementType::kF32, ReduceOp::kSum,
                                   std::chrono::seconds(30)));
      EXPECT_EQ(data, std::vector<float>(100'000, 2));
    });
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}
#endif

}  // namespace
}  // namespace ddprun
