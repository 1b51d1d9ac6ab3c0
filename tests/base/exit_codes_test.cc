#include "base/exit_codes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/docs_table.h"

namespace ddprun {
namespace {

using testing_support::table_rows;
using testing_support::TableRow;

TEST(ExitCodes, AreDistinctAndStayOutOfTheWorkersWay) {
  for (std::size_t i = 0; i < kExitCodes.size(); ++i) {
    const int code = to_int(kExitCodes[i].code);
    EXPECT_TRUE(code == 0 || code == 2 || (code >= 64 && code <= 78)) << code;
    if (i > 0) {
      EXPECT_LT(to_int(kExitCodes[i - 1].code), code);
    }
  }
}

TEST(ExitCodes, TheDocumentationHasTheseCodesWithTheirMeaningsAndNoOthers) {
  std::vector<TableRow> codes;
  for (const ExitCodeText& row : kExitCodes) {
    codes.push_back({std::to_string(to_int(row.code)), std::string(row.meaning)});
  }
  EXPECT_EQ(table_rows("reference/exit_codes.md", {"code", "meaning"}), codes);
}

}  // namespace
}  // namespace ddprun
