// Replays a fuzz target's corpus, so that what a fuzzer has found stays found without a fuzzer.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

TEST(FuzzCorpus, DDPRUN_FUZZ_TARGET) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDPRUN_FUZZ_CORPUS)) {
    SCOPED_TRACE(entry.path());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
        0);
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
