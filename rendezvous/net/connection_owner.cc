#include "rendezvous/net/connection_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/concat.h"
#include "base/peer_user.h"
#include "base/unique_fd.h"

namespace ddprun {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDoing = "find the process of a local connection";

// An address in the form of sock_diag and /proc: four words in network order. An IPv4 address is
// in the first word, also if it was given inside an IPv6 one.
struct RawAddress {
  bool is_v6 = false;
  std::array<std::uint32_t, 4> words{};
  std::uint16_t port = 0;  // in network order
};

RawAddress raw_of(const SocketAddress& address) {
  RawAddress raw;
  if (address.family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    raw.words[0] = v4->sin_addr.s_addr;
    raw.port = v4->sin_port;
    return raw;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  std::memcpy(raw.words.data(), &v6->sin6_addr, sizeof v6->sin6_addr);
  raw.port = v6->sin6_port;
  raw.is_v6 = !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
  if (!raw.is_v6) raw.words = {raw.words[3], 0, 0, 0};
  return raw;
}

struct DiagRequest {
  nlmsghdr header{};
  inet_diag_req_v2 body{};
};

DiagRequest request_for(const RawAddress& peer, const RawAddress& local) {
  DiagRequest request;
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = peer.is_v6 ? AF_INET6 : AF_INET;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  inet_diag_sockid& id = request.body.id;
  id.idiag_sport = peer.port;
  id.idiag_dport = local.port;
  std::memcpy(id.idiag_src, peer.words.data(), sizeof id.idiag_src);
  std::memcpy(id.idiag_dst, local.words.data(), sizeof id.idiag_dst);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return request;
}

Error not_held() {
  return Error{.kind = ErrorKind::kNotFound,
               .doing = kDoing,
               .cause = "no process on this host holds its other end"};
}

// Asks by sock_diag. kUnsupported: this kernel does not support the question.
Result<SocketOwner> owner_by_sock_diag(const RawAddress& peer, const RawAddress& local) {
  const auto unsupported = [](int error) {
    Error found = system_error(kDoing, error);
    found.kind = ErrorKind::kUnsupported;
    return found;
  };
  static std::atomic<bool> has_answered{false};  // for any connection
  const UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink.valid()) return unsupported(errno);
  const DiagRequest request = request_for(peer, local);
  if (send(netlink.get(), &request, sizeof request, 0) != ssize_t{sizeof request}) {
    return unsupported(errno);
  }
  // The kernel answers within send().
  alignas(nlmsghdr) std::array<char, 4096> answer;
  const ssize_t size = recv(netlink.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  if (size < ssize_t{sizeof(nlmsghdr)}) return unsupported(size < 0 ? errno : EPROTO);
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
  if (header->nlmsg_type == NLMSG_ERROR) {
    const auto* failed = static_cast<const nlmsgerr*>(NLMSG_DATA(header));
    // A kernel without the module for TCP also answers ENOENT. In that case /proc is read, which
    // takes milliseconds.
    if (failed->error == -ENOENT && has_answered) return not_held();
    return unsupported(-failed->error);
  }
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) {
    return unsupported(EPROTO);
  }
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  has_answered = true;
  // If the connection is gone, the kernel may find a listener at its port.
  if (found->idiag_state == TCP_LISTEN || found->id.idiag_dport != local.port) return not_held();
  // A socket that its process has closed has root as its user and no inode.
  if (found->idiag_inode == 0) return not_held();
  return SocketOwner{static_cast<uid_t>(found->idiag_uid), found->idiag_inode};
}

std::string hexadecimal(const RawAddress& address, bool in_v6_table) {
  std::array<char, 64> text{};
  const unsigned port = ntohs(address.port);
  const std::array words =
      address.is_v6 ? address.words : std::array{0U, 0U, htonl(0xffffU), address.words[0]};
  if (address.is_v6 || in_v6_table) {
    std::snprintf(text.data(), text.size(), "%08X%08X%08X%08X:%04X", words[0], words[1], words[2],
                  words[3], port);
  } else {
    std::snprintf(text.data(), text.size(), "%08X:%04X", address.words[0], port);
  }
  return text.data();
}

// Columns: sl local remote state queues timer retransmits uid timeout inode
Result<SocketOwner> owner_in(const char* path, const std::string& local,
                             const std::string& remote) {
  std::ifstream table(path);
  std::string line;
  while (std::getline(table, line)) {
    if (line.find(local + " " + remote) == line.npos) continue;
    std::array<char, 64> here{};
    std::array<char, 64> there{};
    unsigned uid = 0;
    unsigned long inode = 0;
    const int read = std::sscanf(line.c_str(), " %*d: %63s %63s %*x %*x:%*x %*x:%*x %*x %u %*d %lu",
                                 here.data(), there.data(), &uid, &inode);
    if (read != 4 || local != here.data() || remote != there.data() || inode == 0) continue;
    return SocketOwner{static_cast<uid_t>(uid), inode};
  }
  return not_held();
}

}  // namespace

