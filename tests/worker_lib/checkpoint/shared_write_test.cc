// Tests files that all ranks write together.
#include "worker_lib/checkpoint/shared_write.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "ddprun/checkpoint.h"
#include "ddprun/zero_optimizer.h"
#include "tests/support/context_world.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/read_file.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"
#include "tests/worker_lib/support/verified_data.h"
#include "worker_lib/checkpoint/contents.h"
#include "worker_lib/checkpoint/gather.h"
#include "worker_lib/checkpoint/shard_assignment.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::in_a_world_of;
using testing_support::kPatience;
using testing_support::TemporaryDirectory;

constexpr const char* kFile = "step-000000000001.pt";

CheckpointOptions together_in(const TemporaryDirectory& directory) {
  return {.directory = directory.path(), .write_together_from = 0};
}
CheckpointOptions alone_in(const TemporaryDirectory& directory) {
  return {.directory = directory.path(),
          .write_together_from = std::numeric_limits<std::int64_t>::max()};
}

enum class Weights { kTied, kApart };

// Learner: a training of 10 MiB, so that digests have chains. Each rank has buffers and gradients
// of its own.
struct Learner {
  explicit Learner(Weights weights = Weights::kTied) {
    const torch::NoGradGuard no_grad;
    double value = 0;
    for (torch::Tensor parameter : net->parameters()) parameter.fill_(value += 1);
    if (weights == Weights::kApart) return;
    net->ptr<torch::nn::LinearImpl>(2)->weight.set_data(
        net->ptr<torch::nn::LinearImpl>(0)->weight.detach());
  }
  template <class Optimizer>
  TrainingState trained_by(Optimizer& optimizer, int rank) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor parameter : net->parameters())
      parameter.mutable_grad() = torch::full_like(parameter, 0.5);
    optimizer.step();
    for (torch::Tensor parameter : net->parameters()) parameter.mutable_grad().fill_(rank);
    net->buffers()[0].fill_(5 + rank);
    return {.model = net.ptr().get(),
            .optimizer = &optimizer,
            .extra = {{"text", "of rank 0"}, {"list", {1, 2.5, nullptr}}},
            .gradients = true,
            .tensors = {{"noise", torch::full({3}, rank)}, {"none", torch::empty({0})}},
            .has_position = false};
  }

  torch::nn::Sequential net{torch::nn::Linear(300, 300), torch::nn::BatchNorm1d(300),
                            torch::nn::Linear(300, 300), torch::nn::Linear(900, 900)};
};

// Returns the contents of a checkpoint's file, after the comparison with its digests.
std::vector<char> contents_in(const TemporaryDirectory& path) {
  CheckpointDirectory directory(path.path());
  const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(1);
  if (!checkpoint) {
    ADD_FAILURE() << checkpoint.error().message();
    return {};
  }
  EXPECT_THAT(checkpoint->manifest.files, ElementsAre(testing::Field(&WrittenFile::name, kFile)));
  EXPECT_GT(checkpoint->manifest.files[0].chain_bytes, 0u);
  const Result<std::string> data = testing_support::verified_data(directory, checkpoint->manifest);
  if (data) return pickled(read_pickle(*data, kFile));
  ADD_FAILURE() << data.error().message();
  return {};
}

TEST(SharedWrite, TheFileHasTheContentsOfTheFileThatRank0Writes) {
  for (const int size : {2, 3})
    for (const bool asynchronous : {true, false}) {
      const TemporaryDirectory alone, together;
      in_a_world_of(size, [&](Context& context) {
        Learner learner;
        torch::optim::Adam optimizer(learner.net->parameters());
        TrainingState state = learner.trained_by(optimizer, context.rank());
        context.group().barrier();  // the ranks share a generator
        CheckpointManager(context, alone_in(alone)).save(1, state);
        CheckpointOptions options = together_in(together);
        options.asynchronous = asynchronous;
        CheckpointManager manager(context, options);
        manager.save(1, state);
        manager.wait();
        const std::string digest = digest_of(*learner.net);
        for (torch::Tensor tensor : learner.net->buffers()) tensor.fill_(0);
        EXPECT_EQ(manager.restore(state).step, 1);
        EXPECT_EQ(digest_of(*learner.net), digest);
        EXPECT_TRUE((learner.net->parameters()[0].grad() == context.rank()).all().item<bool>());
      });
      EXPECT_EQ(contents_in(together), contents_in(alone)) << size;
      EXPECT_THAT(testing_support::listing(together.path()),
                  testing::Not(testing::Contains(HasSubstr(".tmp"))));
    }
}

