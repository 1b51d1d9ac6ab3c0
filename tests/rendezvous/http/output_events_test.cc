#include "rendezvous/http/output_events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMost = OutputEvents::kMaxBytes;
const std::string kLastEvent = "event: end\ndata: {}\n\n";

// Returns the JSON of this one event.
Json json_of(const std::string& event) {
  EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event.substr(0, 100);
  EXPECT_EQ(event.find('\n'), event.size() - 2) << "an event is one line";
  return Json::parse(event.substr(6));
}

TEST(OutputEvents, HasWholeLines) {
  OutputEvents events;
  EXPECT_EQ(events.take(), "");
  events.add("one\ntwo\nthr");
  EXPECT_EQ(json_of(events.take()), Json({{"text", "one\ntwo\n"}}));
  EXPECT_EQ(events.take(), "");
  events.add("ee\n");
  EXPECT_EQ(json_of(events.take()), Json({{"text", "three\n"}}));
}

TEST(OutputEvents, HasUpdatesOfALineThatHasNotEnded) {
  OutputEvents events;
  events.add("1%\r");
  EXPECT_EQ(json_of(events.take()), Json({{"text", "1%\r"}}));
  events.add("2%\r3");
  EXPECT_EQ(json_of(events.take()), Json({{"text", "2%\r"}}));
  events.add("%\n");
  EXPECT_EQ(json_of(events.take()), Json({{"text", "3%\n"}}));
}

TEST(OutputEvents, EndsOnceWithTheRest) {
  OutputEvents events;
  events.add("rest");
  events.end();
  EXPECT_EQ(events.take(), "data: {\"text\":\"rest\"}\n\n" + kLastEvent);
  EXPECT_EQ(events.take(), "");
  OutputEvents silent;
  silent.end();
  EXPECT_EQ(silent.take(), kLastEvent);
  OutputEvents refused;
  refused.end("no\nrank");
  EXPECT_EQ(refused.take(), "event: end\ndata: {\"why\":\"no\\nrank\"}\n\n");
}

TEST(OutputEvents, AWorkerCannotMakeAnEvent) {
  OutputEvents events;
  const std::string evil = "a\rdata: b\n\nevent: end\n\xff\x1b[31m" + std::string(1, '\0') + "\n";
  events.add(evil);
  const std::string text = json_of(events.take()).at("text");
  EXPECT_TRUE(text.starts_with("a\rdata: b\n\nevent: end\n")) << text;
  EXPECT_EQ(text.find('\xff'), text.npos) << "not UTF-8";
}

TEST(OutputEvents, KeepsTheNewestLines) {
  OutputEvents events;
  std::string all;
  for (int i = 0; all.size() <= 2 * kMost; ++i) {
    const std::string line = std::to_string(i) + "\n";
    all += line;
    events.add(line);
  }
  const Json json = json_of(events.take());
  const std::string text = json.at("text");
  EXPECT_LE(text.size(), kMost);
  EXPECT_GT(text.size(), kMost - 16);
  EXPECT_EQ(json.at("left_out"), all.size() - text.size());
  EXPECT_EQ(all.substr(all.size() - text.size() - 1), "\n" + text) << "it begins with a line";
  events.add("next\n");
  EXPECT_EQ(json_of(events.take()), Json({{"text", "next\n"}})) << "bytes are counted once";
}

TEST(OutputEvents, ALineThatFillsTheBufferIsNotWaitedFor) {
  OutputEvents events;
  events.add(std::string(kMost - 1, 'x'));
  EXPECT_EQ(events.take(), "");
  events.add("yz");
  const Json json = json_of(events.take());
  EXPECT_EQ(json.at("text"), std::string(kMost - 2, 'x') + "yz");
  EXPECT_EQ(json.at("left_out"), 1);
}

}  // namespace
}  // namespace ddprun
