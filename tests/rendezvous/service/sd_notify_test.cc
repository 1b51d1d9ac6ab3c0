// Tests what a service manager receives from the function and from a daemon, on a real datagram
// socket.
#include "rendezvous/service/sd_notify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/random_id.h"
#include "base/unique_fd.h"
#include "tests/support/child_process.h"
#include "tests/support/program.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using testing_support::ChildProcess;
using testing_support::program;
using testing_support::TemporaryDirectory;

// Manager: plays a service manager: its socket, and the variable that names the socket.
class Manager {
 public:
  // name: a path, or "@" and an abstract name.
  explicit Manager(const std::string& name)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    const timeval limit{.tv_sec = testing_support::kPatience / std::chrono::seconds(1),
                        .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~Manager() { unsetenv("NOTIFY_SOCKET"); }

  std::string hear() {
    std::array<char, 4096> bytes;
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    return got < 0 ? "nothing" : std::string(bytes.data(), static_cast<std::size_t>(got));
  }

 private:
  UniqueFd socket_;
};

TEST(SdNotify, SaysNothingWhereNobodyAsks) {
  unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(notify_service_manager("READY=1"));
}

TEST(SdNotify, SendsOneDatagramToASocketWithAPath) {
  const TemporaryDirectory directory;
  Manager manager(directory / "notify");
  ASSERT_TRUE(notify_service_manager("READY=1\nSTATUS=well"));
  EXPECT_EQ(manager.hear(), "READY=1\nSTATUS=well");
}

TEST(SdNotify, SendsToAnAbstractName) {
  Manager manager("@ddprun-test-" + random_hex(8));
  ASSERT_TRUE(notify_service_manager("STOPPING=1"));
  EXPECT_EQ(manager.hear(), "STOPPING=1");
}

TEST(SdNotify, SaysWhatIsWrongWithTheSocketsName) {
  for (const std::string& name : {std::string("relative"), "/" + std::string(200, 'x')}) {
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
    const Result<void> notified = notify_service_manager("READY=1");
    ASSERT_FALSE(notified) << name;
    EXPECT_THAT(notified.error().message(), HasSubstr("NOTIFY_SOCKET=" + name));
  }
  setenv("NOTIFY_SOCKET", "/nobody/listens/here", 1);
  EXPECT_FALSE(notify_service_manager("READY=1"));
  unsetenv("NOTIFY_SOCKET");
}

TEST(SdNotify, ADaemonSaysWhenItListensAndWhenItEnds) {
  const TemporaryDirectory directory;
  Manager manager(directory / "notify");
  ChildProcess daemon({program("ddp-rendezvous"), "--listen", "127.0.0.1:0"});
  const std::string ready = manager.hear();
  EXPECT_TRUE(ready.starts_with("READY=1\nSTATUS=listening on 127.0.0.1:")) << ready;
  daemon.signal(SIGTERM);
  EXPECT_EQ(manager.hear(), "STOPPING=1");
  EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST(SdNotify, AServiceWithNothingToReadAgainSurvivesAReload) {
  const TemporaryDirectory directory;
  Manager manager(directory / "notify");
  ChildProcess daemon({program("ddp-rendezvous"), "--listen", "127.0.0.1:0"});
  EXPECT_THAT(manager.hear(), HasSubstr("READY=1"));
  daemon.signal(SIGHUP);
  EXPECT_TRUE(daemon.wait_for_err("SIGHUP: this service has no keys or certificates to read again"))
      << daemon.err();
  daemon.signal(SIGTERM);
  EXPECT_EQ(manager.hear(), "STOPPING=1");
  EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST(SdNotify, ADaemonGoesOnWithoutItsManager) {
  setenv("NOTIFY_SOCKET", "/nobody/listens/here", 1);
  ChildProcess daemon({program("ddp-rendezvous"), "--listen", "127.0.0.1:0"});
  unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(daemon.wait_for_out("listening on"));
  EXPECT_TRUE(daemon.wait_for_err("warning: tell the service manager")) << daemon.err();
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
}

}  // namespace
}  // namespace ddprun
