#include "rendezvous/persistence/state_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/support/file_size_limit.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using testing_support::FileSizeLimit;
using testing_support::TemporaryDirectory;

class StateDirectoryTest : public testing::Test {
 protected:
  StateDirectory open(std::size_t compact_bytes = StateDirectory::kCompactBytes) {
    Result<StateDirectory> opened = StateDirectory::open(path_, compact_bytes);
    EXPECT_TRUE(opened) << opened.error().message();
    return std::move(*opened);
  }
  static Result<void> write(StateDirectory& directory, const std::string& key,
                            const std::string& value) {
    const JournalEntry entry{key, value};
    return directory.write({&entry, 1});
  }
  std::string journal() const { return testing_support::read_file(path_ + "/journal"); }
  void set_journal(const std::string& bytes) const {
    std::ofstream(path_ + "/journal", std::ios::binary) << bytes;
  }

  TemporaryDirectory temporary_;
  std::string path_ = temporary_ / "a/state";
};

TEST_F(StateDirectoryTest, WhatWasWrittenIsThereAgain) {
  {
    StateDirectory directory = open();
    EXPECT_TRUE(directory.is_new());
    ASSERT_TRUE(write(directory, "a", "1"));
    ASSERT_TRUE(write(directory, "b", "2"));
    ASSERT_TRUE(write(directory, "a", ""));
  }
  const StateDirectory again = open();
  EXPECT_FALSE(again.is_new());
  EXPECT_EQ(again.image(), (JournalImage{{"b", "2"}}));
}

TEST_F(StateDirectoryTest, HasOneOwnerAtATime) {
  {
    const StateDirectory first = open();
    const Result<StateDirectory> second = StateDirectory::open(path_);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().kind, ErrorKind::kResource);
    EXPECT_THAT(second.error().message(), HasSubstr(path_));
  }
  open();
}

TEST_F(StateDirectoryTest, CutsATornTailOffAndGoesOn) {
  {
    StateDirectory directory = open();
    ASSERT_TRUE(write(directory, "a", "1"));
  }
  const std::string whole = journal();
  set_journal(whole + journal_frame(std::vector<JournalEntry>{{"a", "2"}}).substr(0, 9));
  {
    StateDirectory directory = open();
    EXPECT_EQ(directory.cut_bytes(), 9u);
    EXPECT_EQ(journal(), whole);
    EXPECT_EQ(directory.image().at("a"), "1");
    ASSERT_TRUE(write(directory, "a", "3"));
  }
  EXPECT_EQ(open().image().at("a"), "3");
}

TEST_F(StateDirectoryTest, RefusesADamagedMiddleAndSaysWhereAndWhatToDo) {
  {
    StateDirectory directory = open();
    ASSERT_TRUE(write(directory, "a", "1"));
    ASSERT_TRUE(write(directory, "a", "2"));
  }
  const std::size_t offset = journal_snapshot({}).size();
  std::string bytes = journal();
  bytes[offset + 13] ^= 1;
  set_journal(bytes);
  const Result<StateDirectory> refused = StateDirectory::open(path_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kCorrupt);
  for (const std::string& part : {path_ + "/journal", "offset " + std::to_string(offset) + ":",
                                  std::string("move it away")}) {
    EXPECT_THAT(refused.error().message(), HasSubstr(part));
  }
  EXPECT_EQ(journal(), bytes) << "it is left as it is";
}

TEST_F(StateDirectoryTest, StaysSmallWhateverIsWrittenToIt) {
  const std::string value(200, 'v');
  std::size_t largest = 0;
  {
    StateDirectory directory = open(4096);
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(write(directory, "key" + std::to_string(i % 10), value + std::to_string(i)));
      largest = std::max(largest, journal().size());
    }
  }
  EXPECT_LT(largest, 4u * 2400 + 4096 + 500);
  const StateDirectory again = open();
  EXPECT_EQ(again.image().size(), 10u);
  EXPECT_EQ(again.image().at("key9"), value + "299");
  EXPECT_FALSE(std::filesystem::exists(path_ + "/journal.new"));
}

// The disk is full after each possible number of bytes that a write may have left there.
TEST_F(StateDirectoryTest, AFullDiskLosesNothingAndIsWrittenWhenThereIsRoom) {
  const std::size_t frame = journal_frame(std::vector<JournalEntry>{{"a", "second"}}).size();
  for (std::size_t room = 0; room < frame; ++room) {
    SCOPED_TRACE(room);
    std::filesystem::remove_all(path_);
    {
      StateDirectory directory = open();
      ASSERT_TRUE(write(directory, "a", "first"));
      const std::string before = journal();
      {
        const FileSizeLimit limit(before.size() + room);
        const Result<void> refused = write(directory, "a", "second");
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().sys_errno, EFBIG);
        ASSERT_FALSE(write(directory, "b", std::string(100, 'x')));
        EXPECT_FALSE(std::filesystem::exists(path_ + "/journal.new")) << "it takes no room";
      }
      EXPECT_EQ(journal(), before) << "killed now, it would be as it was";
      ASSERT_TRUE(directory.write({}));
    }
    const StateDirectory again = open();
    EXPECT_EQ(again.image().at("a"), "second");
    EXPECT_TRUE(again.image().contains("b"));
  }
}

TEST_F(StateDirectoryTest, WhatIsTooLargeToBeWrittenEverIsRefusedAndNothingOfItsWriteIsTaken) {
  {
    StateDirectory directory = open();
    ASSERT_TRUE(write(directory, "a", "1"));
    const std::string before = journal();
    const std::vector<JournalEntry> entries{{"a", "2"},
                                            {"b", std::string(kMaxJournalFrameBytes, 'x')}};
    const Result<void> refused = directory.write(entries);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument) << "a full disk is another thing";
    EXPECT_THAT(refused.error().message(), HasSubstr("'b' takes"));
    ASSERT_TRUE(directory.write({}));
    EXPECT_EQ(journal(), before);
    ASSERT_TRUE(write(directory, "b", "3"));
  }
  EXPECT_EQ(open().image(), (JournalImage{{"a", "1"}, {"b", "3"}}));
}

TEST_F(StateDirectoryTest, WhatCannotBeADirectoryIsNamed) {
  std::ofstream(temporary_ / "file") << "x";
  const Result<StateDirectory> refused = StateDirectory::open(temporary_ / "file");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("/file"));
}

}  // namespace
}  // namespace ddprun
