// Tests which connections are admitted when a group is formed: only those of its ranks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/pidfd.h"
#include "base/poll_until.h"
#include "base/worker_page_file.h"
#include "rendezvous/net/blocking_socket.h"
#include "tests/support/eventually.h"
#include "worker_lib/cpu_peers/node_bootstrap.h"
#include "worker_lib/cpu_peers/peer_listener.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::in;
using testing_support::kPatience;

// --- the node's listener ---

NodeBootstrapOptions options_of(int local, const std::string& token,
                                Duration patience = kPatience) {
  return {.ranks = {3, 4, 9},
          .local = local,
          .token = token,
          .segment_bytes = 8192,
          .deadline = Deadline(patience)};
}

UniqueFd connect_unauthenticated(const std::string& name, const std::string& words) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  if (!words.empty()) {
    EXPECT_GT(send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL), 0);
  }
  return socket;
}

TEST(NodeBootstrap, RanksShareMemoryAndHoldEachOthersLivesAndPagesWhileOthersAreTurnedAway) {
  const auto listener = NodeListener::open();
  const auto other_listener = NodeListener::open();
  ASSERT_TRUE(listener && other_listener);
  const UniqueFd silent = connect_unauthenticated(listener->name, "");
  const UniqueFd wrong = connect_unauthenticated(listener->name, "let me in");
  const UniqueFd no_pidfd = connect_unauthenticated(listener->name, std::string(68, '\0'));
  const PageFile page = *make_page_file("page", 1);  // the page of rank 1 alone
  const auto shown_page = [](const NodeMembers& members, std::size_t local) {
    return MappedPages::map({.file = members.pages.at(local).get()}, MappedPages::Access::kRead)
        .has_value();
  };
  std::vector<std::thread> guests;
  for (const int local : {1, 2}) {
    guests.emplace_back([&, local] {
      NodeBootstrapOptions options = options_of(local, "secret");
      if (local == 1) options.page = page.file.get();
      const auto members = bootstrap_node(*other_listener, listener->name, options);
      ASSERT_TRUE(members) << members.error().message();
      members->segment.at(4096)[local] = 'x';
      ASSERT_EQ(members->lives.size(), 3u);
      EXPECT_TRUE(shown_page(*members, 1));
    });
  }
  const auto members = bootstrap_node(*listener, listener->name, options_of(0, "secret"));
  ASSERT_TRUE(members) << members.error().message();
  for (std::thread& guest : guests) guest.join();
  EXPECT_EQ(members->segment.at(4096)[1], 'x');
  EXPECT_EQ(members->segment.at(4096)[2], 'x');
  EXPECT_FALSE(shown_page(*members, 0));
  EXPECT_TRUE(shown_page(*members, 1));
  EXPECT_FALSE(shown_page(*members, 2));
  for (const UniqueFd& life : members->lives) {
    pollfd watched{life.get(), POLLIN, 0};
    EXPECT_FALSE(poll_until({&watched, 1}, in(milliseconds(1)))) << "this process lives";
  }
}

TEST(NodeBootstrap, TheFirstRankNamesThoseWhoDidNotCome) {
  const auto listener = NodeListener::open();
  const auto members =
      bootstrap_node(*listener, listener->name, options_of(0, "secret", milliseconds(50)));
  ASSERT_FALSE(members);
  EXPECT_EQ(members.error().kind, ErrorKind::kTimeout);
  EXPECT_THAT(members.error().message(), HasSubstr("ranks 4 and 9 did not come"));
}

TEST(NodeBootstrap, ARankWithTheWrongTokenGetsNothing) {
  const auto listener = NodeListener::open();
  std::thread leader([&] {
    EXPECT_FALSE(bootstrap_node(*listener, listener->name, options_of(0, "secret", seconds(2))));
  });
  const auto members = bootstrap_node(*listener, listener->name, options_of(1, "guess"));
  EXPECT_EQ(members.error().kind, ErrorKind::kPeerLost);
  EXPECT_EQ(members.error().peer_rank, 3);
  leader.join();
}

