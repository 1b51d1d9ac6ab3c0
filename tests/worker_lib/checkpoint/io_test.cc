#include "worker_lib/checkpoint/io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file_calls.h"
#include "base/rng.h"
#include "tests/support/killed_child.h"
#include "tests/support/read_file.h"
#include "tests/support/recorded_disk.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_seed.h"
#include "tests/worker_lib/support/verified_data.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using testing_support::FilesWithoutFsync;
using testing_support::KilledChild;
using testing_support::listing;
using testing_support::read_file;
using testing_support::TemporaryDirectory;
using testing_support::verified_data;

// Returns the contents of the data file of a step in these tests.
std::string payload(std::int64_t step, std::size_t bytes = 3000) {
  Rng rng(static_cast<std::uint64_t>(step));
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(rng.next());
  return text;
}

Result<AnnouncedCheckpoint> announce(CheckpointDirectory& directory, std::int64_t step,
                                     const std::string& data) {
  return directory.announce({.step = step, .epoch = step / 10, .generation = 2, .world_size = 3},
                            [&](AtomicFile& file) { file.write(data.data(), data.size()); });
}

void overwrite(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// Returns why the checkpoint of `step` is not whole, or an empty text if it is whole.
std::string damage(const CheckpointDirectory& directory, std::int64_t step) {
  const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
  if (!checkpoint) return checkpoint.error().message();
  const Result<void> whole = directory.verify(checkpoint->manifest);
  return whole ? "" : whole.error().message();
}

class CheckpointIo : public testing::Test {
 protected:
  CheckpointIo() { EXPECT_TRUE(directory_.prepare()); }

  TemporaryDirectory temporary_;
  CheckpointDirectory directory_{temporary_ / "a/b"};
};

// The chain only makes reading faster.
TEST_F(CheckpointIo, AManifestThatIsTooLargeWithItsChainHasNone) {
  WrittenFile file{.name = "step-000000000005.pt",
                   .bytes = (std::uint64_t{1} << 16) * 64,
                   .sha256 = std::string(64, 'a'),
                   .chain_bytes = 64};
  file.chain.assign(chain_states(file.bytes, file.chain_bytes) * kChainDigits, 'b');
  const auto announced = directory_.announce(
      CheckpointManifest{.step = 5, .data = std::string(13 << 20, 'd'), .files = {file}});
  ASSERT_TRUE(announced) << announced.error().message();
  const auto read = directory_.read_manifest(5);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->manifest.files[0].chain_bytes, 0u);
  EXPECT_EQ(read->manifest, announced->manifest);
}

TEST_F(CheckpointIo, ReadsBackWhatWasAnnounced) {
  // The data is larger than the write buffer, and comes in pieces of irregular sizes.
  const std::string data = payload(1, (3 << 20) + 17);
  const auto written = directory_.announce(
      {.step = 5, .epoch = 1, .generation = 2, .world_size = 3}, [&](AtomicFile& file) {
        for (std::size_t at = 0, n = 1; at < data.size(); n *= 3) {
          const std::size_t size = std::min(n, data.size() - at);
          file.write(data.data() + at, size);
          at += size;
        }
      });
  ASSERT_TRUE(written) << written.error().message();
  const auto read = directory_.read_manifest(5);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->manifest, written->manifest);
  EXPECT_EQ(read->identity, written->identity);
  EXPECT_EQ(read->manifest.generation, 2);
  EXPECT_THAT(read->manifest.files,
              ElementsAre(WrittenFile{"step-000000000005.pt", data.size(), sha256_hex(data)}));
  const auto bytes = verified_data(directory_, read->manifest);
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_TRUE(std::equal(bytes->begin(), bytes->end(), data.begin(), data.end()));
  EXPECT_THAT(listing(directory_.path()),
              ElementsAre("step-000000000005.json", "step-000000000005.pt"));
}

TEST_F(CheckpointIo, ListsStepsNewestFirstAndAMissingDirectoryHasNone) {
  for (const int step : {10, 30, 20}) ASSERT_TRUE(announce(directory_, step, "x"));
  EXPECT_THAT(*directory_.steps(), ElementsAre(30, 20, 10));
  EXPECT_THAT(*CheckpointDirectory(temporary_ / "none").steps(), IsEmpty());
}

