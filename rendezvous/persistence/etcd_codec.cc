#include "rendezvous/persistence/etcd_codec.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "base/is_control.h"
#include "base/terminal_text.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kErrorTextBytes = 200;
constexpr std::size_t kMaxTokenBytes = 8192;

std::string leader_key(std::string_view prefix) { return std::string(prefix) + "/leader"; }
std::string chain_key(std::string_view prefix) { return std::string(prefix) + "/chain"; }
std::string state_key(std::string_view prefix, std::string_view key) {
  return std::string(prefix) + "/state/" + std::string(key);
}

Json range_of(const std::string& key) { return {{"request_range", {{"key", to_base64(key)}}}}; }

Json put_of(const std::string& key, std::string_view value) {
  return {{"request_put", {{"key", to_base64(key)}, {"value", to_base64(value)}}}};
}

Error not_etcds() {
  return {.kind = ErrorKind::kProtocol, .doing = "read an answer of etcd", .cause = "not etcd's"};
}

// Returns the object; null if the text is none.
Json parse(std::string_view body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) json = nullptr;
  return json;
}

// Returns the member; null if it is absent, as zero values are.
const Json& at(const Json& json, const char* name) {
  static const Json kNull;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return json.is_object() && found != json.end() ? *found : kNull;
}

// Returns a 64-bit number, which the gateway sends as text; 0 if it is absent.
std::optional<std::int64_t> number(const Json& json) {
  if (json.is_null()) return 0;
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (!json.is_string()) return std::nullopt;
  const std::string& text = json.get_ref<const std::string&>();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::string> bytes(const Json& json) {
  if (json.is_null()) return "";
  if (!json.is_string()) return std::nullopt;
  return from_base64(json.get_ref<const std::string&>());
}

struct KeyValue {
  std::string key;
  std::string value;
  EtcdRevision created = 0;
  EtcdRevision modified = 0;
  EtcdLease lease = 0;
};

std::optional<std::vector<KeyValue>> key_values(const Json& range) {
  std::vector<KeyValue> found;
  for (const Json& kv : at(range, "kvs")) {
    const auto key = bytes(at(kv, "key"));
    const auto value = bytes(at(kv, "value"));
    const auto created = number(at(kv, "create_revision"));
    const auto modified = number(at(kv, "mod_revision"));
    const auto lease = number(at(kv, "lease"));
    if (!key || !value || !created || !modified || !lease) return std::nullopt;
    found.push_back({*key, *value, *created, *modified, *lease});
  }
  return found;
}

std::optional<EtcdRevision> revision_of(const Json& answer) {
  return number(at(at(answer, "header"), "revision"));
}

// Returns what the range requests of a transaction have found; an empty list for each other
// response.
std::optional<std::vector<std::vector<KeyValue>>> ranges_of(const Json& answer) {
  std::vector<std::vector<KeyValue>> found;
  for (const Json& response : at(answer, "responses")) {
    auto range = key_values(at(response, "response_range"));
    if (!range) return std::nullopt;
    found.push_back(std::move(*range));
  }
  return found;
}

}  // namespace

EtcdRequest grant_lease(Duration lease, EtcdLease id) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(lease).count();
  return {"/v3/lease/grant", Json{{"TTL", seconds}, {"ID", std::to_string(id)}}.dump()};
}

EtcdRequest keep_lease(EtcdLease lease) {
  return {"/v3/lease/keepalive", Json{{"ID", std::to_string(lease)}}.dump(), true};
}

EtcdRequest revoke_lease(EtcdLease lease) {
  return {"/v3/lease/revoke", Json{{"ID", std::to_string(lease)}}.dump(), true};
}

EtcdRequest create_leader_key(std::string_view prefix, EtcdLease lease, std::string_view address) {
  const std::string key = leader_key(prefix);
  Json put = put_of(key, address);
  put["request_put"]["lease"] = std::to_string(lease);
  const Json body{
      {"compare", {{{"key", to_base64(key)}, {"target", "CREATE"}, {"create_revision", "0"}}}},
      {"success", {put, range_of(key)}},
      {"failure", {range_of(key)}}};
  // The comparison lets one of several such requests succeed. All answers say whose key it is.
  return {"/v3/kv/txn", body.dump(), true};
}

EtcdRequest read_leader_key(std::string_view prefix) {
  return {"/v3/kv/range", Json{{"key", to_base64(leader_key(prefix))}}.dump(), true};
}

EtcdRequest watch_leader_key(std::string_view prefix, EtcdRevision from) {
  const Json body{
      {"create_request",
       {{"key", to_base64(leader_key(prefix))}, {"start_revision", std::to_string(from)}}}};
  return {"/v3/watch", body.dump()};
}

EtcdRequest read_state(std::string_view prefix) {
  // The end of a range is the prefix with its last byte plus one: '0' follows '/'.
  const Json body{{"key", to_base64(std::string(prefix) + "/")},
                  {"range_end", to_base64(std::string(prefix) + "0")}};
  return {"/v3/kv/range", body.dump(), true};
}

