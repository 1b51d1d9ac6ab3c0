#include "base/step_shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/worker_page.h"

namespace ddprun {
namespace {

class StepSharesTest : public testing::Test {
 protected:
  std::uint32_t at(std::size_t offset) const {
    std::uint32_t value = 0;
    std::memcpy(&value, reinterpret_cast<const char*>(page_.get()) + offset, sizeof value);
    return value;
  }

  const std::unique_ptr<WorkerPage> page_ = std::make_unique<WorkerPage>();
};

TEST_F(StepSharesTest, AreReadAsTheyWereWritten) {
  EXPECT_EQ(read_step_shares(*page_), std::nullopt);
  StepShares shares{.forward = 12.34, .backward = 50, .communication = 0, .checkpoint = 100};
  write_step_shares(shares, *page_);
  EXPECT_EQ(read_step_shares(*page_), shares) << "without data";
  shares.data = 62.5;
  write_step_shares(shares, *page_);
  EXPECT_EQ(read_step_shares(*page_), shares);
}

// docs/how-to/hangs.md has the offsets.
TEST_F(StepSharesTest, LieWhereProgramsInOtherLanguagesWriteThem) {
  write_step_shares({.data = 1, .forward = 2, .backward = 3, .communication = 4, .checkpoint = 5},
                    *page_);
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(at(2160 + 4 * i), 100 * (i + 1) + 1);
  EXPECT_EQ(at(2180), 0u);
}

TEST_F(StepSharesTest, ValuesOutOfBoundsBecomeTheNearest) {
  write_step_shares({.data = -3, .forward = 100.4, .backward = 1e300}, *page_);
  EXPECT_EQ(read_step_shares(*page_), (StepShares{.data = 0, .forward = 100, .backward = 100}));
}

TEST_F(StepSharesTest, AWorkerMayWriteAnything) {
  const auto fill = [&](std::uint32_t value) {
    for (auto* share : {&page_->data_share, &page_->forward_share, &page_->backward_share,
                        &page_->communication_share, &page_->checkpoint_share}) {
      *share = value;
    }
  };
  fill(0xffffffff);
  EXPECT_EQ(read_step_shares(*page_), std::nullopt);
  fill(10'001);
  EXPECT_EQ(read_step_shares(*page_)->backward, 100);
  page_->data_share = 10'002;
  EXPECT_EQ(read_step_shares(*page_)->data, std::nullopt);
  page_->communication_share = 10'002;
  EXPECT_EQ(read_step_shares(*page_), std::nullopt);
}

}  // namespace
}  // namespace ddprun