TEST_F(CheckpointIo, AStepThatIsSavedAgainReplacesTheFirstOne) {
  ASSERT_TRUE(announce(directory_, 5, "first"));
  ASSERT_TRUE(announce(directory_, 5, "second"));
  const auto checkpoint = directory_.read_manifest(5);
  EXPECT_EQ(verified_data(directory_, checkpoint->manifest).value(), "second");
  EXPECT_THAT(listing(directory_.path()),
              ElementsAre("step-000000000005-2.pt", "step-000000000005.json"));
}

TEST_F(CheckpointIo, EveryFlippedBitIsNoticed) {
  ASSERT_TRUE(announce(directory_, 5, payload(5, 200)));
  for (const std::string& name : listing(directory_.path())) {
    const std::string whole = read_file(directory_.path_of(name));
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] ^= static_cast<char>(1 << (bit % 8));
      overwrite(directory_.path_of(name), flipped);
      const std::string why = damage(directory_, 5);
      ASSERT_THAT(why, HasSubstr(name)) << "bit " << bit;
    }
    overwrite(directory_.path_of(name), whole);
  }
  EXPECT_EQ(damage(directory_, 5), "");
}

TEST_F(CheckpointIo, EveryCutOrLengthenedFileIsNoticed) {
  ASSERT_TRUE(announce(directory_, 5, payload(5, 200)));
  for (const std::string& name : listing(directory_.path())) {
    const std::string whole = read_file(directory_.path_of(name));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      overwrite(directory_.path_of(name), whole.substr(0, size));
      ASSERT_THAT(damage(directory_, 5), HasSubstr(name)) << size << " bytes";
    }
    overwrite(directory_.path_of(name), whole + " ");
    EXPECT_THAT(damage(directory_, 5), HasSubstr(name));
    overwrite(directory_.path_of(name), whole);
  }
  EXPECT_EQ(damage(directory_, 5), "");
}

TEST_F(CheckpointIo, AMissingFileIsNamed) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  fs::remove(directory_.path_of("step-000000000005.pt"));
  EXPECT_THAT(damage(directory_, 5), HasSubstr("step-000000000005.pt: No such file"));
}

TEST_F(CheckpointIo, AManifestOfAnotherStepIsRefused) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  fs::copy(directory_.path_of("step-000000000005.json"),
           directory_.path_of("step-000000000006.json"));
  EXPECT_THAT(damage(directory_, 6), HasSubstr("it is the manifest of step 5"));
}

// A forged manifest with a correct digest must not make us read another file, or too much data.
TEST_F(CheckpointIo, AForgedManifestIsReadWithCare) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  const std::string path = directory_.path_of("step-000000000005.json");
  const auto original = nlohmann::json::parse(read_file(path));
  const auto forge = [&](const char* pointer, nlohmann::json value) {
    nlohmann::json document = original;
    document.erase("manifest_sha256");
    document[nlohmann::json::json_pointer(pointer)] = std::move(value);
    document["manifest_sha256"] = sha256_hex(document.dump());
    overwrite(path, document.dump(1) + "\n");
    return damage(directory_, 5);
  };
  EXPECT_THAT(forge("/files/0/name", "../../etc/passwd"), HasSubstr("does not name one data file"));
  EXPECT_THAT(forge("/files/0/name", "step-000000000006.pt"), HasSubstr("does not name one"));
  EXPECT_THAT(forge("/files", nlohmann::json::array()), HasSubstr("does not name one data file"));
  EXPECT_THAT(forge("/files/0/bytes", "many"), HasSubstr("step-000000000005.json"));
  EXPECT_THAT(forge("/format", 9), HasSubstr("format 9, this program reads format 1"));
  EXPECT_EQ(forge("/later_key", 1), "") << "keys that later versions add do not disturb";
}

