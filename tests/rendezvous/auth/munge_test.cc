// Tests Munge with munged daemons that belong to the test.
#include "rendezvous/auth/munge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "rendezvous/auth/core/slurm_conf.h"
#include "tests/support/eventually.h"
#include "tests/support/private_munged.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::eventually;
using testing_support::PrivateMunged;

class MungeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = PrivateMunged::missing(); !why.empty()) GTEST_SKIP() << why;
    node_.emplace();
  }
  std::shared_ptr<const Munge> munge(const PrivateMunged& munged) const {
    return find_munge(munged.options()).munge;
  }
  static std::string credential(const Munge& munge, UserId reader = UserId(geteuid())) {
    const MungeOutcome made = munge.carry_out(MakeCredential{"a statement", reader});
    EXPECT_TRUE(made) << made.error().message();
    return made ? made->text : "";
  }
  // Returns the reason why munged does not vouch for the credential.
  static std::string refusal(const MungeOutcome& read) {
    if (read) return "it was";
    EXPECT_EQ(read.error().kind, ErrorKind::kProtocol);
    return read.error().cause;
  }

  std::optional<PrivateMunged> node_;
};

TEST_F(MungeTest, SaysWhatWasStatedAndByWhom) {
  const auto munge = this->munge(*node_);
  ASSERT_TRUE(munge);
  EXPECT_EQ(munge->user(), UserId(geteuid()));
  const MungeOutcome read = munge->carry_out(ReadCredential{credential(*munge)});
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->text, "a statement");
  EXPECT_EQ(read->maker, UserId(geteuid()));
}

TEST_F(MungeTest, IsFoundAtTheSocketThatSlurmConfNames) {
  const testing_support::TemporaryDirectory directory;
  const std::string path = directory / "slurm.conf";
  std::ofstream(path) << "ClusterName=c\nAuthInfo=socket=" << node_->socket() << ",ttl=60\n";
  setenv("SLURM_CONF", path.c_str(), 1);
  EXPECT_EQ(munge_socket_of(slurm_conf()), node_->socket());
  EXPECT_TRUE(find_munge({}).munge) << find_munge({}).why_not;
  EXPECT_FALSE(find_munge({.socket = directory / "another"}).munge) << "what is named wins";
  setenv("SLURM_CONF", directory.path().c_str(), 1);
  EXPECT_EQ(slurm_conf(), "") << "no regular file";
  unsetenv("SLURM_CONF");
}

TEST_F(MungeTest, VouchesOnceOnEachNodeSoThatNoncesAreNeeded) {
  const auto munge = this->munge(*node_);
  const std::string text = credential(*munge);
  ASSERT_TRUE(munge->carry_out(ReadCredential{text}));
  EXPECT_THAT(refusal(munge->carry_out(ReadCredential{text})), HasSubstr("eplay"));
  const PrivateMunged another_node;
  EXPECT_TRUE(this->munge(another_node)->carry_out(ReadCredential{text}));
}

TEST_F(MungeTest, DoesNotVouchForWhatWasMadeWithAnotherKey) {
  const PrivateMunged other("another key");
  const std::string text = credential(*munge(other));
  EXPECT_THAT(refusal(munge(*node_)->carry_out(ReadCredential{text})),
              HasSubstr("made with another munge key"));
}

TEST_F(MungeTest, DoesNotVouchForGarbage) {
  const auto munge = this->munge(*node_);
  std::string altered = credential(*munge);
  altered[altered.size() / 2] = altered[altered.size() / 2] == 'A' ? 'B' : 'A';
  for (const std::string& text : {std::string(), std::string("x"), std::string("MUNGE:AAAA:"),
                                  std::string("MUNGE:\0:", 8), std::string(3000, 'x'), altered}) {
    refusal(munge->carry_out(ReadCredential{text}));
    EXPECT_FALSE(munge->carry_out(ReadCredential{text})) << text;
  }
}

TEST_F(MungeTest, DoesNotVouchForWhatHasExpired) {
  MungeOptions options = node_->options();
  options.lifetime = std::chrono::seconds(1);
  const auto munge = find_munge(options).munge;
  const std::string text = credential(*munge);
  EXPECT_TRUE(eventually([&] {
    const MungeOutcome read = munge->carry_out(ReadCredential{text});
    return !read && read.error().cause.find("do the clocks") != std::string::npos;
  }));
}

TEST_F(MungeTest, DoesNotTellWhatIsForAnotherUser) {
  const auto munge = this->munge(*node_);
  const std::string text = credential(*munge, UserId(geteuid() + 1));
  EXPECT_THAT(refusal(munge->carry_out(ReadCredential{text})), HasSubstr("made for another user"));
}

TEST_F(MungeTest, IsInTroubleWithoutMunged) {
  const auto munge = this->munge(*node_);
  const std::string text = credential(*munge);
  node_->kill();
  const MungeOutcome read = munge->carry_out(ReadCredential{text});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::kConnection) << read.error().message();
  const MungeOutcome made = munge->carry_out(MakeCredential{"s", UserId(0)});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().kind, ErrorKind::kConnection) << made.error().message();
}

TEST_F(MungeTest, CountsAsNoneWhereMungedIsDeadOrHangs) {
  node_->hang();
  const TimePoint begun = BootClock::now();
  const FoundMunge hung = find_munge(node_->options(), std::chrono::milliseconds(200));
  EXPECT_LT(BootClock::now() - begun, std::chrono::seconds(2));
  EXPECT_FALSE(hung.munge);
  EXPECT_EQ(hung.why_not, "munged did not answer within 200 ms");
  node_->go_on();
  EXPECT_TRUE(munge(*node_));
  node_->kill();
  EXPECT_FALSE(munge(*node_));
}

TEST(FindMunge, CountsAsNoneWhereThereIsNone) {
  EXPECT_THAT(find_munge({.library = "libmunge-that-is-not-there.so.2"}).why_not,
              HasSubstr("libmunge-that-is-not-there.so.2"));
  EXPECT_THAT(find_munge({.library = "libm.so.6"}).why_not, HasSubstr("libm.so.6 is not libmunge"));
  EXPECT_EQ(find_munge({.socket = "none"}).why_not, "--munge-socket none");
  const FoundMunge nowhere = find_munge({.socket = "/nonexistent/socket"});
  EXPECT_FALSE(nowhere.munge);
  EXPECT_NE(nowhere.why_not, "");
}

}  // namespace
}  // namespace ddprun
