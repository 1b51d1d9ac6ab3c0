#include "rendezvous/net/icmp_error.h"

#include <time.h>  // which errqueue.h needs and does not include

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

namespace ddprun {
namespace {

void set(int socket, int on) {
  setsockopt(socket, IPPROTO_IP, IP_RECVERR, &on, sizeof on);
  setsockopt(socket, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof on);
}

}  // namespace

void keep_icmp_errors(int socket) { set(socket, 1); }
void ignore_icmp_errors(int socket) { set(socket, 0); }

bool has_icmp_error(int socket) {
  alignas(cmsghdr) std::array<char, 512> control;
  msghdr message{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return false;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
    const bool is_v4 = one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_RECVERR;
    const bool is_v6 = one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_RECVERR;
    if (!is_v4 && !is_v6) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(one), sizeof error);
    if (error.ee_origin == SO_EE_ORIGIN_ICMP || error.ee_origin == SO_EE_ORIGIN_ICMP6) return true;
  }
  return false;
}

}  // namespace ddprun
