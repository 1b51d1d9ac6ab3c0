#include "worker_lib/tensorboard/core/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ddprun {
namespace {

using std::string_literals::operator""s;
using testing::HasSubstr;

// tests/integration/worker_lib/tensorboard_test.py has TensorBoard read all kinds of events.
TEST(Events, AScalarIsATagAndAFloatInASummary) {
  EXPECT_EQ(scalar_summary("loss", 1).bytes(), "\x0a\x0b\x0a\x04loss\x15\0\0\x80\x3f"s);
  EXPECT_EQ(summary_event({.wall_s = 1, .step = 5}, scalar_summary("a", 1)).bytes(),
            "\x09\0\0\0\0\0\0\xf0\x3f\x10\x05\x2a\x0a\x0a\x08\x0a\x01\x61\x15\0\0\x80\x3f"s);
}

TEST(Events, AFileBeginsWithItsVersionAndTheStartOfASession) {
  EXPECT_EQ(file_version_event(1).bytes(), "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d"s + "brain.Event:2");
  EXPECT_EQ(session_start_event({.wall_s = 1, .step = 7}).bytes(),
            "\x09\0\0\0\0\0\0\xf0\x3f\x10\x07\x3a\x02\x08\x01"s);
}

TEST(Events, AHistogramWithoutValuesIsNone) {
  EXPECT_EQ(histogram_summary("weights", {}).bytes(), "");
  EXPECT_THAT(histogram_summary("weights", count_in_buckets(std::vector<double>{1})).bytes(),
              HasSubstr("weights"));
}

TEST(Events, TextsImagesAndParametersHaveTheTagsOfTheirPlugins) {
  EXPECT_THAT(text_summary("notes", "**hi**").bytes(), HasSubstr("notes/text_summary"));
  EXPECT_THAT(image_summary("digit", std::vector<std::uint8_t>{1}, 1, 1, 1).bytes(),
              HasSubstr("\x89PNG"));
  const std::string hparams = hparams_summary({{"lr", 0.1}}, {{"accuracy", 0.5}}).bytes();
  for (const char* tag : {"_hparams_/experiment", "_hparams_/session_start_info",
                          "_hparams_/session_end_info", "accuracy"}) {
    EXPECT_THAT(hparams, HasSubstr(tag));
  }
}

}  // namespace
}  // namespace ddprun