TEST(NodeBootstrap, ADeadFirstRankIsNamed) {
  const auto own = NodeListener::open();
  std::string gone;
  { gone = NodeListener::open()->name; }
  const auto members = bootstrap_node(*own, gone, options_of(1, "secret"));
  EXPECT_EQ(members.error().kind, ErrorKind::kPeerLost);
  EXPECT_EQ(members.error().message(), "share memory with the ranks of this node: rank 3 is gone");
}

TEST(NodeBootstrap, AGuestLearnsOfAnotherThatIsGone) {
  const auto listener = NodeListener::open();
  std::string gone;
  { gone = NodeListener::open()->name; }
  std::thread guest([&] {
    const auto members = bootstrap_node(*listener, listener->name, options_of(1, "secret"));
    EXPECT_EQ(members.error().kind, ErrorKind::kPeerLost);
    EXPECT_EQ(members.error().peer_rank, 9);
    EXPECT_THAT(members.error().message(), HasSubstr("rank 3 gave up: rank 9 is gone"));
  });
  NodeBootstrapOptions options = options_of(0, "secret");
  options.listeners = {listener->name, listener->name, gone};
  const auto members = bootstrap_node(*listener, listener->name, options);
  EXPECT_EQ(members.error().kind, ErrorKind::kPeerLost);
  EXPECT_EQ(members.error().peer_rank, 9);
  guest.join();
}

// The hello message of a rank, as another program may forge it.
struct RanksHello {
  char token[64] = "secret";
  std::int32_t local = 1;
};

bool say_hello(int socket, const RanksHello& hello) {
  const UniqueFd life = pidfd_of(getpid());
  const int fds[] = {life.get(), life.get()};
  iovec part{const_cast<RanksHello*>(&hello), sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(header), fds, sizeof fds);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof hello;
}

// Waits for a message and closes its descriptors. Returns its bytes; 0: the connection is
// closed.
ssize_t receive_and_close(int socket) {
  std::uint32_t word = 0;
  iovec part{&word, sizeof word};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); header;
       header = CMSG_NXTHDR(&message, header)) {
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<char*>(header) + at, sizeof fd);
      close(fd);
    }
  }
  return got;
}

TEST(NodeBootstrap, AllRanksOfAWideNodeMayConnectBeforeAnyOfThemSpeaks) {
  constexpr int kRanks = 80;
  const auto listener = NodeListener::open();
  std::vector<UniqueFd> guests;
  for (int local = 1; local < kRanks; ++local)
    guests.push_back(connect_unauthenticated(listener->name, ""));
  const UniqueFd last = connect_unauthenticated(listener->name, "let me in");
  std::thread leader([&] {
    NodeBootstrapOptions options = options_of(0, "secret");
    options.ranks.resize(kRanks);
    const auto members = bootstrap_node(*listener, listener->name, options);
    EXPECT_TRUE(members) << members.error().message();
  });
  EXPECT_EQ(receive_and_close(last.get()), 0) << "all before it have been let in";
  for (int local = 1; local < kRanks; ++local) {
    EXPECT_TRUE(say_hello(guests[local - 1].get(), {.local = local})) << local;
  }
  for (const UniqueFd& guest : guests) {
    EXPECT_GT(receive_and_close(guest.get()), 0);
    EXPECT_GT(receive_and_close(guest.get()), 0);  // 241 descriptors, in two messages
  }
  leader.join();
}

// Runs `body` in a process of another user. was_right() returns the result of `body`.
class AnotherUser {
 public:
  static constexpr uid_t kUser = 65534;

  template <class Body>
  explicit AnotherUser(Body body) : pid_(fork()) {
    if (pid_ != 0) return;
    _exit(setuid(kUser) == 0 && body() ? 0 : 1);
  }
  bool was_right() {
    int status = -1;
    return waitpid(pid_, &status, 0) == pid_ && status == 0;
  }

