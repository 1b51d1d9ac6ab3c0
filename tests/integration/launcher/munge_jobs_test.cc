// Tests ddprun and ddp-rendezvous with munge, as whole programs: jobs that form by it, and
// wrong users, clusters and daemons. The test has its own munged.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/host_port.h"
#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/certificates.h"
#include "tests/support/held_port.h"
#include "tests/support/private_munged.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;

class MungeJobs : public RendezvousTest {
 protected:
  void SetUp() override {
    RendezvousTest::SetUp();
    if (const std::string why = PrivateMunged::missing(); !why.empty()) GTEST_SKIP() << why;
    munged_.emplace();
  }
  void TearDown() override {
    if (munged_) munged_->go_on();
    RendezvousTest::TearDown();
  }
  std::string option() const { return "--munge-socket=" + munged_->socket(); }
  std::unique_ptr<ChildProcess> start_service(const std::string& listen = "127.0.0.1:0") const {
    return start_rendezvous({"--listen=" + listen, "--require-auth", option()});
  }

  std::optional<PrivateMunged> munged_;
};

constexpr const char* kHasAskedMunge = "grep -q libmunge /proc/$PPID/maps";

TEST_F(MungeJobs, NodesMeetWithNoOtherSetUp) {
  auto service = start_service("*:0");
  const auto address = parse_host_port(listening_address(*service));
  ASSERT_TRUE(address) << service->err();
  const std::string endpoint = to_text(HostPort{"127.0.0.1", address->port});
  auto a = start(node(endpoint, {option(), "--require-auth"}, kHasAskedMunge));
  auto b = start(node(endpoint, {option()}, kHasAskedMunge));
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  end(*service);
  EXPECT_THAT(service->err(), HasSubstr("munge authenticates agents"));
  EXPECT_THAT(service->err(), Not(HasSubstr("anyone")));
}

// The service shows a certificate, and the nodes have none. munge proves the identity of the
// nodes, and its proof is bound to their connections.
TEST_F(MungeJobs, NodesThatMeetOverTlsAreKnownByIt) {
  const Authority ours(directory_.path(), "ours");
  const IssuedFiles own = ours.issue("service");
  auto service = start_rendezvous({"--listen=127.0.0.1:0", "--rdzv-tls-cert=" + own.cert,
                                   "--rdzv-tls-key=" + own.key, option()});
  const std::string endpoint = listening_address(*service);
  const std::string ca = "--rdzv-tls-ca=" + ours.ca_file();
  auto without = start(node(endpoint, {ca, "--munge-socket=none"}, "true"));
  EXPECT_EQ(without->wait(), 66) << without->err();
  EXPECT_THAT(without->err(), HasSubstr("or --munge-socket none to the service"));
  auto a = start(node(endpoint, {ca, "--require-auth", option()}, kHasAskedMunge));
  auto b = start(node(endpoint, {ca, option()}, kHasAskedMunge));
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  end(*service);
}

TEST_F(MungeJobs, AnAgentThatServesWantsItFromTheOthers) {
  const HeldPort held;
  auto a = start(node(held.endpoint(), {option()}, "true"));
  ASSERT_TRUE(a->wait_for_err("waiting")) << a->err();
  auto without = start(node(held.endpoint(), {"--munge-socket=none"}, "true"));
  EXPECT_EQ(without->wait(), 66) << without->err();
  EXPECT_THAT(without->err(), HasSubstr("or --munge-socket none to the service"));
  auto b = start(node(held.endpoint(), {option()}, "true"));
  EXPECT_EQ(b->wait(), 0) << b->err();
  EXPECT_EQ(a->wait(), 0) << a->err();
}

TEST_F(MungeJobs, AJobOfOneNodeDoesNotAskIt) {
  const std::string has_not = std::string("! ") + kHasAskedMunge;
  auto job = start_shell({"--nproc-per-node=2", option()}, has_not);
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(MungeJobs, ANodeOfAnotherClusterIsRefused) {
  auto service = start_service();
  const PrivateMunged elsewhere("another key");
  auto job =
      start(node(listening_address(*service), {"--munge-socket=" + elsewhere.socket()}, "true"));
  EXPECT_EQ(job->wait(), 66) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("made with another munge key"));
  end(*service);
}

TEST_F(MungeJobs, ANodeWhereMungedIsDeadOrHangsIsToldWhatToDo) {
  auto service = start_service();
  const std::string endpoint = listening_address(*service);
  PrivateMunged own;
  const auto is_refused = [&] {
    auto job = start(node(endpoint, {"--munge-socket=" + own.socket()}, "true"));
    EXPECT_EQ(job->wait(), 66) << job->err();
    EXPECT_THAT(job->err(), HasSubstr("munge is not used: "));
    EXPECT_THAT(job->err(), HasSubstr("start munged here"));
  };
  own.hang();
  is_refused();
  own.go_on();
  own.kill();
  is_refused();
  end(*service);
}

