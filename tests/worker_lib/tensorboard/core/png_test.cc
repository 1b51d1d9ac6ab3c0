#include "worker_lib/tensorboard/core/png.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun {
namespace {

using std::string_literals::operator""s;

TEST(Png, OnePixelHasTheBytesOfTheStandard) {
  const std::vector<std::uint8_t> pixel{0xff, 0x00, 0x80};
  const std::string expected =
      "\x89PNG\r\n\x1a\n"
      "\0\0\0\x0dIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90\x77\x53\xde"
      "\0\0\0\x0fIDAT\x78\x01\x01\x04\0\xfb\xff\0\xff\0\x80\x03\x81\x01\x80"s;
  const std::string file = png(pixel, 1, 1, 3);
  EXPECT_EQ(file.substr(0, expected.size()), expected);
  EXPECT_EQ(file.substr(expected.size() + 4), "\0\0\0\0IEND\xae\x42\x60\x82"s);
}

// Pillow decodes such images in tests/integration/worker_lib/tensorboard_test.py.
TEST(Png, ManyPixelsAreSeveralStoredBlocks) {
  const int height = 100;
  const int width = 700;
  const std::string file = png(std::vector<std::uint8_t>(70000), height, width, 1);
  const std::size_t data = file.find("IDAT") + 4;
  EXPECT_EQ(file.substr(data + 2, 5), "\0\xff\xff\0\0"s);  // not the last one, 65535 bytes
  const std::size_t second = data + 2 + 5 + 65535;
  EXPECT_EQ(file[second], 1);
  EXPECT_EQ(static_cast<unsigned char>(file[second + 1]) +
                256 * static_cast<unsigned char>(file[second + 2]),
            height * (width + 1) - 65535);
}

}  // namespace
}  // namespace ddprun
