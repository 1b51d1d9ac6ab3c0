// Etcd codec: the requests and answers of etcd's HTTP/JSON gateway, as far as several rendezvous
// services need them. The keys of one cluster of services, under its prefix:
//
//   PREFIX/leader     the address of the service that leads; belongs to its lease
//   PREFIX/chain      names the last write (rendezvous/persistence/core/fenced_writes.h)
//   PREFIX/state/KEY  the entries that a journal on disk would have
//
// The gateway leaves zero values out, sends 64-bit numbers as text, and sends bytes as base64.
// Pure functions; any thread. Decoders return kProtocol for an answer that is not etcd's.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/membership/core/leadership.h"
#include "rendezvous/persistence/core/fenced_writes.h"
#include "rendezvous/persistence/core/journal.h"

namespace ddprun {

struct EtcdRequest {
  std::string path;  // "/v3/kv/range"
  std::string body;  // JSON
  // Whether it has the same effect if it is performed twice.
  bool is_repeatable = false;
};

// Makes the request for a lease. It is rounded up to whole seconds, as etcd counts them. id: 0 lets
// etcd choose.
EtcdRequest grant_lease(Duration lease, EtcdLease id = 0);
EtcdRequest keep_lease(EtcdLease lease);
EtcdRequest revoke_lease(EtcdLease lease);
// Creates the leader key if it does not exist, and reads it.
EtcdRequest create_leader_key(std::string_view prefix, EtcdLease lease, std::string_view address);
EtcdRequest read_leader_key(std::string_view prefix);
// Watches the leader key.
EtcdRequest watch_leader_key(std::string_view prefix, EtcdRevision from);
// Reads all keys of the prefix.
EtcdRequest read_state(std::string_view prefix);
// keys_lease: the keys that are put belong to it; 0: they stay.
EtcdRequest put_fenced(std::string_view prefix, const FencedWrite& write, EtcdLease keys_lease = 0);
// Proves a user. The answer has a token for later requests.
EtcdRequest authenticate(std::string_view user, const Secret& password);

struct GrantedLease {
  EtcdLease lease = 0;
  Duration time{};
};
Result<GrantedLease> decode_granted(std::string_view body);
Result<std::string> decode_token(std::string_view body);
// Returns whether etcd still has the lease.
Result<bool> decode_kept(std::string_view body);
Result<LeaderKey> decode_leader_key(std::string_view body);
// Decodes the answer to read_leader_key(). If there is no key, `created` is 0.
Result<LeaderKey> decode_leader_key_if_any(std::string_view body);
struct EtcdContents {
  JournalImage image;
  EtcdRevision chain_modified = 0;  // 0: there is no chain key
};
Result<EtcdContents> decode_contents(std::string_view prefix, std::string_view body);
// Returns the revision of the write or, if it was refused, what was found.
Result<std::variant<EtcdRevision, FenceState>> decode_written(std::string_view body);
enum class WatchEvent { kNothing, kDeleted, kEnded };
// Decodes a line of the watch.
Result<WatchEvent> decode_watch_line(std::string_view line);

// Returns what an answer other than 200 says: etcd's message, or the beginning of the text.
std::string etcd_error_text(std::string_view body);

}  // namespace ddprun