TEST(SharedWrite, RanksThatDoNotSeeTheDirectorySendTheirParts) {
  const TemporaryDirectory alone, together, elsewhere;
  in_a_world_of(3, [&](Context& context) {
    Learner learner;
    torch::optim::Adam optimizer(learner.net->parameters());
    const TrainingState state = learner.trained_by(optimizer, context.rank());
    context.group().barrier();
    CheckpointManager(context, alone_in(alone)).save(1, state);
    CheckpointManager manager(context, together_in(context.rank() > 0 ? elsewhere : together));
    manager.save(1, state);
    manager.wait();
  });
  EXPECT_EQ(contents_in(together), contents_in(alone));
  EXPECT_THAT(testing_support::listing(elsewhere.path()), testing::IsEmpty());
}

TEST(SharedWrite, OfAZeroOptimizerOverPartsOfTheWorldEveryStateIsThere) {
  const TemporaryDirectory alone, together;
  in_a_world_of(4, [&](Context& context) {
    const auto part = context.group().split(context.rank() % 2);
    Learner learner(Weights::kApart);
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(*part, learner.net->parameters(),
                                                           torch::optim::AdamWOptions(0.1));
    const TrainingState state = learner.trained_by(optimizer, context.rank());
    context.group().barrier();
    CheckpointManager(context, alone_in(alone)).save(1, state);
    CheckpointManager(context, together_in(together)).save(1, state);
    context.group().barrier();
  });
  EXPECT_EQ(contents_in(together), contents_in(alone));
}

// LosesOfSecond: a file system that keeps nothing of what a second opener writes.
struct LosesOfSecond : FileCalls {
  int open(const char* path, int flags, mode_t mode) override {
    const bool is_second = std::string(path).ends_with(".tmp") && (flags & O_CREAT) == 0;
    return FileCalls::open(is_second ? "/dev/null" : path, flags, mode);
  }
  int fsync(int) override { return 0; }
};

TEST(SharedWrite, AFileSystemThatLosesPartsIsNotBelieved) {
  const TemporaryDirectory together;
  in_a_world_of(2, [&](Context& context) {
    Learner learner;
    torch::optim::Adam optimizer(learner.net->parameters());
    const TrainingState state = learner.trained_by(optimizer, context.rank());
    CheckpointManager manager(context, together_in(together));
    LosesOfSecond calls;
    std::optional<ScopedFileCalls> scope;
    if (context.rank() == 0) scope.emplace(calls);
    context.group().barrier();
    manager.save(1, state);
    EXPECT_DIST_ERROR(manager.wait(), DistError::Kind::kSystem, HasSubstr("write_together_from"));
    context.group().barrier();
  });
  EXPECT_THAT(testing_support::listing(together.path()),
              testing::Not(testing::Contains(testing::StartsWith("step-"))));
}

// SecondOpeners: a file system that knows what was opened by a rank that has not made it.
struct SecondOpeners : FileCalls {
  int open(const char* path, int flags, mode_t mode) override {
    const int fd = FileCalls::open(path, flags, mode);
    if (fd >= 0) is_second[static_cast<std::size_t>(fd)] = is_of_second(path, flags);
    return fd;
  }
  static bool is_of_second(const char* path, int flags) {
    return std::string(path).ends_with(".tmp") && (flags & O_CREAT) == 0;
  }

  std::array<std::atomic<bool>, 1024> is_second{};
};

// LosesTails: keeps one page of a second opener's write, unless the file ends there.
struct LosesTails : SecondOpeners {
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    const std::string_view piece(static_cast<const char*>(data), bytes);
    const bool is_last = piece.find("PK\5\6") != std::string_view::npos;
    if (!is_second[static_cast<std::size_t>(fd)] || bytes <= kPage || is_last)
      return FileCalls::write(fd, data, bytes);
    if (FileCalls::write(fd, data, kPage) != static_cast<ssize_t>(kPage)) return -1;
    const bool has_moved = ::lseek(fd, static_cast<off_t>(bytes - kPage), SEEK_CUR) >= 0;
    return has_moved ? static_cast<ssize_t>(bytes) : -1;
  }

  static constexpr std::size_t kPage = 4096;
};

