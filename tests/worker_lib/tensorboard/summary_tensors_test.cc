#include "ddprun/summary_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/expect_dist_error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"
#include "worker_lib/tensorboard/core/events.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

TEST(SummaryTensors, AreWrittenAsTheirValuesOfAnyTypeShapeAndStride) {
  const testing_support::TemporaryDirectory directory;
  SummaryWriter writer({.directory = directory.path(), .rank = 0});
  const torch::Tensor numbers = torch::arange(6).reshape({2, 3}).t();  // not contiguous
  const std::vector<double> values{0, 1, 2, 3, 4, 5};
  add_histogram(writer, "long", numbers, 1);
  add_histogram(writer, "double", numbers.to(torch::kDouble).requires_grad_(), 1);
  add_histogram(writer, "half", numbers.to(torch::kHalf), 1);
  const torch::Tensor image = torch::arange(18, torch::kByte).reshape({3, 2, 3});
  add_image(writer, "chw", image, 2);
  add_image(writer, "hwc", image.permute({1, 2, 0}), 2, ImageShape::Layout::kHWC);
  add_image(writer, "float", (image.to(torch::kDouble) + 0.5) / 255, 2);
  add_image(writer, "grey", image[0], 2);
  EXPECT_DIST_ERROR(add_image(writer, "flat", image.flatten(), 2),
                    DistError::Kind::kInvalidArgument,
                    HasSubstr("add_image 'flat': a tensor of 1 dimensions (expected 2 or 3)"));
  writer.flush();

  const std::string path = directory / testing_support::listing(directory.path()).front();
  const std::string file = testing_support::read_file(path);
  for (const char* tag : {"long", "double", "half"}) {
    EXPECT_THAT(file, HasSubstr(histogram_summary(tag, count_in_buckets(values)).bytes())) << tag;
  }
  const std::vector<std::uint8_t> pixels{0, 6, 12, 1, 7,  13, 2, 8,  14,
                                         3, 9, 15, 4, 10, 16, 5, 11, 17};
  for (const char* tag : {"chw", "hwc", "float"}) {
    EXPECT_THAT(file, HasSubstr(image_summary(tag, pixels, 2, 3, 3).bytes())) << tag;
  }
  const std::vector<std::uint8_t> grey{0, 1, 2, 3, 4, 5};
  EXPECT_THAT(file, HasSubstr(image_summary("grey", grey, 2, 3, 1).bytes()));
}

TEST(SummaryTensors, OfOtherRanksAreNotLookedAt) {
  SummaryWriter writer({.directory = "/nowhere", .rank = 1});
  add_histogram(writer, "undefined", torch::Tensor(), 1);
  add_image(writer, "undefined", torch::Tensor(), 1);
}

}  // namespace
}  // namespace ddprun
