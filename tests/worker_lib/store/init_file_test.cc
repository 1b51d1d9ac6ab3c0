#include "worker_lib/store/init_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>

#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::TemporaryDirectory;

const StoreAddress kNote{.endpoint = {"fd00::7", 4321}, .token = "0123abcd"};

class InitFile : public testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const std::string path_ = directory_ / "init";
};

TEST_F(InitFile, ThatIsMissingOrEmptySaysNothing) {
  EXPECT_FALSE(read_init_file(path_).value());
  directory_.write("init", "");
  EXPECT_FALSE(read_init_file(path_).value());
}

TEST_F(InitFile, OfAnotherProgramIsRefused) {
  for (const std::string& text :
       {std::string("import torch\n"), std::string("ddprun-meeting-1\nhost\n"),
        std::string("ddprun-meeting-1\nhost\n70000\ntoken\n"), std::string(5000, 'x')}) {
    directory_.write("init", text);
    const auto note = read_init_file(path_);
    ASSERT_FALSE(note) << text;
    EXPECT_EQ(note.error().kind, ErrorKind::kCorrupt);
    EXPECT_THAT(note.error().message(), HasSubstr("read " + path_));
  }
}

TEST_F(InitFile, ThatIsNoFileIsRefusedAndStays) {
  directory_.write("empty", "");
  std::filesystem::create_symlink(directory_ / "empty", directory_ / "link");
  std::filesystem::create_symlink(directory_ / "nowhere", directory_ / "dangling");
  ASSERT_EQ(mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(directory_ / "folder");
  for (const char* const name : {"link", "dangling", "pipe", "folder"}) {
    const auto note = read_init_file(directory_ / name);
    ASSERT_FALSE(note) << name;
    EXPECT_EQ(note.error().kind, ErrorKind::kCorrupt);
    EXPECT_THAT(note.error().message(), HasSubstr("not a regular file; give another path"));
  }
  const auto device = read_init_file("/dev/null");
  ASSERT_FALSE(device);
  EXPECT_THAT(device.error().message(), HasSubstr("read /dev/null: not a regular file"));
}

TEST_F(InitFile, InADirectoryThatDoesNotExistCannotBePublished) {
  const auto note = PublishedAddress::publish(directory_ / "no/init", kNote);
  ASSERT_FALSE(note);
  EXPECT_THAT(note.error().message(), HasSubstr("No such file or directory"));
}

TEST_F(InitFile, IsReadAsItWasPublishedAndGoesWithItsOwner) {
  {
    const PublishedAddress published = PublishedAddress::publish(path_, kNote).value();
    const auto note = read_init_file(path_).value();
    ASSERT_TRUE(note);
    EXPECT_EQ(note->endpoint, kNote.endpoint);
    EXPECT_EQ(note->token, kNote.token);
    EXPECT_EQ(testing_support::listing(directory_.path()), std::vector<std::string>{"init"});
    EXPECT_EQ(std::filesystem::status(path_).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  EXPECT_TRUE(testing_support::listing(directory_.path()).empty());
}

TEST_F(InitFile, ThatAnotherHasReplacedStays) {
  StoreAddress other = kNote;
  other.token = "other";
  std::optional<PublishedAddress> later;
  {
    const PublishedAddress first = PublishedAddress::publish(path_, kNote).value();
    later.emplace(PublishedAddress::publish(path_, other).value());
  }
  EXPECT_EQ(read_init_file(path_).value()->token, "other");
}

}  // namespace
}  // namespace ddprun
