#include "base/peer_user.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "base/unique_fd.h"

namespace ddprun {
namespace {

constexpr uid_t kOtherUser = 54321;

TEST(NamesOneUser, WhereEveryUserHasAnIdOrTheIdIsNotTheOverflowId) {
  constexpr uid_t kOverflow = 65534;
  EXPECT_TRUE(names_one_user(kOverflow, kOverflow, "         0          0 4294967295\n"));
  EXPECT_FALSE(names_one_user(kOverflow, kOverflow, "0 100000 65536\n"));
  EXPECT_FALSE(names_one_user(kOverflow, kOverflow, "0 1000 1\n1 100000 65535\n"));
  EXPECT_FALSE(names_one_user(kOverflow, kOverflow, ""));
  EXPECT_TRUE(names_one_user(1000, kOverflow, "0 100000 65536\n"));
}

class PeerUser : public testing::Test {
 protected:
  // Listens at a name in the abstract namespace that the kernel chooses.
  void SetUp() override {
    sockaddr_un any{.sun_family = AF_UNIX, .sun_path = {}};
    ASSERT_TRUE(listener_.valid());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&any), sizeof any.sun_family), 0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
    ASSERT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &length_), 0);
  }
  UniqueFd connected() const {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* address = reinterpret_cast<const sockaddr*>(&address_);
    return connect(socket.get(), address, length_) == 0 ? std::move(socket) : UniqueFd();
  }
  UniqueFd accepted() const { return UniqueFd(accept(listener_.get(), nullptr, nullptr)); }

  UniqueFd listener_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_un address_{};
  socklen_t length_ = sizeof address_;
};

TEST_F(PeerUser, IsThisUserOnBothSidesOfItsOwnConnection) {
  const UniqueFd connecting = connected();
  EXPECT_EQ(peer_user(connecting.get()), geteuid());
  EXPECT_EQ(peer_user(accepted().get()), geteuid());
}

// In a user namespace without ids, every user has the id 65534, this process's user too.
TEST_F(PeerUser, IsNotThisUserBecauseNeitherHasAnId) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  const pid_t other = fork();
  if (other == 0) {
    alarm(20);  // ends this process whatever happens to the test
    const bool is_other = setresuid(kOtherUser, kOtherUser, kOtherUser) == 0;
    const UniqueFd connection = is_other ? connected() : UniqueFd();
    char byte = 0;
    _exit(read(connection.get(), &byte, 1) == 0 ? 0 : 1);
  }
  UniqueFd others = accepted();
  EXPECT_EQ(peer_user(others.get()), kOtherUser);
  const pid_t inside = fork();
  if (inside == 0) {
    if (unshare(CLONE_NEWUSER) != 0) _exit(77);
    const pid_t own = fork();
    if (own == 0) {
      alarm(20);
      const UniqueFd connection = connected();
      pause();
    }
    const bool is_mine = peer_user(accepted().get()) == geteuid();
    const bool is_theirs = peer_user(others.get()).has_value();
    kill(own, SIGKILL);
    _exit((is_mine ? 0 : 1) + (is_theirs ? 2 : 0));
  }
  int status = 0;
  ASSERT_EQ(waitpid(inside, &status, 0), inside);
  others.reset();
  waitpid(other, nullptr, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this system makes no user namespaces";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ddprun