TEST_F(MungeJobs, AServiceWhoseMungedHangsPutsNodesOffUntilItGoesOn) {
  auto service = start_service();
  const std::string endpoint = listening_address(*service);
  const PrivateMunged other_node;
  munged_->hang();
  const Arguments munge{"--munge-socket=" + other_node.socket()};
  auto a = start(node(endpoint, munge, "true"));
  auto b = start(node(endpoint, munge, "true"));
  ASSERT_TRUE(service->wait_for_err("munged does not answer")) << service->err();
  munged_->go_on();
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  EXPECT_THAT(a->err() + b->err(), HasSubstr("munge fails on the service's host"));
  end(*service);
}

TEST_F(MungeJobs, WhoDemandsProofDoesNotRunWithoutIt) {
  const HeldPort held;
  munged_->kill();
  auto job = start(
      {"--rdzv-endpoint=" + held.endpoint(), "--nnodes=2", "--require-auth", option(), "true"});
  EXPECT_EQ(job->wait(), 2);
  EXPECT_THAT(job->err(), HasSubstr("--require-auth: needs a key"));
  auto service = start_service("*:0");
  EXPECT_EQ(service->wait(), 2);
  EXPECT_THAT(service->err(), HasSubstr("--require-auth: anyone who can reach"));
}

// Two users: root and `nobody`. The uid of `nobody` is in the range of people's uids.
class MungeUsers : public MungeJobs {
 protected:
  static constexpr const char* kNobody = "65534";

  void SetUp() override {
    MungeJobs::SetUp();
    if (IsSkipped()) return;
    if (geteuid() != 0) GTEST_SKIP() << "to be two users needs root";
    using std::filesystem::perms;
    std::filesystem::permissions(directory_.path(), perms::others_exec | perms::others_read,
                                 std::filesystem::perm_options::add);
    std::filesystem::permissions(tmp(), perms::all);
    ChildProcess reach(as_nobody({program("ddprun"), "--version"}));
    if (reach.wait() != 0) {
      GTEST_SKIP() << "user nobody cannot run " << program("ddprun") << ": " << reach.err();
    }
  }
  static Arguments as_nobody(const Arguments& what) {
    return joined({"setpriv", std::string("--reuid=") + kNobody, std::string("--regid=") + kNobody,
                   "--clear-groups"},
                  what);
  }
  std::unique_ptr<ChildProcess> start_as_nobody(const Arguments& arguments) const {
    return std::make_unique<ChildProcess>(as_nobody(joined({program("ddprun")}, arguments)),
                                          environment());
  }
};

TEST_F(MungeUsers, AJobIsTheUsersWhoBeganItAndRootMayJoin) {
  auto service = start_service();
  const std::string endpoint = listening_address(*service);
  auto first = start(node(endpoint, {option()}, "true"));
  ASSERT_TRUE(first->wait_for_err("waiting")) << first->err();
  auto other = start_as_nobody(node(endpoint, {option()}, "true"));
  EXPECT_EQ(other->wait(), 66) << other->err();
  EXPECT_THAT(other->err(), HasSubstr("job 'job' belongs to user 0"));
  auto second = start(node(endpoint, {option()}, "true"));
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(first->wait(), 0) << first->err();

  const Arguments of_nobody = node(endpoint, {option(), "--rdzv-id=another"}, "true");
  auto theirs = start_as_nobody(of_nobody);
  ASSERT_TRUE(theirs->wait_for_err("waiting")) << theirs->err();
  auto roots = start(of_nobody);
  EXPECT_EQ(roots->wait(), 0) << roots->err();
  EXPECT_EQ(theirs->wait(), 0) << theirs->err();
  end(*service);
}

TEST_F(MungeUsers, NobodyFollowsAServiceThatAnotherUserRuns) {
  const HeldPort held;
  auto theirs = start_as_nobody(node(held.endpoint(), {option()}, "true"));
  ASSERT_TRUE(theirs->wait_for_err("waiting")) << theirs->err();
  auto roots = start(node(held.endpoint(), {option()}, "true"));
  EXPECT_EQ(roots->wait(), 66) << roots->err();
  EXPECT_THAT(roots->err(), HasSubstr("runs as user 65534"));
  auto second = start_as_nobody(node(held.endpoint(), {option()}, "true"));
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(theirs->wait(), 0) << theirs->err();
}

}  // namespace
}  // namespace ddprun::testing_support