 private:
  pid_t pid_;
};

TEST(NodeBootstrap, AnotherUserWhoKnowsTheTokenGetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto listener = NodeListener::open();
  const auto other_listener = NodeListener::open();
  AnotherUser thief([&] {
    const UniqueFd connection = connect_unauthenticated(listener->name, "");
    say_hello(connection.get(), {});  // the leader may have closed already
    return receive_and_close(connection.get()) <= 0;
  });
  std::thread leader([&] {
    const auto members = bootstrap_node(*listener, listener->name, options_of(0, "secret"));
    EXPECT_TRUE(members) << members.error().message();
  });
  EXPECT_TRUE(thief.was_right());
  std::vector<std::thread> guests;
  for (const int local : {1, 2}) {
    guests.emplace_back([&, local] {
      EXPECT_TRUE(bootstrap_node(*other_listener, listener->name, options_of(local, "secret")));
    });
  }
  for (std::thread& guest : guests) guest.join();
  leader.join();
}

TEST(NodeBootstrap, ASegmentOfAnotherUserIsNotTaken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  int name[2], end[2];
  ASSERT_EQ(pipe(name), 0);
  ASSERT_EQ(pipe(end), 0);
  const UniqueFd name_read(name[0]), name_write(name[1]), end_read(end[0]);
  UniqueFd end_write(end[1]);
  AnotherUser planter([&] {
    const auto listener = NodeListener::open();
    char byte = 0;
    close(end_write.get());
    return listener && write(name_write.get(), listener->name.data(), listener->name.size()) > 0 &&
           read(end_read.get(), &byte, 1) == 0;
  });
  char text[64] = {};
  ASSERT_GT(read(name_read.get(), text, sizeof text - 1), 0);
  const auto own = NodeListener::open();
  const auto members = bootstrap_node(*own, text, options_of(1, "secret"));
  ASSERT_FALSE(members);
  EXPECT_EQ(members.error().kind, ErrorKind::kProtocol);
  EXPECT_EQ(members.error().peer_rank, 3);
  EXPECT_THAT(members.error().message(), HasSubstr("belongs to user 65534, this one to user 0"));
  end_write = UniqueFd();
  EXPECT_TRUE(planter.was_right());
}

TEST(ShmSegment, IsTakenOnlyWithTheSealsThatKeepItsSize) {
  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  const auto taken = ShmSegment::adopt(std::move(unsealed), 8192);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().kind, ErrorKind::kProtocol);
  EXPECT_THAT(taken.error().message(), HasSubstr("is not sealed"));
  EXPECT_FALSE(ShmSegment::adopt(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 1));
  auto segment = ShmSegment::create(8192);
  ASSERT_TRUE(segment);
  EXPECT_NE(ftruncate(segment->fd(), 4096), 0) << "it cannot be shrunk";
}

// --- the listener for other nodes ---

PeerListener open_listener() {
  PeerListener listener = *PeerListener::open("127.0.0.1");
  listener.expect("secret", 5, 8);
  return listener;
}

std::optional<PeerListener::AcceptedPeer> admit(PeerListener& listener, Duration patience) {
  auto caller = listener.admit({ConnectionUse::kData, ConnectionUse::kControl}, in(patience));
  EXPECT_TRUE(caller);
  return std::move(*caller);
}

TEST(PeerListener, AdmitsARankOfTheGroup) {
  PeerListener listener = open_listener();
  const auto socket = connect_to_peer(listener.address(), "secret", 2, 5, ConnectionUse::kControl,
                                      Deadline(seconds(5)));
  ASSERT_TRUE(socket) << socket.error().message();
  const auto caller = admit(listener, seconds(5));
  ASSERT_TRUE(caller);
  EXPECT_EQ(caller->rank, 2);
  EXPECT_EQ(caller->use, ConnectionUse::kControl);
}

