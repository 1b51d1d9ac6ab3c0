#include "base/log.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

TEST(Logger, GivesTheSinkWholeLinesThatSayWhoSpeaks) {
  std::vector<std::string> lines;
  Logger log("ddprun", [&](std::string_view line) { lines.emplace_back(line); });
  log.info("listening on port 29400");
  log.warning("no key");
  log.error("port 1 is taken");
  EXPECT_EQ(lines, (std::vector<std::string>{"ddprun: listening on port 29400\n",
                                             "ddprun: warning: no key\n",
                                             "ddprun: error: port 1 is taken\n"}));
}

TEST(Logger, MakesOneLineOfWhateverIsInTheText) {
  std::string got;
  Logger log("p", [&](std::string_view line) { got = line; });
  log.info("node\nddprun: error: not true\r\x01\x7f\tand \x1b[1mbold");
  EXPECT_EQ(got, "p: node?ddprun: error: not true???\tand \x1b[1mbold\x1b[0m\n");
}

TEST(Logger, SaysNothingBelowItsLevelAndDetailsOnlyWhereAskedFor) {
  std::string got;
  Logger log("p", [&](std::string_view line) { got += line; });
  log.debug("1");
  log.set_level(LogLevel::kDebug);
  log.debug("2");
  log.set_level(LogLevel::kWarning);
  log.info("3");
  log.warning("4");
  EXPECT_EQ(got, "p: 2\np: warning: 4\n");
}

TEST(Logger, AnotherFormatGetsLevelAndText) {
  std::string got;
  Logger log(
      "p", [&](std::string_view line) { got += line; },
      [](LogLevel level, std::string_view text) {
        return std::string(enum_name(kLogLevelWords, level)) + "|" + std::string(text) + "\n";
      });
  log.info("a\nb");
  log.error("c");
  EXPECT_EQ(got, "info|a\nb\nerror|c\n");
}

TEST(Logger, TakesTextLiterallyEvenWhenItLooksLikeAFormat) {
  std::string got;
  Logger log("p", [&](std::string_view line) { got = line; });
  log.info("{} %s {0:d}");
  EXPECT_EQ(got, "p: {} %s {0:d}\n");
}

}  // namespace
}  // namespace ddprun
