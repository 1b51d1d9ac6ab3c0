#include "rendezvous/persistence/etcd_codec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/base64.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

// Bodies as etcd 3.4 sends them.
constexpr const char* kHeader = R"("header":{"cluster_id":"1","member_id":"2","revision":"9"})";
std::string body(const std::string& rest) {
  return std::string("{") + kHeader + (rest.empty() ? "" : "," + rest) + "}";
}
std::string kv(const std::string& key, const std::string& value, int created, int modified) {
  return R"({"key":")" + to_base64(key) + R"(","create_revision":")" + std::to_string(created) +
         R"(","mod_revision":")" + std::to_string(modified) + R"(","version":"1","value":")" +
         to_base64(value) + R"("})";
}

TEST(EtcdCodec, AWriteComparesLeaderAndChain) {
  const EtcdRequest request = put_fenced(
      "/p",
      {.term = 7, .last = 0, .chain_value = "7 1", .entries = {{"job/a", "x"}, {"job/b", ""}}});
  EXPECT_EQ(request.path, "/v3/kv/txn");
  const Json json = Json::parse(request.body);
  ASSERT_EQ(json["compare"].size(), 2u);
  EXPECT_EQ(json["compare"][0]["key"], to_base64("/p/leader"));
  EXPECT_EQ(json["compare"][0]["target"], "CREATE");
  EXPECT_EQ(json["compare"][0]["create_revision"], "7");
  EXPECT_EQ(json["compare"][1]["target"], "MOD");
  EXPECT_EQ(json["compare"][1]["mod_revision"], "0");
  ASSERT_EQ(json["success"].size(), 3u);
  EXPECT_EQ(json["success"][1]["request_put"]["key"], to_base64("/p/state/job/a"));
  EXPECT_TRUE(json["success"][2].contains("request_delete_range"));
  EXPECT_EQ(json["failure"].size(), 2u);
}

TEST(EtcdCodec, ALeaseIsRoundedUp) {
  EXPECT_EQ(grant_lease(std::chrono::milliseconds(1500)).body, R"({"ID":"0","TTL":2})");
  EXPECT_EQ(grant_lease(std::chrono::hours(24), 7).body, R"({"ID":"7","TTL":86400})");
  const auto granted = decode_granted(body(R"("ID":"77","TTL":"2")"));
  ASSERT_TRUE(granted);
  EXPECT_EQ(granted->lease, 77);
  EXPECT_EQ(granted->time, std::chrono::seconds(2));
}

TEST(EtcdCodec, ADeadLeaseHasNoTime) {
  EXPECT_EQ(decode_kept(R"({"result":{"header":{},"ID":"77","TTL":"2"}})").value(), true);
  EXPECT_EQ(decode_kept(R"({"result":{"header":{},"ID":"77"}})").value(), false);
  EXPECT_FALSE(decode_kept(R"({"ID":"77"})"));
}

TEST(EtcdCodec, ReadsTheLeaderKeyOfBothOutcomes) {
  const std::string range = R"({"response_range":{"kvs":[)" + kv("/p/leader", "a:1", 5, 5) + "]}}";
  for (const std::string& responses :
       {R"("succeeded":true,"responses":[{"response_put":{}},)" + range + "]",
        R"("responses":[)" + range + "]"}) {
    const auto key = decode_leader_key(body(responses));
    ASSERT_TRUE(key) << responses;
    EXPECT_EQ(key->created, 5);
    EXPECT_EQ(key->lease, 0);
    EXPECT_EQ(key->value, "a:1");
    EXPECT_EQ(key->seen, 9);
  }
  // The key was deleted between the comparison and the range: not within a transaction.
  EXPECT_FALSE(decode_leader_key(body(R"("responses":[{"response_range":{}}])")));
}

TEST(EtcdCodec, ReadsTheLeaderKeyWithoutCampaigning) {
  EXPECT_EQ(read_leader_key("/p").path, "/v3/kv/range");
  const auto key =
      decode_leader_key_if_any(body(R"("kvs":[)" + kv("/p/leader", "a:1", 5, 5) + "]"));
  ASSERT_TRUE(key);
  EXPECT_EQ(key->created, 5);
  EXPECT_EQ(key->value, "a:1");
  EXPECT_EQ(key->seen, 9);
  const auto none = decode_leader_key_if_any(body(""));
  ASSERT_TRUE(none);
  EXPECT_EQ(none->created, 0);
}

TEST(EtcdCodec, KeysMayBelongToALease) {
  const FencedWrite write{.term = 5, .chain_value = "5 1", .entries = {{"job/a", "{}"}}};
  EXPECT_EQ(put_fenced("/p", write).body.find("lease"), std::string::npos);
  const std::string put = put_fenced("/p", write, 7).body;
  EXPECT_NE(put.find(R"("lease":"7")"), put.rfind(R"("lease":"7")")) << "of the chain, too";
}

