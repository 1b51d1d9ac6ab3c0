// Replays the corpus of a fuzz target. So every build tests the inputs that a fuzzer has found.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/read_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

TEST(FuzzCorpus, DDPRUN_FUZZ_TARGET) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDPRUN_FUZZ_CORPUS)) {
    SCOPED_TRACE(entry.path());
    const std::string text = ddprun::testing_support::read_file(entry.path());
    // This memory has exactly the size of the input. So AddressSanitizer detects reads beyond
    // its end.
    const std::vector<char> bytes(text.begin(), text.end());
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
        0);
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