EtcdRequest put_fenced(std::string_view prefix, const FencedWrite& write, EtcdLease keys_lease) {
  const auto put = [keys_lease](const std::string& key, std::string_view value) {
    Json one = put_of(key, value);
    if (keys_lease != 0) one["request_put"]["lease"] = std::to_string(keys_lease);
    return one;
  };
  const std::string leader = leader_key(prefix);
  const std::string chain = chain_key(prefix);
  Json body;
  body["compare"] = {
      {{"key", to_base64(leader)},
       {"target", "CREATE"},
       {"create_revision", std::to_string(write.term)}},
      {{"key", to_base64(chain)}, {"target", "MOD"}, {"mod_revision", std::to_string(write.last)}}};
  body["success"] = Json::array({put(chain, write.chain_value)});
  for (const JournalEntry& entry : write.entries) {
    const std::string key = state_key(prefix, entry.key);
    body["success"].push_back(entry.value.empty()
                                  ? Json{{"request_delete_range", {{"key", to_base64(key)}}}}
                                  : put(key, entry.value));
  }
  body["failure"] = {range_of(leader), range_of(chain)};
  // As above: the chain key tells whether an earlier one has succeeded.
  return {"/v3/kv/txn", body.dump(), true};
}

EtcdRequest authenticate(std::string_view user, const Secret& password) {
  return {"/v3/auth/authenticate", Json{{"name", user}, {"password", password.view()}}.dump(),
          true};
}

Result<std::string> decode_token(std::string_view body) {
  const Json json = parse(body);
  const Json& token = at(json, "token");
  if (!token.is_string()) return not_etcds();
  const std::string text = token.get<std::string>();
  // It goes into a header.
  if (text.empty() || text.size() > kMaxTokenBytes || std::ranges::any_of(text, is_control)) {
    return not_etcds();
  }
  return text;
}

Result<GrantedLease> decode_granted(std::string_view body) {
  const Json json = parse(body);
  if (json.is_null()) return not_etcds();
  const auto lease = number(at(json, "ID"));
  const auto seconds = number(at(json, "TTL"));
  if (!lease || *lease == 0 || !seconds || *seconds <= 0 ||
      std::chrono::seconds(*seconds) > kLongestTimeout) {
    return not_etcds();
  }
  return GrantedLease{*lease, std::chrono::seconds(*seconds)};
}

Result<bool> decode_kept(std::string_view body) {
  const Json json = parse(body);
  if (json.is_null()) return not_etcds();
  const Json& result = at(json, "result");
  const auto seconds = number(at(result, "TTL"));
  if (!result.is_object() || !seconds) return not_etcds();
  return *seconds > 0;
}

Result<LeaderKey> decode_leader_key(std::string_view body) {
  const Json json = parse(body);
  if (json.is_null()) return not_etcds();
  const auto revision = revision_of(json);
  const auto ranges = ranges_of(json);
  // After a success, the range follows the put.
  if (!revision || !ranges || ranges->empty() || ranges->back().size() != 1) return not_etcds();
  const KeyValue& key = ranges->back()[0];
  return LeaderKey{key.created, key.lease, key.value, *revision};
}

Result<LeaderKey> decode_leader_key_if_any(std::string_view body) {
  const Json json = parse(body);
  if (json.is_null()) return not_etcds();
  const auto revision = revision_of(json);
  const auto kvs = key_values(json);
  if (!revision || *revision == 0 || !kvs || kvs->size() > 1) return not_etcds();
  LeaderKey found{.seen = *revision};
  if (!kvs->empty())
    found = {kvs->front().created, kvs->front().lease, kvs->front().value, *revision};
  return found;
}

Result<EtcdContents> decode_contents(std::string_view prefix, std::string_view body) {
  const Json json = parse(body);
  if (json.is_null()) return not_etcds();
  const auto kvs = key_values(json);
  const auto revision = revision_of(json);
  if (!kvs || !revision || *revision == 0) return not_etcds();
  const std::string begin = state_key(prefix, "");
  EtcdContents state;
  for (const KeyValue& kv : *kvs) {
    if (kv.key.starts_with(begin)) state.image[kv.key.substr(begin.size())] = kv.value;
    if (kv.key == chain_key(prefix)) state.chain_modified = kv.modified;
  }
  return state;
}

Result<std::variant<EtcdRevision, FenceState>> decode_written(std::string_view body) {
  using Written = std::variant<EtcdRevision, FenceState>;
  const Json json = parse(body);
  if (json.is_null()) return not_etcds();
  const auto revision = revision_of(json);
  if (!revision || *revision == 0) return not_etcds();
  const Json& succeeded = at(json, "succeeded");
  if (succeeded.is_boolean() && succeeded.get<bool>()) return Written(*revision);
  const auto ranges = ranges_of(json);
  if (!ranges || ranges->size() != 2) return not_etcds();
  FenceState found;
  for (const KeyValue& leader : (*ranges)[0]) found.leader_created = leader.created;
  for (const KeyValue& chain : (*ranges)[1]) {
    found.chain_modified = chain.modified;
    found.chain_value = chain.value;
  }
  return Written(std::move(found));
}

Result<WatchEvent> decode_watch_line(std::string_view line) {
  const Json json = parse(line);
  if (json.is_null()) return not_etcds();
  const Json& result = at(json, "result");
  const Json& canceled = at(result, "canceled");
  if (!result.is_object() || (canceled.is_boolean() && canceled.get<bool>()))
    return WatchEvent::kEnded;
  for (const Json& event : at(result, "events")) {
    if (at(event, "type") == "DELETE") return WatchEvent::kDeleted;
  }
  return WatchEvent::kNothing;
}

std::string etcd_error_text(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const Json& error = at(json, "error");
  const Json& message = at(error.is_object() ? error : json, "message");
  std::string text = message.is_string() ? message.get<std::string>()
                     : error.is_string() ? error.get<std::string>()
                                         : std::string(body);
  text.resize(std::min(text.find_last_not_of("\r\n") + 1, kErrorTextBytes));
  return terminal_line(text);
}

}  // namespace ddprun
