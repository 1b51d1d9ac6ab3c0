#include "launcher/doctor/etcd.h"

#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/base64.h"
#include "base/deadline.h"
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

// Makes one call, and waits for its answer.
Result<EtcdObject> ask(const std::vector<HostPort>& members, const TlsContextPtr& tls,
                       const EtcdRequest& request) {
  boost::asio::io_context io{1};
  EtcdClient client(io, {.endpoints = members, .tls = tls});
  Result<std::string> body = Error{.kind = ErrorKind::kTimeout, .cause = "no answer"};
  client.call(request, kPatience, [&](const Result<std::string>& answer) {
    body = answer;
    io.stop();
  });
  io.run_for(kPatience * 2);
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

EtcdMember look_at_member(const HostPort& address, const EtcdAsked& asked,
                          std::set<std::string>& alarms) {
  EtcdMember member{.address = address};
  const Deadline deadline(kPatience);
  const Result<EtcdObject> status = ask({address}, asked.tls, {"/v3/maintenance/status", "{}"});
  member.took = deadline.waited();
  if (!status) {
    member.trouble = status.error().message();
    return member;
  }
  member.version = text_at(status->json, "version");
  member.has_leader =
      !text_at(status->json, "leader").empty() && text_at(status->json, "leader") != "0";
  const Result<EtcdObject> alarm =
      ask({address}, asked.tls, {"/v3/maintenance/alarm", R"({"action":"GET"})"});
  if (!alarm || !alarm->json.contains("alarms") || !alarm->json.at("alarms").is_array())
    return member;
  for (const Json& one : alarm->json.at("alarms")) {
    if (one.is_object()) alarms.insert(text_at(one, "alarm"));
  }
  return member;
}

// Writes a key that etcd removes by itself if this process ends now.
Result<Duration> write_durably(const EtcdAsked& asked) {
  const std::vector<HostPort>& members = asked.place.members;
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
  const Result<Duration> written = write_durably(asked);
  if (written) {
    facts.write_took = *written;
  } else {
    facts.write_trouble = written.error().message();
  }
  return facts;
}

}  // namespace ddprun