// SlowDisk: takes more than half of the timeout for each large write of a second opener.
struct SlowDisk : SecondOpeners {
  static constexpr Timeout kTimeout = std::chrono::seconds(4);

  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    if (is_second[static_cast<std::size_t>(fd)] && bytes > (16 << 10)) {
      testing_support::let_pass(kTimeout * 5 / 8);
      ++writes;
    }
    return FileCalls::write(fd, data, bytes);
  }

  std::atomic<int> writes = 0;
};

// FullMemory: memory is full when rank 0 opens the file for what another rank sends.
struct FullMemory : FileCalls {
  int open(const char* path, int flags, mode_t mode) override {
    if (SecondOpeners::is_of_second(path, flags)) throw std::bad_alloc();
    return FileCalls::open(path, flags, mode);
  }
};

// Saves with these file calls in a world. expect: waits for the save.
void save_with(FileCalls& calls, int size,
               const std::function<CheckpointOptions(int rank)>& options,
               const std::function<void(CheckpointManager&)>& expect) {
  in_a_world_of(size, [&](Context& context) {
    Learner learner;
    torch::optim::Adam optimizer(learner.net->parameters());
    const TrainingState state = learner.trained_by(optimizer, context.rank());
    CheckpointManager manager(context, options(context.rank()));
    std::optional<ScopedFileCalls> scope;
    if (context.rank() == 0) scope.emplace(calls);
    context.group().barrier();
    manager.save(1, state);
    expect(manager);
    context.group().barrier();
  });
}

TEST(SharedWrite, AFileSystemThatLosesTheEndOfAPartIsNotBelieved) {
  const TemporaryDirectory together;
  LosesTails calls;
  save_with(
      calls, 3, [&](int) { return together_in(together); },
      [](CheckpointManager& manager) {
        EXPECT_DIST_ERROR(manager.wait(), DistError::Kind::kSystem,
                          HasSubstr("write_together_from"));
      });
  EXPECT_THAT(testing_support::listing(together.path()),
              testing::Not(testing::Contains(testing::StartsWith("step-"))));
}

TEST(SharedWrite, ADiskThatTakesLongerThanTheTimeoutIsAwaitedWhileItWrites) {
  const TemporaryDirectory together;
  SlowDisk calls;
  save_with(
      calls, 2,
      [&](int) {
        CheckpointOptions options = together_in(together);
        options.disk_timeout = SlowDisk::kTimeout;
        return options;
      },
      [](CheckpointManager& manager) { manager.wait(); });
  EXPECT_GE(calls.writes, 2);
  EXPECT_FALSE(contents_in(together).empty());
}

TEST(SharedWrite, ARankWhoseMemoryIsFullIsReportedAndNotAwaited) {
  const TemporaryDirectory together, elsewhere;
  FullMemory calls;
  save_with(
      calls, 3,
      [&](int rank) {
        CheckpointOptions options = together_in(rank > 0 ? elsewhere : together);
        options.disk_timeout = std::chrono::seconds(30);
        return options;
      },
      [](CheckpointManager& manager) {
        EXPECT_DIST_ERROR(manager.wait(), DistError::Kind::kSystem, HasSubstr("out of memory"));
      });
}

TEST(SharedWrite, NothingIsSentAfterAFailure) {
  const TemporaryDirectory together, elsewhere;
  in_a_world_of(3, [&](Context& context) {
    Learner learner;
    torch::optim::Adam optimizer(learner.net->parameters());
    const TrainingState state = learner.trained_by(optimizer, context.rank());
    const GatheredState gathered = gather_for_save(
        context.group(), state,
        {.step = 1, .is_shared = [](std::int64_t) { return true; }, .timeout = kPatience});
    const PickleDict shard = shard_of(
        state, gathered.facts, ShardAssignment(state, context.rank(), 3, true), gathered.own);
    CheckpointDirectory directory((context.rank() == 2 ? elsewhere : together).path());
    const SharedWrite options{.name = kFile, .timeout = kPatience, .on_progress = [&] {
                                if (context.rank() == 0) throw std::runtime_error("failed once");
                              }};
    EXPECT_DIST_ERROR(write_together(context.group(), directory, shard, options),
                      DistError::Kind::kSystem, HasSubstr("failed once"));
  });
  EXPECT_THAT(testing_support::listing(together.path()), testing::IsEmpty());
}

}  // namespace
}  // namespace ddprun
