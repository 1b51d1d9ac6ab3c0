#include "launcher/output/core/log_rotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace ddprun {
namespace {

using testing::ElementsAre;

// Returns the files that the rotation makes of a stream, in order. The stream comes in chunks of
// this many bytes.
std::vector<std::string> files_of(const std::string& text, std::uint64_t max_bytes,
                                  std::size_t chunk) {
  LogRotation rotation(max_bytes);
  std::vector<std::string> files(1);
  std::string held;
  for (std::size_t at = 0; at <= text.size(); at += chunk) {
    held += text.substr(at, chunk);
    const bool is_end = at + chunk > text.size();
    while (true) {
      const LogRotation::Step step = rotation.next(held, is_end);
      if (step.rotate) {
        rotation.rotated();
        files.emplace_back();
        continue;
      }
      if (step.write == 0) break;
      rotation.wrote(held.substr(0, step.write));
      files.back() += held.substr(0, step.write);
      held.erase(0, step.write);
    }
  }
  EXPECT_EQ(held, "");
  return files;
}

TEST(LogRotation, WithoutALimitEverythingGoesIntoOneFile) {
  EXPECT_THAT(files_of("one\ntwo\nthree", 0, 5), ElementsAre("one\ntwo\nthree"));
}

TEST(LogRotation, ALineThatDoesNotFitBeginsTheNextFileForEveryChunking) {
  const std::string text = "aaa\nbbb\nccccc\nd\nee";
  for (std::size_t chunk = 1; chunk <= text.size() + 1; ++chunk) {
    EXPECT_THAT(files_of(text, 10, chunk), ElementsAre("aaa\nbbb\n", "ccccc\nd\nee"))
        << "chunks of " << chunk;
  }
}

TEST(LogRotation, ALineThatIsLongerThanAFileIsCut) {
  EXPECT_THAT(files_of("a\n" + std::string(25, 'x') + "\nb\n", 10, 7),
              ElementsAre("a\n", std::string(10, 'x'), std::string(10, 'x'), "xxxxx\nb\n"));
}

TEST(LogRotation, FilesStayWithinTheLimitAndNothingIsLostForRandomText) {
  Rng rng(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint64_t i = rng.below(200); i > 0; --i) text += rng.below(6) == 0 ? '\n' : 'x';
    const std::uint64_t max_bytes = 8 + rng.below(20);
    std::string all;
    for (const std::string& file : files_of(text, max_bytes, 1 + rng.below(30))) {
      ASSERT_LE(file.size(), max_bytes);
      all += file;
    }
    ASSERT_EQ(all, text);
  }
}

}  // namespace
}  // namespace ddprun
