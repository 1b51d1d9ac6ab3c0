#include "examples/idx_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <zlib.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace examples {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::HasSubstr;

const std::string kDigits = DDPRUN_SOURCE_DIR "/examples/data/digits/";

class IdxReader : public testing::Test {
 protected:
  // Returns the message with which read_idx() refuses these bytes, or "read" if it reads them.
  std::string refusal(const std::string& bytes) {
    const std::string path = directory_ / "x-ubyte";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    try {
      read_idx(path);
    } catch (const std::runtime_error& refused) {
      EXPECT_THAT(refused.what(), HasSubstr("read " + path + ": at offset "));
      return refused.what();
    }
    return "read";
  }

  // A file of 2 x 3 bytes.
  const std::string good_ =
      "\0\0\x08\x02\0\0\0\x02\0\0\0\x03"
      "abcdef"s;
  ddprun::testing_support::TemporaryDirectory directory_;
};

TEST_F(IdxReader, ReadsTheDigitsThatAreShipped) {
  const torch::Tensor images = read_idx(kDigits + "train-images-idx3-ubyte");
  const torch::Tensor labels = read_idx(kDigits + "train-labels-idx1-ubyte");
  EXPECT_EQ(images.sizes(), (std::vector<std::int64_t>{1437, 8, 8}));
  EXPECT_EQ(labels.sizes(), (std::vector<std::int64_t>{1437}));
  EXPECT_EQ(images.dtype(), torch::kUInt8);
  EXPECT_EQ(images.max().item<int>(), 255);
  EXPECT_EQ(labels.max().item<int>(), 9);
}

TEST_F(IdxReader, ReadsSizesAndBytesInOrder) {
  EXPECT_EQ(refusal(good_), "read");
  EXPECT_TRUE(torch::equal(read_idx(directory_ / "x-ubyte"),
                           torch::arange('a', 'g', torch::kUInt8).view({2, 3})));
}

TEST_F(IdxReader, ReadsAnArrayOfNothing) {
  EXPECT_EQ(refusal("\0\0\x08\x02\0\0\0\0\0\0\0\x03"s), "read");
  EXPECT_EQ(read_idx(directory_ / "x-ubyte").sizes(), (std::vector<std::int64_t>{0, 3}));
}

TEST_F(IdxReader, EveryCutFileIsRefusedAtItsEnd) {
  for (std::size_t size = 0; size < good_.size(); ++size)
    EXPECT_THAT(refusal(good_.substr(0, size)),
                HasSubstr("at offset " + std::to_string(size) + ":"));
}

TEST_F(IdxReader, AFileThatGoesOnIsRefusedWhereItShouldEnd) {
  EXPECT_THAT(refusal(good_ + "x"), AllOf(HasSubstr("at offset 18"),
                                          HasSubstr("the file continues, but its sizes say 6")));
}

TEST_F(IdxReader, OtherFilesAreRefused) {
  EXPECT_THAT(refusal("\x1f\x8b\x08\0\0\0\0\0"s), HasSubstr("the gzip file ends in the middle"));
  EXPECT_THAT(refusal("\0\0\x0d\x01\0\0\0\x01"
                      "xxxx"s),
              HasSubstr("at offset 2: element type 13"));
  EXPECT_THAT(refusal("\0\0\x08\0"s), HasSubstr("at offset 3"));
  EXPECT_THAT(refusal("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"s),
              AllOf(HasSubstr("at offset 8"), HasSubstr("2^40")));
}

TEST_F(IdxReader, AMissingFileIsNamed) {
  try {
    read_idx(directory_ / "none");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& missing) {
    EXPECT_THAT(missing.what(), AllOf(HasSubstr(directory_ / "none"), HasSubstr("No such file")));
  }
}

// --- gzip ---

std::string packed(const std::string& bytes) {
  const ddprun::testing_support::TemporaryDirectory directory;
  const std::string path = directory / "packed";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(IdxReader, ReadsGzipFilesAlsoByTheNameWithoutGz) {
  std::ofstream(directory_ / "images.gz", std::ios::binary) << packed(good_);
  const torch::Tensor expected = torch::arange('a', 'g', torch::kUInt8).view({2, 3});
  EXPECT_TRUE(torch::equal(read_idx(directory_ / "images.gz"), expected));
  EXPECT_TRUE(torch::equal(read_idx(directory_ / "images"), expected));
}

TEST_F(IdxReader, RefusesSizesThatOverflowBesideAnEmptyOne) {
  EXPECT_THAT(refusal("\0\0\x08\x04\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"s),
              HasSubstr("the sizes multiply to more than 2^40"));
}

// A small file may unpack to a large one. Only as much is unpacked as the sizes in it need.
TEST_F(IdxReader, UnpacksNoMoreThanTheSizesSay) {
  EXPECT_THAT(refusal(packed(good_ + std::string(50 << 20, 'x'))),
              AllOf(HasSubstr("at offset 18"), HasSubstr("the file continues")));
}

TEST_F(IdxReader, RefusesGzipFilesThatAreCutOrDamagedAnywhere) {
  std::string noise;
  for (int i = 0; i < 3000; ++i) noise.push_back(static_cast<char>((i * i * 2654435761u) >> 13));
  const std::string data = "\0\0\x08\x01\0\0\x0b\xb8"s + noise;
  const std::string whole = packed(data);
  EXPECT_EQ(refusal(whole), "read");
  for (std::size_t length = 3; length < whole.size(); length += 97)
    EXPECT_NE(refusal(whole.substr(0, length)), "read") << length;
  EXPECT_THAT(refusal(whole.substr(0, whole.size() - 5)), HasSubstr("the gzip file ends"));
  for (std::size_t at = 20; at < whole.size(); at += 211) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_NE(refusal(damaged), "read") << at;
  }
}

}  // namespace
}  // namespace examples