TEST_F(CheckpointIo, FieldsOfTheWrongTypeAreNamedInOneLine) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  const std::string path = directory_.path_of("step-000000000005.json");
  const auto original = nlohmann::json::parse(read_file(path));
  for (const char* field :
       {"/format", "/step", "/epoch", "/generation", "/world_size", "/claim", "/metric", "/model",
        "/data", "/files", "/files/0", "/files/0/name", "/files/0/bytes", "/files/0/sha256"})
    for (const nlohmann::json& value :
         {nlohmann::json(nullptr), nlohmann::json(true), nlohmann::json(-1), nlohmann::json(1e300),
          nlohmann::json("1"), nlohmann::json(~std::uint64_t{0}), nlohmann::json::array({1}),
          nlohmann::json{{"a", 1}}}) {
      const std::string name(field);
      if (name == "/metric" && value.is_number()) continue;
      if (value.is_string() && (name == "/model" || name == "/data")) continue;
      // Some programs count from -1.
      if (value == -1 && (name == "/epoch" || name == "/generation")) continue;
      nlohmann::json document = original;
      document.erase("manifest_sha256");
      document[nlohmann::json::json_pointer(field)] = value;
      document["manifest_sha256"] = sha256_hex(document.dump());
      overwrite(path, document.dump(1) + "\n");
      const std::string wrong = damage(directory_, 5);
      EXPECT_THAT(wrong, HasSubstr("/step-000000000005.")) << field << " " << value;
      EXPECT_THAT(wrong, testing::Not(HasSubstr("\n"))) << field << " " << value;
      EXPECT_THAT(wrong, testing::Not(HasSubstr("json.exception"))) << field << " " << value;
    }
}

// A parser would overflow its stack on a megabyte of "[".
TEST_F(CheckpointIo, AManifestBeyondTheReadersBoundsIsNotCalledDamaged) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  const std::string path = directory_.path_of("step-000000000006.json");
  const auto error_of = [&] {
    const auto read = directory_.read_manifest(6);
    EXPECT_FALSE(read);
    EXPECT_EQ(read.error().kind, ErrorKind::kResource);
    EXPECT_THAT(read.error().message(), HasSubstr(path));
    return read.error().message();
  };
  overwrite(path, std::string(1 << 20, '['));
  EXPECT_THAT(error_of(), HasSubstr("nested deeper than 16"));
  overwrite(path, "{\"a\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}\n");
  EXPECT_THAT(error_of(), HasSubstr("nested deeper than 16"));
  overwrite(path, std::string(5 << 20, ','));
  EXPECT_THAT(error_of(), HasSubstr("values"));
  fs::resize_file(path, std::uintmax_t{1} << 40);
  EXPECT_THAT(error_of(), HasSubstr("bytes"));
  EXPECT_EQ(damage(directory_, 5), "");
}

TEST_F(CheckpointIo, ASaveOfTheSameStepSetsAsideWhatIsBeyondTheReadersBounds) {
  ASSERT_TRUE(announce(directory_, 5, "of a later version"));
  overwrite(directory_.path_of("step-000000000005.json"), std::string(1 << 20, '['));
  for (const char* text : {"first", "again"}) ASSERT_TRUE(announce(directory_, 5, text));
  ASSERT_TRUE(announce(directory_, 6, "next"));
  ASSERT_TRUE(directory_.prepare());
  EXPECT_EQ(damage(directory_, 5), "");
  EXPECT_EQ(fs::file_size(directory_.path_of("step-000000000005.json.unread")), 1u << 20);
  EXPECT_EQ(testing_support::read_file(directory_.path_of("step-000000000005.pt")),
            "of a later version");
  EXPECT_FALSE(fs::exists(directory_.path_of("step-000000000005-2.pt"))) << "of the first save";
}

// NoNewManifest: a disk that fails when a manifest is replaced. A kill just before has the same
// effect.
struct NoNewManifest : FileCalls {
  int rename(const char* from, const char* to) override {
    if (!std::string_view(to).ends_with(".json")) return FileCalls::rename(from, to);
    errno = EIO;
    return -1;
  }
};

