#include "base/exit_codes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace ddprun {
namespace {

TEST(ExitCodes, AreDistinctAndStayOutOfTheWorkersWay) {
  for (std::size_t i = 0; i < kExitCodes.size(); ++i) {
    const int code = to_int(kExitCodes[i].code);
    EXPECT_TRUE(code == 0 || code == 2 || (code >= 64 && code <= 78)) << code;
    if (i > 0) {
      EXPECT_LT(to_int(kExitCodes[i - 1].code), code);
    }
  }
}

TEST(ExitCodes, TheDocumentationHasEachCodeWithItsMeaning) {
  std::ifstream file(DDPRUN_SOURCE_DIR "/docs/exit_codes.md");
  ASSERT_TRUE(file) << "docs/exit_codes.md is missing";
  std::stringstream text;
  text << file.rdbuf();
  for (const ExitCodeText& row : kExitCodes) {
    const std::string line =
        "| " + std::to_string(to_int(row.code)) + " | " + std::string(row.meaning) + " |";
    EXPECT_NE(text.str().find(line), std::string::npos) << "missing: " << line;
  }
}

}  // namespace
}  // namespace ddprun
