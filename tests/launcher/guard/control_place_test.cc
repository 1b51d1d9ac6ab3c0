#include "launcher/guard/control_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

class ControlPlaceTest : public testing::Test {
 protected:
  ControlPlaceTest() { setenv("XDG_RUNTIME_DIR", directory_.path().c_str(), 1); }
  ~ControlPlaceTest() override { unsetenv("XDG_RUNTIME_DIR"); }

  std::string home() const { return directory_ / "ddprun"; }
  static std::size_t here(const std::string& path) {
    std::size_t count = 0;
    for (const ControlPlace& place : find_control_sockets()) count += place.path == path ? 1 : 0;
    return count;
  }
  const testing_support::TemporaryDirectory directory_;
};

TEST_F(ControlPlaceTest, ASocketIsFoundAndGoesWithItsDirectory) {
  const std::string path = control_socket_path(find_control_home(), "a job/..", getpid());
  EXPECT_EQ(path, home() + "/a_job___." + std::to_string(getpid()));
  EXPECT_FALSE(std::filesystem::exists(home())) << "nothing is made by asking";
  const Result<UniqueFd> listener = listen_for_control(path);
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_EQ(here(path), 1u);
  EXPECT_TRUE(connect_for_control(path));
  remove_control_socket(path);
  EXPECT_FALSE(std::filesystem::exists(home()));
  remove_control_socket(path);
  remove_control_socket("");
}

TEST_F(ControlPlaceTest, WorksHoweverLongThePathIs) {
  const std::string deep = directory_ / std::string(200, 'x');
  std::filesystem::create_directory(deep);
  setenv("XDG_RUNTIME_DIR", deep.c_str(), 1);
  const std::string path =
      control_socket_path(find_control_home(), std::string(500, 'y'), getpid());
  const Result<UniqueFd> listener = listen_for_control(path);
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_TRUE(connect_for_control(path));
  remove_control_socket(path);
}

TEST_F(ControlPlaceTest, WhereTheDirectoryIsNotTheUsersAnotherOneIsUsedAndFound) {
  EXPECT_EQ(find_control_home().remark, "");
  std::filesystem::create_directory(home());
  chmod(home().c_str(), 0777);
  const ControlHome other = find_control_home();
  EXPECT_THAT(other.path, testing::StartsWith(home() + "."));
  EXPECT_THAT(other.remark, HasSubstr("other users may enter it"));
  const std::string path = control_socket_path(other, "job", getpid());
  const Result<UniqueFd> listener = listen_for_control(path);
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_EQ(here(path), 1u);
  EXPECT_TRUE(connect_for_control(path));
  EXPECT_EQ(find_control_home().path, other.path) << "jobs share it";
  remove_control_socket(path);
  EXPECT_FALSE(std::filesystem::exists(other.path));
  if (geteuid() == 0) {
    ASSERT_EQ(chown(home().c_str(), 65534, 65534), 0);
    EXPECT_THAT(find_control_home().remark, HasSubstr("it belongs to user 65534"));
  }
  std::filesystem::remove(home());
}

TEST_F(ControlPlaceTest, ADirectoryThatIsNotTheUsersAloneIsNotUsed) {
  const std::string path = control_socket_path(find_control_home(), "job", getpid());
  std::filesystem::create_directory(home());
  chmod(home().c_str(), 0750);
  Result<UniqueFd> listener = listen_for_control(path);
  ASSERT_FALSE(listener);
  EXPECT_THAT(listener.error().message(), HasSubstr("other users may enter it"));
  std::filesystem::remove(home());
  // Another user could have put a symbolic link there.
  std::filesystem::create_directory(directory_ / "trap");
  chmod((directory_ / "trap").c_str(), 0700);
  std::filesystem::create_symlink(directory_ / "trap", home());
  listener = listen_for_control(path);
  ASSERT_FALSE(listener);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ / "trap"));
  std::filesystem::remove(home());
  if (geteuid() != 0) return;
  std::filesystem::create_directory(home());
  chmod(home().c_str(), 0700);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(chown(home().c_str(), kNobody, 0), 0);
  listener = listen_for_control(path);
  ASSERT_FALSE(listener);
  EXPECT_THAT(listener.error().message(), HasSubstr("belongs to user 65534"));
}

TEST_F(ControlPlaceTest, WhatADeadProcessHasLeftIsRemoved) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_GT(child, 0);
  const std::string path = control_socket_path(find_control_home(), "job", child);
  { const Result<UniqueFd> listener = listen_for_control(path); }
  // This also holds while the parent has not reaped the process.
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(here(path), 0u);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(std::filesystem::exists(home()));
}

}  // namespace
}  // namespace ddprun
