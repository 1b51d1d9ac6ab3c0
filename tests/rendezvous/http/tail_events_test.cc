#include "rendezvous/http/tail_events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace ddprun {
namespace {

using Json = nlohmann::json;

// Returns an answer with these lines of an agent.
Answer page_of(const std::string& lines) { return {.done = true, .page = lines, .more = true}; }

// Returns the text of the only event.
std::string text_in(const std::string& event) {
  EXPECT_EQ(event.find("data: "), 0u) << event;
  EXPECT_EQ(event.find('\n'), event.size() - 2) << "one event: " << event;
  return Json::parse(event.substr(6)).at("text");
}

TEST(TailEvents, HasWhatBothStreamsOfTheRankHave) {
  TailEvents tail;
  tail.take(Answer{.done = true, .more = true});  // it is accepted
  EXPECT_EQ(tail.events(), "");
  tail.take(
      page_of("{\"generation\":0,\"world_size\":2}\n"
              "{\"rank\":1,\"stream\":\"stdout\",\"text\":\"one\\ntwo\\n\"}\n"
              "{\"rank\":1,\"stream\":\"stderr\",\"text\":\"three\"}\n"
              "{\"hex\":\"66ff0a\",\"rank\":1,\"stream\":\"stdout\"}\n"
              "{\"rank\":1,\"stream\":\"stdout\",\"text\":\"10%\\r\"}\n"));
  EXPECT_EQ(text_in(tail.events()), "one\ntwo\nthree\nf\xef\xbf\xbd\n10%\r");
  EXPECT_EQ(tail.events(), "");
}

TEST(TailEvents, SaysWhatIsMissingAndThatAGenerationBegins) {
  TailEvents tail;
  tail.take(Answer{.done = true, .text = "cannot reach: node1", .more = true});
  tail.take(page_of("{\"generation\":3}\n{\"dropped_bytes\":512}\n{\"generation\":4}\n"));
  tail.take(page_of("{\"generation\":4}\n{\"generation\":3}\n"));
  tail.take(Silence{"the service is stopping"});
  EXPECT_EQ(text_in(tail.events()),
            "ddprun: cannot reach: node1\n"
            "ddprun: 512 bytes of output are missing here: they came faster than they were read\n"
            "ddprun: generation 4 begins\n"
            "ddprun: the service is stopping\n");
}

TEST(TailEvents, LinesThatAreNotOfAnAgentAreLeftOut) {
  TailEvents tail;
  tail.take(
      page_of("{\n[]\n7\n\nevent: end\n{\"stream\":\"stdout\"}\n{\"stream\":1,\"text\":7}\n"
              "{\"stream\":\"stdout\",\"hex\":7}\n{\"dropped_bytes\":\"x\"}\n"
              "{\"dropped_bytes\":-1}\n{\"dropped_bytes\":1e300}\n{\"dropped_bytes\":0.5}\n"
              "{\"generation\":1}\n{\"generation\":1e300}\n{\"generation\":2.5}\n"
              "{\"generation\":{}}\n{\"future\":1}\n{\"stream\":\"stdout\",\"text\":\"good\"}"));
  EXPECT_EQ(text_in(tail.events()), "good\n");
}

TEST(TailEvents, AWorkerCannotMakeAnEventOrMarkup) {
  TailEvents tail;
  const std::string evil = "<script>\n\nevent: end\ndata: {}\n\n";
  tail.take(page_of(Json{{"stream", "stdout"}, {"text", evil}}.dump() + "\n"));
  EXPECT_EQ(text_in(tail.events()), evil);
}

TEST(TailEvents, EndsWithTheJobOrWithTheReason) {
  TailEvents ended;
  ended.take(End{});
  EXPECT_EQ(ended.events(), "event: end\ndata: {}\n\n");
  EXPECT_EQ(ended.events(), "");
  TailEvents refused;
  refused.take(Answer{.done = false, .text = "this service has no job 'x'"});
  EXPECT_EQ(refused.events(), "event: end\ndata: {\"why\":\"this service has no job 'x'\"}\n\n");
  TailEvents withdrawn;
  withdrawn.take(Silence{"the disk is full"}, /*is_last=*/true);
  EXPECT_EQ(withdrawn.events(), "event: end\ndata: {\"why\":\"the disk is full\"}\n\n");
}

TEST(TailEvents, OfAFloodTheNewestLinesAreKeptAndTheRestIsCounted) {
  TailEvents tail;
  std::size_t written = 0;
  for (int i = 0; written < 10 * OutputEvents::kMaxBytes; ++i) {
    const std::string line = std::to_string(i) + std::string(100, 'x');
    written += line.size() + 1;
    tail.take(page_of(Json{{"stream", "stdout"}, {"text", line}}.dump() + "\n"));
  }
  const std::string event = tail.events();
  const Json json = Json::parse(event.substr(6));
  const std::string text = json.at("text");
  EXPECT_LE(text.size(), OutputEvents::kMaxBytes);
  EXPECT_EQ(json.at("left_out").get<std::size_t>() + text.size(), written);
}

}  // namespace
}  // namespace ddprun
