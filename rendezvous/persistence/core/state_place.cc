#include "rendezvous/persistence/core/state_place.h"

#include <algorithm>

#include "base/concat.h"
#include "base/is_control.h"
#include "base/split.h"

namespace ddprun {
namespace {

constexpr std::string_view kDirectory = "dir:";
constexpr std::string_view kEtcd = "etcd://";

Error bad(std::string_view text, std::string_view expected) {
  return invalid_argument(concat("invalid value '", text, "' (", expected, ")"));
}

}  // namespace

bool is_etcd_prefix(std::string_view prefix) {
  return prefix.size() <= StatePlace::kMaxPrefixBytes && prefix.find("//") == prefix.npos &&
         !prefix.ends_with('/') && (prefix.empty() || prefix.starts_with('/')) &&
         std::ranges::none_of(prefix, [](char c) { return is_control(c) || c == '?' || c == '#'; });
}

Result<StatePlace> parse_state_place(std::string_view text) {
  StatePlace place;
  if (text.starts_with(kDirectory) && text.size() > kDirectory.size()) {
    place.directory = text.substr(kDirectory.size());
    return place;
  }
  if (!text.starts_with(kEtcd)) {
    return bad(text, "expected dir:PATH or etcd://HOST:PORT,HOST:PORT,.../PREFIX");
  }
  const std::string_view rest = text.substr(kEtcd.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  if (rest.substr(0, slash).find('@') != rest.npos) {
    // Not with the value: it may hold a password.
    return invalid_argument(
        "a URL of etcd has no user: use --etcd-user, and --etcd-password-file or "
        "DDPRUN_ETCD_PASSWORD");
  }
  for (const std::string_view member : split(rest.substr(0, slash), ',')) {
    const Result<HostPort> address = parse_host_port(member, StatePlace::kEtcdPort);
    if (!address) return Error(address.error()).within(concat("member '", member, "' of etcd"));
    if (address->host.empty() || address->port == 0) {
      return bad(text, "expected etcd://HOST:PORT,HOST:PORT,.../PREFIX");
    }
    if (std::ranges::count(place.etcd, *address) > 0) {
      return bad(text, concat(*address, " is named twice"));
    }
    place.etcd.push_back(*address);
  }
  std::string_view prefix = rest.substr(slash);
  if (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (!is_etcd_prefix(prefix)) {
    return bad(text, concat("the prefix of the keys must be a path of at most ",
                            StatePlace::kMaxPrefixBytes, " bytes, such as /ddprun/cluster1"));
  }
  place.prefix = prefix.empty() ? StatePlace::kEtcdPrefix : prefix;
  return place;
}

}  // namespace ddprun
