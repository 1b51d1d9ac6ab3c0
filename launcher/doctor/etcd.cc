#include "launcher/doctor/etcd.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/base64.h"
#include "base/deadline.h"
#include "base/parse_number.h"
#include "base/random_id.h"
#include "rendezvous/persistence/etcd_client.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr Duration kPatience = std::chrono::milliseconds(1500);

// EtcdObject: an answer. Result<> cannot have JSON itself, into which an Error converts.
struct EtcdObject {
  Json json;
};

// Returns the time in UTC that an answer's head says, in whole seconds.
std::optional<Duration> parse_date(const std::string& text) {
  std::tm parts{};
  if (!strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S", &parts)) return std::nullopt;
  return std::chrono::seconds(timegm(&parts));
}

// Makes one call, and waits for its answer. date: receives the time of the answer's head.
Result<EtcdObject> ask(const std::vector<HostPort>& members, const TlsContextPtr& tls,
                       const EtcdRequest& request, std::optional<Duration>* date = nullptr) {
  EtcdClientOptions options{.endpoints = members, .tls = tls};
  if (date) options.see_date = [date](auto text) { *date = parse_date(std::string(text)); };
  const Result<std::string> body = call_etcd(std::move(options), request, kPatience);
  if (!body) return body.error();
  Json json = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return EtcdObject{std::move(json)};
  return Error{.kind = ErrorKind::kProtocol, .cause = "it does not answer as etcd does"};
}

// Returns the text of a field, also if it is a number.
std::string text_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::int64_t number_at(const Json& json, const char* key) {
  return std::max<std::int64_t>(0, parse_number<std::int64_t>(text_at(json, key)).value_or(0));
}

EtcdMember look_at_member(const HostPort& address, const EtcdAsked& asked,
                          std::set<std::string>& alarms) {
  EtcdMember member{.address = address};
  const Deadline deadline(kPatience);
  std::optional<Duration> date;
  const Result<EtcdObject> status =
      ask({address}, asked.tls, {"/v3/maintenance/status", "{}"}, &date);
  member.took = deadline.waited();
  const Duration now = std::chrono::system_clock::now().time_since_epoch();
  // On average, a second that is cut off is half over.
  if (date) member.clock_ahead = *date + std::chrono::milliseconds(500) - now;
  if (!status) {
    member.trouble = status.error().message();
    return member;
  }
  member.version = text_at(status->json, "version");
  member.has_leader =
      !text_at(status->json, "leader").empty() && text_at(status->json, "leader") != "0";
  member.size = number_at(status->json, "dbSize");
  member.quota = number_at(status->json, "dbSizeQuota");
  const Result<EtcdObject> alarm =
      ask({address}, asked.tls, {"/v3/maintenance/alarm", R"({"action":"GET"})"});
  if (!alarm || !alarm->json.contains("alarms") || !alarm->json.at("alarms").is_array())
    return member;
  for (const Json& one : alarm->json.at("alarms")) {
    if (one.is_object()) alarms.insert(text_at(one, "alarm"));
  }
  return member;
}

// Returns the number of members of the smallest cluster; 0: no member says it.
std::size_t cluster_size(const EtcdFacts& facts, const TlsContextPtr& tls) {
  std::size_t smallest = 0;
  for (const EtcdMember& one : facts.members) {
    if (!one.trouble.empty()) continue;
    const Result<EtcdObject> list = ask({one.address}, tls, {"/v3/cluster/member/list", "{}"});
    if (!list || !list->json.contains("members") || !list->json.at("members").is_array()) continue;
    const std::size_t size = list->json.at("members").size();
    smallest = smallest == 0 ? size : std::min(smallest, size);
  }
  return smallest;
}

// Writes a key that etcd removes by itself if this process ends now.
Result<Duration> write_durably(const HostPort& member, const EtcdAsked& asked) {
  const std::vector<HostPort> members{member};
  const Result<EtcdObject> lease = ask(members, asked.tls, {"/v3/lease/grant", R"({"TTL":10})"});
  if (!lease) return lease.error();
  const std::string id = text_at(lease->json, "ID");
  const std::string key = asked.place.prefix + "-doctor-" + random_hex(8);
  const Json put{{"key", to_base64(key)}, {"value", to_base64("x")}, {"lease", id}};
  const Deadline deadline(kPatience);
  const Result<EtcdObject> written = ask(members, asked.tls, {"/v3/kv/put", put.dump()});
  const Duration took = deadline.waited();
  [[maybe_unused]] const Result<EtcdObject> revoked =
      ask(members, asked.tls, {"/v3/lease/revoke", Json{{"ID", id}}.dump()});
  if (!written) return written.error();
  return took;
}

}  // namespace

EtcdFacts look_at_etcd(const EtcdAsked& asked) {
  EtcdFacts facts;
  std::set<std::string> alarms;
  for (const HostPort& one : asked.place.members)
    facts.members.push_back(look_at_member(one, asked, alarms));
  facts.alarms.assign(alarms.begin(), alarms.end());
  facts.cluster_size = cluster_size(facts, asked.tls);
  Result<Duration> written = Error{.kind = ErrorKind::kConnection, .cause = "no member answers"};
  for (const EtcdMember& one : facts.members) {
    if (one.trouble.empty() && !written) written = write_durably(one.address, asked);
  }
  if (written) {
    facts.write_took = *written;
  } else {
    facts.write_trouble = written.error().message();
  }
  return facts;
}

}  // namespace ddprun