TEST_F(CheckpointIo, AManifestThatIsSetAsideKeepsItsNameUntilTheNewOneIsThere) {
  ASSERT_TRUE(announce(directory_, 5, "of a later version"));
  const std::string path = directory_.path_of("step-000000000005.json");
  overwrite(path, std::string(1 << 20, '['));
  for (int attempt = 0; attempt < 2; ++attempt) {
    NoNewManifest calls;
    const ScopedFileCalls scope(calls);
    EXPECT_FALSE(announce(directory_, 5, "new"));
    EXPECT_EQ(fs::file_size(path), 1u << 20);
    EXPECT_EQ(fs::file_size(path + ".unread"), 1u << 20);
  }
  ASSERT_TRUE(announce(directory_, 5, "new"));
  EXPECT_EQ(damage(directory_, 5), "");
  EXPECT_EQ(fs::file_size(path + ".unread"), 1u << 20);
}

TEST_F(CheckpointIo, WhatIsNoRegularFileIsRefusedAtOnce) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  ASSERT_EQ(mkfifo(directory_.path_of("step-000000000006.json").c_str(), 0600), 0);
  fs::create_directory(directory_.path_of("step-000000000007.json"));
  EXPECT_THAT(damage(directory_, 6), HasSubstr("it is a FIFO, not a regular file"));
  EXPECT_THAT(damage(directory_, 7), HasSubstr("it is a directory, not a regular file"));
  const std::string data = directory_.path_of("step-000000000005.pt");
  fs::remove(data);
  ASSERT_EQ(mkfifo(data.c_str(), 0600), 0);
  EXPECT_THAT(damage(directory_, 5), HasSubstr(data + ": it is a FIFO"));
}

std::vector<WrittenFile> many_files(std::size_t count) {
  std::vector<WrittenFile> files;
  for (std::size_t i = 0; i < count; ++i)
    files.push_back({shard_name("step-000000000100.pt", static_cast<int>(i)), 12345678901,
                     sha256_hex(std::to_string(i))});
  return files;
}

TEST_F(CheckpointIo, AManifestOfManyShardsIsReadAsItWasWritten) {
  const CheckpointManifest manifest{.step = 100, .world_size = 20000, .files = many_files(20000)};
  const auto written = directory_.announce(manifest);
  ASSERT_TRUE(written) << written.error().message();
  const auto read = directory_.read_manifest(100);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->manifest, manifest);
}

TEST_F(CheckpointIo, AManifestThatIsTooLargeIsNotAnnounced) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  overwrite(directory_.path_of("step-000000000100.shard-0000.pt"), "of this save");
  const auto written = directory_.announce({.step = 100, .files = many_files(150000)});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(written.error().message(), HasSubstr("a manifest of 150000 files"));
  EXPECT_THAT(listing(directory_.path()),
              ElementsAre("step-000000000005.json", "step-000000000005.pt"));
}

TEST_F(CheckpointIo, PrepareRemovesLeftoversAndNothingElse) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  for (const char* name : {"step-000000000006.pt", "step-000000000006.json.0a.tmp",
                           "step-000000000007.pt.0b.tmp", "notes.txt"})
    overwrite(directory_.path_of(name), "y");
  ASSERT_TRUE(directory_.prepare());
  EXPECT_THAT(listing(directory_.path()),
              UnorderedElementsAre("step-000000000005.json", "step-000000000005.pt", "notes.txt"));
}

TEST_F(CheckpointIo, ForgetRemovesAllOfACheckpointEvenOfADamagedOne) {
  ASSERT_TRUE(announce(directory_, 5, "x"));
  ASSERT_TRUE(announce(directory_, 6, "y"));
  overwrite(directory_.path_of("step-000000000005.json"), "{");
  ASSERT_TRUE(directory_.forget(5));
  EXPECT_THAT(listing(directory_.path()),
              ElementsAre("step-000000000006.json", "step-000000000006.pt"));
  ASSERT_TRUE(directory_.forget(6));
  EXPECT_THAT(listing(directory_.path()), IsEmpty());
}

TEST_F(CheckpointIo, ADirectoryThatIsAFileIsNamed) {
  overwrite(temporary_ / "file", "");
  CheckpointDirectory directory(temporary_ / "file");
  const Result<void> prepared = directory.prepare();
  ASSERT_FALSE(prepared);
  EXPECT_THAT(prepared.error().message(), HasSubstr(temporary_ / "file"));
  EXPECT_FALSE(directory.steps());
}

