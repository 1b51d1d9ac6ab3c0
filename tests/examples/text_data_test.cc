#include "examples/text_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace examples {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using Part = Blocks::Part;

// Returns the message that `action` throws. It must be one line.
template <class Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const std::runtime_error& refused) {
    EXPECT_THAT(refused.what(), testing::Not(HasSubstr("\n")));
    return refused.what();
  }
  return "nothing was thrown";
}

class TextData : public testing::Test {
 protected:
  Text text_of(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return Text(path_);
  }
  std::string refusal(const std::string& bytes) {
    return refusal_of([&] { text_of(bytes); });
  }
  static std::vector<std::int64_t> numbers(const torch::Tensor& tensor) {
    const torch::Tensor flat = tensor.contiguous().flatten();
    return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
  }

  ddprun::testing_support::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "text";
};

TEST_F(TextData, CharactersAreNumberedInTheOrderOfTheirCodePoints) {
  const Text text = text_of("b\na€é€😀");
  EXPECT_EQ(numbers(text.ids()), (std::vector<std::int64_t>{2, 0, 1, 4, 3, 4, 5}));
  EXPECT_EQ(text.vocabulary_size(), 6);
  EXPECT_EQ(text.spelled(text.ids()), "b\na€é€😀");
  EXPECT_EQ(text.spelled(torch::tensor({5, 1}, torch::kInt64)), "😀a");
}

TEST_F(TextData, LineEndsAndMarksStayWhatTheyAre) {
  const std::string bytes(
      "\xef\xbb\xbf"
      "a\r\n\0b",
      8);
  const Text text = text_of(bytes);
  EXPECT_EQ(text.ids().size(0), 6);
  EXPECT_EQ(text.spelled(text.ids()), bytes);
}

TEST_F(TextData, TheDigestIsTheFiles) {
  EXPECT_EQ(text_of("abc").sha256(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// Reads the first and the last character of each encoded length. Refuses the byte sequences
// between these ranges.
TEST_F(TextData, EveryCharacterThatThereIsCanBeReadAndNoOther) {
  for (const std::string good :
       {"\x01", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    const Text text = text_of("a" + good);
    EXPECT_EQ(text.vocabulary_size(), 2);
    EXPECT_EQ(text.spelled(text.ids()), "a" + good);
  }
  for (const std::string bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3\x28",
        "\xe2\x28\xa1", "\xe2\x82\x28", "\xf0\x9f\x98\x28"}) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(bad[0]));
    EXPECT_EQ(refusal("é" + bad + "xyz"),
              "read " + path_ +
                  ": at offset 2: no character of UTF-8 (it would begin with byte 0x" + hex + ")");
  }
}

TEST_F(TextData, ACutFileIsRefusedAtItsEndUnlessACharacterEndsThere) {
  const std::string whole = "a€é😀";  // characters end at 1, 4, 6 and 10
  for (const std::size_t size : {1, 4, 6, 10})
    EXPECT_EQ(text_of(whole.substr(0, size)).path(), path_);
  for (const std::size_t size : {2, 3, 5, 7, 8, 9})
    EXPECT_THAT(
        refusal(whole.substr(0, size)),
        HasSubstr("at offset " + std::to_string(size) + ": the file ends within a character of "));
}

TEST_F(TextData, WhatIsNoTextIsNamed) {
  EXPECT_EQ(refusal(""), "read " + path_ + ": the file is empty");
  EXPECT_EQ(refusal_of([] { Text("/nowhere/text"); }),
            "read /nowhere/text: No such file or directory");
  EXPECT_EQ(refusal_of([&] { Text(directory_.path()); }),
            "read " + directory_.path() + ": at offset 0: Is a directory");
  // The file can be opened, but not be read.
  EXPECT_EQ(refusal_of([] { Text("/proc/self/mem"); }),
            "read /proc/self/mem: at offset 0: Input/output error");
}

TEST_F(TextData, TrainingBlocksBeginAtEveryCharacter) {
  // 18 characters for training, 2 for validation.
  const Text text = text_of("abcdefghijklmnopqrst");
  Blocks blocks(text, Part::kTraining, 4);
  EXPECT_EQ(*blocks.size(), 14u);
  const torch::data::Example<> batch = blocks.get_batch(std::vector<std::size_t>{13, 0});
  EXPECT_EQ(numbers(batch.data), (std::vector<std::int64_t>{13, 14, 15, 16, 0, 1, 2, 3}));
  EXPECT_EQ(numbers(batch.target), (std::vector<std::int64_t>{14, 15, 16, 17, 1, 2, 3, 4}));
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{2, 4}));
}

TEST_F(TextData, ValidationBlocksLieSideBySideInTheLastTenth) {
  std::string bytes(90, 'a');
  const Text text = text_of(bytes + "abcdefghij");
  for (const auto& [length, count] : {std::pair{9, 1}, {4, 2}, {3, 3}, {1, 9}})
    EXPECT_EQ(*Blocks(text, Part::kValidation, length).size(), static_cast<std::size_t>(count));
  const torch::data::Example<> batch =
      Blocks(text, Part::kValidation, 4).get_batch(std::vector<std::size_t>{0, 1});
  EXPECT_EQ(numbers(batch.data), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(numbers(batch.target), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(TextData, APartThatIsShorterThanABlockAndOneMoreIsRefused) {
  const Text text = text_of(std::string(100, 'a'));
  EXPECT_EQ(*Blocks(text, Part::kTraining, 89).size(), 1u);
  EXPECT_EQ(refusal_of([&] { Blocks(text, Part::kTraining, 90); }),
            "read " + path_ +
                ": its first nine tenths have 90 characters; blocks of 90 need at least 91");
  EXPECT_EQ(refusal_of([&] { Blocks(text, Part::kValidation, 10); }),
            "read " + path_ + ": its last tenth has 10 characters; blocks of 10 need at least 11");
  const Text one = text_of("a");
  EXPECT_THAT(refusal_of([&] { Blocks(one, Part::kTraining, 1); }),
              AllOf(StartsWith("read " + path_), EndsWith("need at least 2")));
}

}  // namespace
}  // namespace examples
