// Tests the sources of keys, and that the keys are not left in places where others could read
// them.
#include "rendezvous/auth/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::TemporaryDirectory;

class KeyFileTest : public testing::Test {
 protected:
  ~KeyFileTest() override { unsetenv(kKeyVariable); }
  std::string file(const std::string& text, mode_t mode = 0600) const {
    const std::string path = directory_.write("key", text);
    chmod(path.c_str(), mode);
    return path;
  }
  TemporaryDirectory directory_;
};

TEST_F(KeyFileTest, ReadsAFile) {
  const auto found = find_keys(file("0123456789abcdef\n"));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->keys.for_every_job(), "0123456789abcdef");
  EXPECT_EQ(found->remark, "");
}

TEST_F(KeyFileTest, SaysSoWhenOthersCanReadIt) {
  const auto found = find_keys(file("0123456789abcdef\n", 0640));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->remark, HasSubstr("chmod 600"));
}

TEST_F(KeyFileTest, TakesTheVariableOutOfTheEnvironment) {
  setenv(kKeyVariable, "0123456789abcdef", 1);
  const char* place = std::getenv(kKeyVariable);
  const auto found = find_keys("");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->keys.for_every_job(), "0123456789abcdef");
  EXPECT_EQ(std::getenv(kKeyVariable), nullptr);
  EXPECT_EQ(place[0], '\0') << "and wipes it where it stood";
}

TEST_F(KeyFileTest, AFileComesBeforeTheVariableWhichGoesAnyway) {
  setenv(kKeyVariable, "from-the-variable", 1);
  EXPECT_EQ(find_keys(file("0123456789abcdef"))->keys.for_every_job(), "0123456789abcdef");
  EXPECT_EQ(std::getenv(kKeyVariable), nullptr);
}

TEST_F(KeyFileTest, NoneIsNoError) { EXPECT_TRUE(find_keys("")->keys.empty()); }

TEST_F(KeyFileTest, SaysWhatIsWrong) {
  const auto missing = find_keys(directory_ / "nothing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().sys_errno, ENOENT);
  const auto folder = find_keys(directory_.path());
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().sys_errno, EISDIR);
  const auto empty = find_keys(file(""));
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().kind, ErrorKind::kInvalidArgument);
  const auto endless = find_keys("/dev/zero");
  ASSERT_FALSE(endless);
  EXPECT_THAT(endless.error().message(), HasSubstr("the file has more than"));
  setenv(kKeyVariable, "secret", 1);
  const auto variable = find_keys("");
  ASSERT_FALSE(variable);
  EXPECT_EQ(variable.error().message(),
            "DDPRUN_RDZV_KEY: line 1: a key needs at least 16 characters");
}

TEST_F(KeyFileTest, WhoIsExposed) {
  const FoundMunge none{nullptr, "no munged"};
  EXPECT_THAT(exposure_of({"0.0.0.0", 29400}, {}, none),
              testing::AllOf(testing::StartsWith("anyone who can reach 0.0.0.0:29400"),
                             HasSubstr("no munged")));
  EXPECT_NE(exposure_of({"::", 29400}, {}, none), "");
  EXPECT_EQ(exposure_of({"127.0.0.1", 29400}, {}, none), "");
  EXPECT_EQ(exposure_of({"::", 29400}, Keyring::parse("0123456789abcdef").value(), none), "");
}

TEST_F(KeyFileTest, APasswordOfEtcdIsInAFileOrAVariable) {
  setenv(kEtcdPasswordVariable, "secret1", 1);
  EXPECT_EQ(find_etcd_password("")->password, "secret1");
  EXPECT_EQ(std::getenv(kEtcdPasswordVariable), nullptr);
  EXPECT_TRUE(find_etcd_password("")->password.empty());
  const auto found = find_etcd_password(file("secret 2\n", 0640));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->password, "secret 2");
  EXPECT_THAT(found->remark, HasSubstr("chmod 600"));
  EXPECT_FALSE(find_etcd_password(file("\n")));
  EXPECT_FALSE(find_etcd_password("/no/such/file"));
}

}  // namespace
}  // namespace ddprun