// Saves one checkpoint after the other, in a child process, and reports each one that was
// announced.
void save_for_ever(const std::string& path, std::int64_t first_step,
                   const KilledChild::Tell& tell) {
  CheckpointDirectory directory(path);
  if (!directory.prepare()) return;
  for (std::int64_t step = first_step;; ++step) {
    if (!announce(directory, step, payload(step, 20000))) return;
    tell(step);
    if (step >= first_step + 2 && !directory.forget(step - 2)) return;
  }
}

TEST_F(CheckpointIo, KilledAtAnyInstantTheNewestAnnouncedCheckpointIsWhole) {
  const std::uint64_t seed = testing_support::test_seed(20240611);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  std::int64_t newest = 0;
  int interrupted = 0;
  // DDPRUN_SAVE_KILLS is the number of kills.
  const auto kills = static_cast<int>(testing_support::number_from("DDPRUN_SAVE_KILLS", 100));
  for (int round = 0; round < kills; ++round) {
    KilledChild saver([&](const KilledChild::Tell& tell) {
      // With fsync, nearly all kills would come while the child waits for the disk.
      FilesWithoutFsync quick;
      std::optional<ScopedFileCalls> scope;
      if (round % 5 != 0) scope.emplace(quick);
      save_for_ever(directory_.path(), newest + 1, tell);
    });
    const std::int64_t told =
        saver.kill_after(static_cast<int>(rng.below(3)), std::chrono::microseconds(rng.below(2000)),
                         /*none=*/newest);
    ASSERT_TRUE(saver.was_killed());
    const auto before = listing(directory_.path());
    ASSERT_TRUE(directory_.prepare());
    interrupted += before != listing(directory_.path());
    const auto steps = *directory_.steps();
    for (const std::int64_t step : steps) ASSERT_EQ(damage(directory_, step), "") << step;
    const std::int64_t found = steps.empty() ? 0 : steps.front();
    ASSERT_GE(found, told);
    ASSERT_LE(found, told + 1);  // announced, but killed before the report
    if (found > 0) {
      const auto data = verified_data(directory_, directory_.read_manifest(found)->manifest);
      ASSERT_EQ(data.value(), payload(found, 20000));
    }
    ASSERT_LE(listing(directory_.path()).size(), 2 * steps.size());
    newest = found;
  }
  EXPECT_GT(newest, kills / 10) << "the saver got somewhere";
  EXPECT_GT(interrupted, kills / 20) << "the kills came in the middle of saves";
}

TEST_F(CheckpointIo, AFullDiskLeavesTheEarlierCheckpointsAsTheyWere) {
  const testing_support::SmallDisk disk(temporary_ / "disk", "size=256k");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs root: " << strerror(errno);
  CheckpointDirectory directory(temporary_ / "disk");
  ASSERT_TRUE(directory.prepare());
  std::int64_t step = 1;
  Result<AnnouncedCheckpoint> last = announce(directory, step, payload(step, 50000));
  while (last && step < 100) {
    ++step;
    last = announce(directory, step, payload(step, 50000));
  }
  ASSERT_FALSE(last);
  EXPECT_THAT(last.error().message(), HasSubstr(directory.path() + "/step-"));
  EXPECT_THAT(last.error().message(), HasSubstr("No space left on device"));
  EXPECT_EQ(*directory.steps()->begin(), step - 1);
  for (const std::int64_t whole : *directory.steps()) EXPECT_EQ(damage(directory, whole), "");
  // No temporary file takes up space.
  for (const std::string& name : listing(directory.path()))
    EXPECT_THAT(name, Not(HasSubstr(".tmp")));
  ASSERT_TRUE(directory.forget(1));
  EXPECT_TRUE(announce(directory, step, payload(step, 50000)));
}

TEST_F(CheckpointIo, AFullDiskAtTheManifestLeavesNoTrace) {
  // The disk has an inode for the root and one for the data file, but none for the manifest.
  const testing_support::SmallDisk disk(temporary_ / "disk", "size=256k,nr_inodes=2");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs root: " << strerror(errno);
  CheckpointDirectory directory(temporary_ / "disk");
  const auto failed = announce(directory, 1, "x");
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("step-000000000001.json"));
  EXPECT_THAT(listing(directory.path()), IsEmpty());
}

}  // namespace
}  // namespace ddprun
