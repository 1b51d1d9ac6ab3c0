// Tests the PeerWatch of a rank. This test is the other end of its link.
#include "worker_lib/cpu_peers/peer_watch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>

#include "base/pidfd.h"
#include "base/poll_until.h"
#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::eventually;
using testing_support::let_pass;

class PeerWatchTest : public testing::Test {
 protected:
  PeerWatchTest() {
    std::memset(memory_.get(), 0, kBoardBytes);
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int few = 4096;
    EXPECT_EQ(setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    UniqueFd link(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(link.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    here_ = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    link_ = UniqueFd(dup(link.get()));
    PeerWatch::Options options{.rank = 0, .world_size = 2, .node_ranks = {0}};
    options.node_silence = seconds(60);
    options.lives.push_back(pidfd_of(getpid()));
    options.pages.emplace_back();
    options.links.push_back({1, std::move(link)});
    watch_ = *PeerWatch::start(progress_, *wakeups_, std::move(options));
  }

  static std::unique_ptr<WakeupFds> one_wakeup() {
    std::vector<UniqueFd> wakeups;
    wakeups.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return std::make_unique<WakeupFds>(std::move(wakeups), 0);
  }

  // Asks for notes and reads none, until the link is full.
  void fill_the_link() {
    progress_.write_note(std::string(kMaxNoteBytes, 'x'));
    const FrameHead query{.type = FrameType::kNotesQuery};
    for (int i = 0; i < 2000; ++i) {
      ASSERT_EQ(send(here_.get(), &query, sizeof query, MSG_NOSIGNAL),
                static_cast<ssize_t>(sizeof query));
    }
    ASSERT_TRUE(eventually([&] {
      pollfd watched{link_.get(), POLLOUT, 0};
      return poll(&watched, 1, 0) == 0;
    }));
    let_pass(milliseconds(100));  // it still answers; this test cannot see that the link is full
  }

  // Reads until a frame of this kind arrives. Returns whether one came.
  bool hears(FrameType type, std::string* body = nullptr) {
    std::string heard;
    char buffer[65536];
    for (;;) {
      pollfd watched{here_.get(), POLLIN, 0};
      if (!poll_until({&watched, 1}, testing_support::in(seconds(10)))) return false;
      const ssize_t got = recv(here_.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      heard.append(buffer, static_cast<std::size_t>(got));
      FrameHead head;
      while (heard.size() >= sizeof head) {
        std::memcpy(static_cast<void*>(&head), heard.data(), sizeof head);
        if (heard.size() < sizeof head + head.body_bytes) break;
        if (body) *body = heard.substr(sizeof head, head.body_bytes);
        if (head.type == type) return true;
        heard.erase(0, sizeof head + head.body_bytes);
      }
    }
  }

  static constexpr std::size_t kBoardBytes = 1 << 16;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_{std::aligned_alloc(4096, kBoardBytes)};
  SharedProgress progress_{memory_.get(), 1, 0, Duration::zero()};
  std::unique_ptr<WakeupFds> wakeups_ = one_wakeup();
  UniqueFd here_;
  UniqueFd link_;  // the rank's end, for the test to inspect
  std::unique_ptr<PeerWatch> watch_;
};

TEST_F(PeerWatchTest, APeerWhoseLinkWasFullHearsOfAFailureWhenItReadsAgain) {
  fill_the_link();
  watch_->raise_failure(
      {.kind = ErrorKind::kTimeout, .peer_rank = 0, .reporter = 0, .cause = "late"});
  std::string cause;
  EXPECT_TRUE(hears(FrameType::kFailure, &cause));
  EXPECT_EQ(cause, "late");
}

TEST_F(PeerWatchTest, APeerHearsOfALeaveAlsoWhereItSaysMoreThanTheLeaverReads) {
  fill_the_link();
  watch_->leave();
  link_ = UniqueFd();
  auto gone = std::async(std::launch::async, [&] { watch_.reset(); });
  // These frames are unread when the connection is closed, which then is reset.
  const FrameHead late{.type = FrameType::kProgressReply};
  auto talk = std::async(std::launch::async, [&] {
    while (gone.wait_for(milliseconds(1)) != std::future_status::ready) {
      if (send(here_.get(), &late, sizeof late, MSG_NOSIGNAL) < 0) return;
    }
  });
  EXPECT_TRUE(hears(FrameType::kLeave));
  gone.wait();
}

}  // namespace
}  // namespace ddprun
