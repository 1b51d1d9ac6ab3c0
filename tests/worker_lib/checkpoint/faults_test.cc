// Tests failures of file operations: each call fails once, and the power fails after each call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/rng.h"
#include "tests/support/failing_file_calls.h"
#include "tests/support/recorded_disk.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_seed.h"
#include "tests/worker_lib/support/verified_data.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using testing_support::FailingFileCalls;
using testing_support::FileFault;
using testing_support::FilesWithoutFsync;
using testing_support::listing;
using testing_support::RecordedDisk;
using testing_support::TemporaryDirectory;
using testing_support::verified_data;

std::string random_bytes(std::uint64_t seed, std::size_t count) {
  Rng rng(seed);
  std::string text;
  while (text.size() < count) {
    const std::uint64_t word = rng.next();
    text.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  text.resize(count);
  return text;
}

// Announces a checkpoint whose data comes in pieces, so that large data takes several calls of
// write().
Result<void> announce(CheckpointDirectory& directory, std::int64_t step, const std::string& data) {
  constexpr std::size_t kPieceBytes = 700 << 10;
  const Result<AnnouncedCheckpoint> announced = directory.announce(
      {.step = step, .epoch = 1, .generation = 2, .world_size = 3}, [&](AtomicFile& file) {
        for (std::size_t at = 0; at < data.size(); at += kPieceBytes)
          file.write(data.data() + at, std::min(kPieceBytes, data.size() - at));
      });
  if (!announced) return announced.error();
  return {};
}

Result<std::string> load(const CheckpointDirectory& directory, std::int64_t step) {
  const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
  if (!checkpoint) return checkpoint.error();
  return verified_data(directory, checkpoint->manifest);
}

// --- calls that fail -----------------------------------------------------------------------------

// Story: an operation on a directory that holds steps 1 and 2.
struct Story {
  const char* name;
  std::size_t bytes;  // size of the data that is saved
  // True if a failure of any call is reported. Otherwise failures after the announcement are
  // not.
  bool is_all_told;
  bool is_start;  // the story saves nothing if it fails
  Result<void> (*tell)(CheckpointDirectory& directory, const std::string& data);
};

constexpr Story kStories[] = {
    {"a new step", 1500, true, false,
     [](CheckpointDirectory& directory, const std::string& data) {
       return announce(directory, 3, data);
     }},
    {"a new step in several writes", (8 << 20) + 700, true, false,
     [](CheckpointDirectory& directory, const std::string& data) {
       return announce(directory, 3, data);
     }},
    {"a new step, and the oldest is forgotten", 1500, true, false,
     [](CheckpointDirectory& directory, const std::string& data) {
       const Result<void> announced = announce(directory, 3, data);
       return announced ? directory.forget(1) : announced;
     }},
    {"step 2 again", 1500, false, false,
     [](CheckpointDirectory& directory, const std::string& data) {
       return announce(directory, 2, data);
     }},
    {"after a killed save", 1500, true, true,
     [](CheckpointDirectory& directory, const std::string&) {
       for (const char* name : {"step-000000000003.pt", "step-000000000003.json.0a.tmp"})
         EXPECT_TRUE(std::ofstream(directory.path_of(name)) << "x");
       return directory.prepare();
     }},
};

constexpr FileFault kFaults[] = {{.sys_errno = EIO},
                                 {.sys_errno = ENOSPC},
                                 {.sys_errno = EINTR},
                                 {.sys_errno = 0},
                                 {.sys_errno = EIO, .is_lasting = true}};

// Returns true if the save must succeed in spite of the fault. The rest of a short write is
// written, and a call that a signal interrupted is repeated, except rename() and unlink().
bool is_borne(const FileFault& fault, const std::string& call) {
  const bool may_have_happened = call.starts_with("rename") || call.starts_with("unlink");
  return fault.sys_errno == 0 || (fault.sys_errno == EINTR && !may_have_happened);
}

// Runs a story with a fault and checks the outcome. Returns false if the story has no such
// call.
bool tell(const Story& story, const std::string& third, const FileFault& fault) {
  const TemporaryDirectory temporary;
  CheckpointDirectory directory(temporary.path());
  const std::string first = random_bytes(1, 1500), second = random_bytes(2, 1500);
  {
    FilesWithoutFsync quick;
    const ScopedFileCalls scope(quick);
    EXPECT_TRUE(announce(directory, 1, first) && announce(directory, 2, second));
  }
  FailingFileCalls calls(fault);
  const Result<void> outcome = [&] {
    const ScopedFileCalls scope(calls);
    return story.tell(directory, third);
  }();
  if (calls.met().empty()) {
    EXPECT_TRUE(outcome) << outcome.error().message();
    return false;
  }
  SCOPED_TRACE(calls.met() + ": " + std::strerror(fault.sys_errno));
  if (is_borne(fault, calls.met())) {
    EXPECT_TRUE(outcome) << outcome.error().message();
  } else if (story.is_all_told) {
    EXPECT_FALSE(outcome);
  }
  if (!outcome) {
    EXPECT_THAT(outcome.error().message(),
                HasSubstr(story.is_start ? fs::path(temporary.path()).parent_path().string()
                                         : temporary.path()));
    EXPECT_THAT(outcome.error().message(), HasSubstr(std::strerror(fault.sys_errno)));
  }

  FilesWithoutFsync quick;
  const ScopedFileCalls scope(quick);
  if (!outcome && story.is_start) {
    EXPECT_TRUE(directory.prepare());
  }
  const std::vector<std::int64_t> steps = *directory.steps();
  EXPECT_THAT(steps, testing::Contains(2));
  for (const std::int64_t step : steps) {
    const Result<std::string> data = load(directory, step);
    EXPECT_TRUE(data) << data.error().message();
    EXPECT_TRUE(data && (*data == third || *data == (step == 1 ? first : second))) << step;
  }
  if (!fault.is_lasting && !calls.met().starts_with("unlink")) {
    EXPECT_THAT(listing(temporary.path()), Not(testing::Contains(HasSubstr(".tmp"))));
  }

  EXPECT_TRUE(announce(directory, 4, second));
  EXPECT_EQ(*load(directory, 4), second);
  EXPECT_EQ(listing(temporary.path()).size(), 2 * directory.steps()->size())
      << "the next save removes what could not be removed";
  return true;
}

TEST(CheckpointFaults, WhateverCallFailsWhatWasThereStaysTheErrorNamesItAndTheNextSaveWorks) {
  for (const Story& story : kStories) {
    const std::string data = random_bytes(3, story.bytes);
    for (FileFault fault : kFaults) {
      SCOPED_TRACE(story.name);
      while (tell(story, data, fault) && !testing::Test::HasFailure()) ++fault.call;
      EXPECT_GT(fault.call, 3) << "the story has calls that can fail";
    }
  }
}

// --- power loss ----------------------------------------------------------------------------------

// SavingRun: a run that saves on a recorded disk. It may be killed. It knows which saves must
// survive.
class SavingRun {
 public:
  explicit SavingRun(RecordedDisk& disk, std::string path)
      : disk_(disk), directory_(std::move(path)) {}

  CheckpointDirectory& directory() { return directory_; }

  void save(std::int64_t step) {
    saves_.push_back({step, random_bytes(saves_.size(), 150)});
    if (announce(directory_, step, saves_.back().data))
      promises_.push_back({disk_.calls(), static_cast<int>(saves_.size()) - 1});
  }

  // Returns the newest complete save in this directory, or -1 for none. Passes over damaged
  // ones. The test fails if a checkpoint loads with data that was never saved.
  int newest_in(const CheckpointDirectory& directory) const {
    for (const std::int64_t step : *directory.steps()) {
      const Result<std::string> data = load(directory, step);
      if (!data) continue;
      for (std::size_t i = 0; i < saves_.size(); ++i)
        if (saves_[i].step == step && saves_[i].data == *data) return static_cast<int>(i);
      ADD_FAILURE() << "step " << step << " loads, and was never saved";
    }
    return -1;
  }
  std::int64_t step_of(int save) const {
    return save < 0 ? 0 : saves_[static_cast<std::size_t>(save)].step;
  }

  // Returns the newest save that was announced within the first `calls` calls, or -1.
  int promised_after(std::size_t calls) const {
    int promised = -1;
    for (const Promise& promise : promises_)
      if (promise.after_calls <= calls) promised = promise.save;
    return promised;
  }

 private:
  struct Save {
    std::int64_t step;
    std::string data;
  };
  struct Promise {
    std::size_t after_calls;
    int save;
  };

  RecordedDisk& disk_;
  CheckpointDirectory directory_;
  std::vector<Save> saves_;
  std::vector<Promise> promises_;
};

void tell_first_part(SavingRun& run) {
  if (!run.directory().prepare()) return;
  run.save(1);
  run.save(1);
  run.save(2);
  (void)run.directory().forget(1);
}

// Does what a restarted job does: it finds the newest step, saves it again, saves a later step,
// and removes what is older.
void tell_second_part(SavingRun& run, std::size_t calls_at_kill) {
  EXPECT_TRUE(run.directory().prepare());
  const int found = run.newest_in(run.directory());
  EXPECT_GE(found, run.promised_after(calls_at_kill));
  const std::int64_t step = std::max<std::int64_t>(run.step_of(found), 1);
  run.save(step);
  run.save(step + 1);
  for (const std::int64_t old : *run.directory().steps())
    if (old < step + 1) (void)run.directory().forget(old);
}

// Loses the power after each call from `first` on. Whatever the disk then holds, the newest
// announced save or a later one must be found, and the next run must work. Returns the number
// of different disks.
int lose_power_after_each_call(const RecordedDisk& disk, const SavingRun& run, std::size_t first,
                               Rng& rng) {
  std::map<RecordedDisk::Image, int> newest_in;  // many images are equal
  for (std::size_t calls = first; calls <= disk.calls(); ++calls) {
    for (const RecordedDisk::Image& image : disk.images_after(calls, rng)) {
      const auto [found, is_new] = newest_in.try_emplace(image, -1);
      if (is_new) {
        const TemporaryDirectory temporary;
        RecordedDisk::write(image, temporary.path());
        FilesWithoutFsync quick;
        const ScopedFileCalls scope(quick);
        CheckpointDirectory directory(temporary / "a/run");
        found->second = run.newest_in(directory);
        EXPECT_TRUE(directory.prepare());
        EXPECT_EQ(run.newest_in(directory), found->second) << "prepare() removed what was whole";
        const std::int64_t next = run.step_of(found->second) + 1;
        EXPECT_TRUE(announce(directory, next, "next"));
        EXPECT_EQ(*load(directory, next), "next");
      }
      EXPECT_GE(found->second, run.promised_after(calls)) << "after " << calls << " calls";
      if (testing::Test::HasFailure()) return 0;
    }
  }
  return static_cast<int>(newest_in.size());
}

TEST(CheckpointFaults, WhereverThePowerGoesWhatWasAnnouncedIsThere) {
  const std::uint64_t seed = testing_support::test_seed(20260101);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  const TemporaryDirectory temporary;
  RecordedDisk disk(temporary.path());
  SavingRun run(disk, temporary / "a/run");
  {
    const ScopedFileCalls scope(disk);
    tell_first_part(run);
    tell_second_part(run, disk.calls());
  }
  ASSERT_EQ(run.step_of(run.promised_after(disk.calls())), 3);
  EXPECT_GT(lose_power_after_each_call(disk, run, 0, rng), 80) << "there were disks of many kinds";
}

// A kill loses no written data. But it leaves the disk in states that an undisturbed run never
// leaves.
TEST(CheckpointFaults, WhereverThePowerGoesAfterAKillWhatWasAnnouncedIsThere) {
  const std::uint64_t seed = testing_support::test_seed(20260102);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  for (std::size_t killed_after = 0;; ++killed_after) {
    const TemporaryDirectory temporary;
    RecordedDisk disk(temporary.path());
    SavingRun run(disk, temporary / "a/run");
    {
      const ScopedFileCalls scope(disk);
      disk.kill_after(killed_after);
      tell_first_part(run);
      if (disk.calls() < killed_after) break;
      disk.revive();
      tell_second_part(run, killed_after);
    }
    SCOPED_TRACE("killed after call " + std::to_string(killed_after));
    lose_power_after_each_call(disk, run, killed_after, rng);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace ddprun
