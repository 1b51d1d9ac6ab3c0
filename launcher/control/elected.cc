#include "launcher/control/elected.h"

#include <thread>

#include "base/deadline.h"
#include "base/terminal_text.h"
#include "rendezvous/persistence/etcd_client.h"

namespace ddprun {
namespace {

// A lost leader is succeeded within its lease (2 s) and 1 s.
constexpr Duration kElection = std::chrono::seconds(3);
constexpr Duration kTry = std::chrono::seconds(1);
constexpr Duration kPause = std::chrono::milliseconds(100);

// Asks the members in turn.
Result<LeaderKey> read_leader(const EtcdPlace& etcd, const TlsContextPtr& tls) {
  Result<LeaderKey> key = Error{.kind = ErrorKind::kConnection, .cause = "etcd has no members"};
  for (const HostPort& member : etcd.members) {
    const Result<std::string> body =
        call_etcd({.endpoints = {member}, .tls = tls}, read_leader_key(etcd.prefix), kTry);
    key = body ? decode_leader_key_if_any(*body) : Result<LeaderKey>(body.error());
    if (key) break;
  }
  return key;
}

}  // namespace

Result<HostPort> find_elected(const EtcdPlace& etcd, const TlsContextPtr& tls) {
  const Deadline deadline(kElection);
  while (true) {
    const Result<LeaderKey> key = read_leader(etcd, tls);
    if (!key) return key.error();
    if (key->created != 0) {
      const Result<HostPort> leader = parse_host_port(key->value);
      if (leader && !leader->host.empty() && leader->port != 0) return *leader;
      return Error{.kind = ErrorKind::kProtocol,
                   .doing = "find the leader at etcd",
                   .cause = "the key " + etcd.prefix + "/leader has no address: '" +
                            terminal_line(key->value) + "'. Another program uses this prefix"};
    }
    if (deadline.passed()) break;
    std::this_thread::sleep_for(kPause);
  }
  return Error{.kind = ErrorKind::kPeerLost,
               .doing = "find the leader at etcd",
               .cause = "no node leads (there is no key " + etcd.prefix +
                        "/leader): the job has ended, or never ran"};
}

}  // namespace ddprun