// Reads the table several times: it is read in pieces, and a connection may be missed if the
// kernel moves its entry in between.
Result<SocketOwner> owner_by_proc(const SocketAddress& peer, const SocketAddress& local) {
  constexpr int kReadings = 3;
  const RawAddress from = raw_of(peer);
  const RawAddress to = raw_of(local);
  for (int i = 0; i < kReadings; ++i) {
    if (!from.is_v6) {
      Result<SocketOwner> owner =
          owner_in("/proc/net/tcp", hexadecimal(from, false), hexadecimal(to, false));
      if (owner) return owner;
    }
    Result<SocketOwner> owner =
        owner_in("/proc/net/tcp6", hexadecimal(from, true), hexadecimal(to, true));
    if (owner) return owner;
  }
  return not_held();
}

Result<uid_t> owner_of_connection(const SocketAddress& peer, const SocketAddress& local) {
  Result<SocketOwner> owner = owner_by_sock_diag(raw_of(peer), raw_of(local));
  if (!owner && owner.error().kind == ErrorKind::kUnsupported) owner = owner_by_proc(peer, local);
  if (!owner) return std::move(owner).error();
  if (names_one_user(owner->user)) return owner->user;
  if (may_see_holder(owner->inode)) return geteuid();
  return Error{.kind = ErrorKind::kNotFound,
               .doing = kDoing,
               .cause = "this user namespace has no id for the user of its other end"};
}

std::string why_not_this_user(const std::string& server, const SocketAddress& peer,
                              const SocketAddress& local) {
  if (peer.family() == AF_UNSPEC) return "its other end is gone";
  if (!is_within_this_host(peer, local)) return "";
  const Result<uid_t> owner = owner_of_connection(peer, local);
  if (!owner) {
    return concat("this ", server, " serves only one user's processes, and ", owner.error().cause);
  }
  if (*owner == geteuid() || *owner == 0) return "";
  return concat("it belongs to user ", *owner, ", but this ", server, " serves user ", geteuid(),
                "'s processes");
}

bool may_see_holder(std::uint64_t inode) {
  const std::string wanted = "socket:[" + std::to_string(inode) + "]";
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    if (std::isdigit(static_cast<unsigned char>(process->path().filename().c_str()[0])) == 0)
      continue;
    std::error_code hidden;
    for (fs::directory_iterator fd(process->path() / "fd", hidden); !hidden && fd != end;
         fd.increment(hidden)) {
      std::error_code closed;
      if (fs::read_symlink(fd->path(), closed) == wanted) return true;
    }
  }
  return false;
}

bool is_within_this_host(const SocketAddress& peer, const SocketAddress& local) {
  return is_loopback_address(peer) || peer.host() == local.host() || is_local_address(peer);
}

}  // namespace ddprun