TEST(EtcdCodec, ReadsTheStateAndTheChain) {
  const auto contents = decode_contents(
      "/p", body(R"("kvs":[)" + kv("/p/chain", "5 3", 6, 8) + "," + kv("/p/leader", "a:1", 5, 5) +
                 "," + kv("/p/state/job/a", "{}", 7, 7) + R"(],"count":"3")"));
  ASSERT_TRUE(contents);
  EXPECT_EQ(contents->chain_modified, 8);
  EXPECT_EQ(contents->image, (JournalImage{{"job/a", "{}"}}));
  const auto nothing = decode_contents("/p", body(""));
  ASSERT_TRUE(nothing);
  EXPECT_TRUE(nothing->image.empty());
  EXPECT_EQ(nothing->chain_modified, 0);
}

TEST(EtcdCodec, ReadsWhetherAWriteWasPerformed) {
  const auto done = decode_written(body(R"("succeeded":true,"responses":[{"response_put":{}}])"));
  ASSERT_TRUE(done);
  EXPECT_EQ(std::get<EtcdRevision>(*done), 9);
  const auto refused =
      decode_written(body(R"("responses":[{"response_range":{"kvs":[)" +
                          kv("/p/leader", "b:1", 8, 8) + R"(]}},{"response_range":{}}])"));
  ASSERT_TRUE(refused);
  EXPECT_EQ(std::get<FenceState>(*refused).leader_created, 8);
  EXPECT_EQ(std::get<FenceState>(*refused).chain_modified, 0);
  EXPECT_FALSE(decode_written(body("")));
}

TEST(EtcdCodec, TellsDeletionsAndEndsOfAWatch) {
  EXPECT_EQ(decode_watch_line(R"({"result":{"header":{},"created":true}})").value(),
            WatchEvent::kNothing);
  EXPECT_EQ(decode_watch_line(R"({"result":{"events":[{"kv":{"key":"YQ=="}}]}})").value(),
            WatchEvent::kNothing);
  EXPECT_EQ(
      decode_watch_line(R"({"result":{"events":[{"type":"DELETE","kv":{"key":"YQ=="}}]}})").value(),
      WatchEvent::kDeleted);
  EXPECT_EQ(decode_watch_line(R"({"result":{"canceled":true,"compact_revision":"5"}})").value(),
            WatchEvent::kEnded);
  EXPECT_EQ(decode_watch_line(R"({"error":{"grpc_code":14,"message":"no leader"}})").value(),
            WatchEvent::kEnded);
}

TEST(EtcdCodec, RefusesWhatIsNotEtcds) {
  for (const char* text :
       {"", "[]", "{", "null", R"({"header":5})", R"({"kvs":7})",
        R"({"header":{"revision":"9"},"kvs":[{"key":"!"}]})", R"({"header":{"revision":"x"}})"}) {
    EXPECT_FALSE(decode_granted(text)) << text;
    EXPECT_FALSE(decode_kept(text)) << text;
    EXPECT_FALSE(decode_leader_key(text)) << text;
    EXPECT_FALSE(decode_leader_key_if_any(text)) << text;
    EXPECT_FALSE(decode_contents("/p", text)) << text;
    EXPECT_FALSE(decode_written(text)) << text;
  }
}

TEST(EtcdCodec, QuotesTheTextOfAnError) {
  EXPECT_EQ(etcd_error_text(R"({"error":"no leader","message":"etcdserver: no leader","code":14})"),
            "etcdserver: no leader");
  EXPECT_EQ(etcd_error_text(R"({"error":{"message":"no leader"}})"), "no leader");
  EXPECT_EQ(etcd_error_text("404 page\nnot found"), "404 page?not found");
  EXPECT_EQ(etcd_error_text("404 page not found\r\n"), "404 page not found");
  EXPECT_EQ(etcd_error_text("\n"), "");
  EXPECT_LE(etcd_error_text(std::string(100'000, 'x')).size(), 200u);
}

TEST(EtcdCodec, AToken) {
  const EtcdRequest request = authenticate("me", Secret("secret"));
  EXPECT_EQ(request.path, "/v3/auth/authenticate");
  EXPECT_EQ(Json::parse(request.body), (Json{{"name", "me"}, {"password", "secret"}}));
  EXPECT_EQ(decode_token(body(R"("token":"abc.12")")).value(), "abc.12");
  for (const char* bad : {R"("token":"")", R"("token":7)", R"("token":"a\r\nb")", ""}) {
    EXPECT_FALSE(decode_token(body(bad))) << bad;
  }
}

}  // namespace
}  // namespace ddprun
