#include "launcher/output/json_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ddprun {
namespace {

TEST(JsonLines, EachLineIsOneObject) {
  JsonLines lines("job \"7\"", "node0");
  const std::string before = lines.own_line(LogLevel::kInfo, "waiting");
  EXPECT_FALSE(nlohmann::json::parse(before).contains("generation"));
  lines.set_place(NodeRank(1), Generation(3));
  const std::string text = lines.own_line(LogLevel::kWarning, "a\nb\x1b");
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const nlohmann::json own = nlohmann::json::parse(text);
  EXPECT_EQ(own["job"], "job \"7\"");
  EXPECT_EQ(own["host"], "node0");
  EXPECT_EQ(own["node"], 1);
  EXPECT_EQ(own["generation"], 3);
  EXPECT_EQ(own["level"], "warning");
  EXPECT_EQ(own["message"], "a\nb\x1b");
  const std::string time = own["time"];
  EXPECT_EQ(time.size(), std::string("2026-01-02T03:04:05.678901Z").size()) << time;

  const nlohmann::json worker =
      nlohmann::json::parse(lines.worker_line({Rank(5), LocalRank(1), true, false}, "hello"));
  EXPECT_EQ(worker["rank"], 5);
  EXPECT_EQ(worker["local_rank"], 1);
  EXPECT_EQ(worker["stream"], "stderr");
  EXPECT_EQ(worker["line"], "hello");
  EXPECT_FALSE(worker.contains("partial"));
  EXPECT_FALSE(worker.contains("base64"));
}

TEST(JsonLines, WhatIsNoUtf8IsNotLost) {
  const JsonLines lines("j", "h");
  const nlohmann::json worker = nlohmann::json::parse(
      lines.worker_line({Rank(0), LocalRank(0), false, true}, std::string_view("a\xff\0", 3)));
  EXPECT_EQ(worker["line"], std::string("a\xef\xbf\xbd\0", 5));
  EXPECT_EQ(worker["base64"], "Yf8A");
  EXPECT_EQ(worker["partial"], true);
}

}  // namespace
}  // namespace ddprun
