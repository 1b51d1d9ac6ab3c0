#include "launcher/control/output_pages.h"

#include <gmock/gmock.h>

#include <vector>

namespace ddprun {
namespace {

using testing::StartsWith;

class OutputPagesTest : public testing::Test {
 protected:
  OutputPage sent() {
    EXPECT_EQ(sent_.size(), 1u);
    OutputPage page = sent_.empty() ? OutputPage() : sent_.front();
    sent_.clear();
    EXPECT_EQ(page.inquiry, 5u);
    page.inquiry = 0;
    return page;
  }

  std::vector<OutputPage> sent_;
  OutputPages pages_{5, [this](const OutputPage& page) { sent_.push_back(page); }};
};

TEST_F(OutputPagesTest, SaysThatThereIsSomethingAndTellsItWhenItIsItsTurn) {
  pages_.say("1");
  EXPECT_TRUE(sent_.empty());
  pages_.begin();
  EXPECT_EQ(sent(), (OutputPage{.is_ready = true}));
  pages_.say("2");
  EXPECT_TRUE(sent_.empty()) << "the service knows";
  pages_.take_turn();
  EXPECT_EQ(sent(), (OutputPage{.lines = "1\n2\n"}));
  pages_.say("3");
  EXPECT_EQ(sent(), (OutputPage{.is_ready = true}));
  pages_.end();
  EXPECT_TRUE(sent_.empty());
  pages_.take_turn();
  EXPECT_EQ(sent(), (OutputPage{.lines = "3\n", .is_last = true}));
  EXPECT_FALSE(pages_.is_open());
}

TEST_F(OutputPagesTest, OneWithoutAnythingToTellAnswersToo) {
  pages_.begin();
  EXPECT_EQ(sent(), OutputPage());
  pages_.end();
  EXPECT_EQ(sent(), OutputPage{.is_last = true});
}

TEST_F(OutputPagesTest, APageHasWholeLinesAndABound) {
  const std::string line(kOutputPageBytes / 2, 'x');
  for (int i = 0; i < 3; ++i) pages_.say(line);
  pages_.say(std::string(2 * kOutputPageBytes, 'y'));
  pages_.begin();
  EXPECT_TRUE(sent().is_ready);
  pages_.take_turn();
  EXPECT_EQ(sent().lines, line + "\n");
  pages_.take_turn();
  EXPECT_EQ(sent().lines, line + "\n");
  pages_.take_turn();
  EXPECT_EQ(sent().lines, line + "\n");
  pages_.take_turn();
  EXPECT_EQ(sent(), (OutputPage{.lines = std::string(2 * kOutputPageBytes, 'y') + "\n"}));
}

TEST_F(OutputPagesTest, KeepsTheNewestAndSaysHowMuchIsMissing) {
  pages_.say("oldest");
  pages_.begin();
  sent();
  const std::string line(1000, 'x');
  for (std::size_t i = 0; i < 2 * OutputReader::kMaxUnsentBytes / line.size(); ++i)
    pages_.say(line);
  pages_.say("newest");
  pages_.say(std::string(kMaxPageBytes, 'x'));
  EXPECT_TRUE(sent_.empty());
  std::string all;
  do {
    sent_.clear();
    pages_.take_turn();
    all += sent_.at(0).lines;
  } while (sent_.at(0).is_ready);
  EXPECT_LT(all.size(), OutputReader::kMaxUnsentBytes + 100);
  EXPECT_GT(all.size(), OutputReader::kMaxUnsentBytes - 2000);
  EXPECT_THAT(all.substr(0, 100), StartsWith("{\"dropped_bytes\":"));
  EXPECT_TRUE(all.ends_with("\nnewest\n"));
}

TEST_F(OutputPagesTest, AtTheEndOfTheJobTheNewestGoesOutAtOnce) {
  pages_.begin();
  const std::string line(1000, 'x');
  for (int i = 0; i < 500; ++i) pages_.say(line);
  pages_.say("newest");
  sent_.clear();
  pages_.end_with_job("not this");
  std::string all;
  for (const OutputPage& page : sent_) {
    EXPECT_LE(page.lines.size(), kOutputPageBytes);
    EXPECT_EQ(page.is_last, &page == &sent_.back());
    all += page.lines;
  }
  EXPECT_LT(all.size(), OutputPages::kLastBytes + 100);
  EXPECT_THAT(all.substr(0, 100), StartsWith("{\"dropped_bytes\":"));
  EXPECT_TRUE(all.ends_with("\nnewest\n"));
  EXPECT_FALSE(pages_.is_open());
}

TEST_F(OutputPagesTest, NothingIsSaidToWhomNobodyListens) {
  pages_.begin();
  sent_.clear();
  pages_.close();
  pages_.say("1");
  pages_.take_turn();
  pages_.end();
  pages_.end_with_job("");
  EXPECT_TRUE(sent_.empty());
}

}  // namespace
}  // namespace ddprun