TEST(PeerListener, OpensOnAPortOfTheRange) {
  const auto listener = PeerListener::open("127.0.0.1", {20000, 20999});
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_TRUE(listener->address().port >= 20000 && listener->address().port <= 20999);
}

TEST(PeerListener, TurnsAwayWrongTokensRanksAndDestinationsAndNoise) {
  PeerListener listener = open_listener();
  const auto call = [&](const std::string& token, int from, int to) {
    return *connect_to_peer(listener.address(), token, from, to, ConnectionUse::kData,
                            Deadline(seconds(5)));
  };
  std::vector<UniqueFd> wrong;
  wrong.push_back(call("guess", 2, 5));
  wrong.push_back(call("secret", 8, 5));
  wrong.push_back(call("secret", -1, 5));
  wrong.push_back(call("secret", 2, 4));
  auto noise = *BlockingSocket::connect(*numeric_address(listener.address()), Deadline(seconds(5)));
  ASSERT_TRUE(noise.send_all("GET / HTTP/1.1\r\n" + std::string(200, 'x'), Deadline(seconds(5))));
  EXPECT_FALSE(admit(listener, milliseconds(50)));
  for (const UniqueFd& socket : wrong) {
    char byte = 0;
    pollfd watched{socket.get(), POLLIN, 0};
    ASSERT_TRUE(poll_until({&watched, 1}, in(seconds(5))));
    EXPECT_LE(recv(socket.get(), &byte, 1, 0), 0) << "closed";
  }
}

TEST(PeerListener, SilentConnectionsDoNotKeepARankOut) {
  PeerListener listener = open_listener();
  std::vector<BlockingSocket> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(
        *BlockingSocket::connect(*numeric_address(listener.address()), Deadline(seconds(5))));
  }
  const auto socket = connect_to_peer(listener.address(), "secret", 2, 5, ConnectionUse::kData,
                                      Deadline(seconds(5)));
  ASSERT_TRUE(socket);
  const auto caller = admit(listener, seconds(5));
  ASSERT_TRUE(caller);
  EXPECT_EQ(caller->rank, 2);
}

TEST(PeerListener, AHundredRanksMayCallBeforeAnyIsHeard) {
  PeerListener listener = *PeerListener::open("127.0.0.1");
  listener.expect("secret", 0, 101);
  std::vector<UniqueFd> calls;
  for (int rank = 1; rank <= 100; ++rank)
    for (const ConnectionUse use : {ConnectionUse::kControl, ConnectionUse::kData})
      calls.push_back(
          *connect_to_peer(listener.address(), "secret", rank, 0, use, Deadline(seconds(5))));
  for (std::size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(admit(listener, seconds(5))) << i;
}

TEST(PeerListener, WhoComesWithAMessageWaitsUntilMessagesAreAskedFor) {
  // A rank that has connected to all its peers may send before the receiver has connected to
  // all of its own peers.
  PeerListener listener = open_listener();
  const auto socket = connect_to_peer(listener.address(), "secret", 2, 5, ConnectionUse::kMessages,
                                      Deadline(seconds(5)));
  ASSERT_TRUE(socket);
  EXPECT_FALSE(admit(listener, milliseconds(50)));
  const auto caller = listener.admit({ConnectionUse::kMessages}, in(seconds(5)));
  ASSERT_TRUE(caller && *caller);
  EXPECT_EQ((*caller)->rank, 2);
}

TEST(PeerListener, ACallToNobodySaysWhomItWasFor) {
  HostPort address;
  { address = open_listener().address(); }
  const auto socket =
      connect_to_peer(address, "secret", 2, 5, ConnectionUse::kData, Deadline(seconds(5)));
  ASSERT_FALSE(socket);
  EXPECT_THAT(socket.error().message(), HasSubstr("connect to rank 5 at 127.0.0.1:"));
}

}  // namespace
}  // namespace ddprun
