#include "launcher/doctor/core/doctor.h"

#include <set>

#include "tests/launcher/doctor/core/frame.h"
#include "tests/support/docs_table.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::Not;
using namespace testing_support;

// Each of the other tests changes one fact of a healthy host. So a healthy host must have no
// findings.
TEST(Doctor, FindsNothingWrongWithAHealthyHost) {
  for (const DoctorFacts& facts : {healthy_facts(), facts_with_endpoint()}) {
    EXPECT_THAT(diagnose(facts),
                Each(AllOf(Field(&Finding::level, Level::kOk), Field(&Finding::seen, Not("")),
                           Field(&Finding::advice, ""))));
  }
  EXPECT_EQ(worst_of(diagnose(healthy_facts())), Level::kOk);
  EXPECT_EQ(worst_of({}), Level::kOk);
}

TEST(Doctor, SaysOfEveryFindingBesideOkWhatItDoesAndWhatToDo) {
  DoctorFacts facts;  // a host that has nothing
  facts.shared_memory.why_missing = "No such file or directory";
  facts.names.servers = {{.address = "10.0.0.53", .outcome = NameServer::Outcome::kSilent}};
  int bad = 0;
  for (const Finding& one : diagnose(facts)) {
    EXPECT_FALSE(one.seen.empty()) << one.id;
    if (one.level == Level::kOk) continue;
    ++bad;
    EXPECT_FALSE(one.effect.empty()) << one.id;
    EXPECT_FALSE(one.advice.empty()) << one.id;
  }
  EXPECT_GE(bad, 5);
}

TEST(Doctor, HasTheSameFindingsAsItsPage) {
  std::set<std::string> documented;
  for (const TableRow& row : table_rows("how-to/doctor.md", {"finding"})) documented.insert(row[0]);
  std::set<std::string> known;
  for (const Check& check : all_checks()) {
    EXPECT_TRUE(known.insert("`" + std::string(check.id) + "`").second) << check.id;
  }
  EXPECT_EQ(documented, known);
}

TEST(DoctorReport, HasALineForEachFindingAndWhatToDoBelowIt) {
  const std::vector<Finding> findings{{.level = Level::kOk, .seen = "it is large", .id = "memory"},
                                      {.level = Level::kProblem,
                                       .seen = "it is small",
                                       .effect = "jobs die",
                                       .advice = "make it larger",
                                       .id = "shared-memory"}};
  EXPECT_EQ(report_text(findings, {}),
            "ok       memory               it is large\n"
            "PROBLEM  shared-memory        it is small\n"
            "                              jobs die\n"
            "                           -> make it larger\n"
            "ddprun doctor: jobs will hang, be slow or fail here: 1 problem, 1 ok\n");
}

TEST(DoctorReport, BreaksLongLinesAndKeepsTheirIndent) {
  const std::string text =
      report_text({{.level = Level::kOk, .seen = std::string("aaaa bbbb cccc"), .id = "memory"}},
                  {.width = 40});
  EXPECT_THAT(text, HasSubstr("aaaa bbbb\n                              cccc\n"));
}

TEST(DoctorReport, KeepsWhatOthersSayFromTheTerminal) {
  EXPECT_THAT(report_text({{.seen = "ddprun \x1b[2J9\n on\x07", .id = "service"}}, {}),
              HasSubstr("service              ddprun ?[2J9 on?\n"));
}

TEST(DoctorReport, ColoursTheLevelAlone) {
  const std::vector<Finding> findings{{.level = Level::kWarning, .seen = "s", .id = "clock"}};
  EXPECT_THAT(report_text(findings, {}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(report_text(findings, {.coloured = true}),
              HasSubstr("\x1b[33mwarn     \x1b[0mclock"));
}

TEST(DoctorReport, SumsUpByTheWorst) {
  const Finding note{.level = Level::kNote, .seen = "s"};
  const Finding warning{.level = Level::kWarning, .seen = "s"};
  EXPECT_THAT(report_text({note, note}, {}), HasSubstr("no problem: 2 notes\n"));
  EXPECT_THAT(report_text({note, warning}, {}),
              HasSubstr("no problem, but some jobs may be slow or fail: 1 warning, 1 note\n"));
}

}  // namespace
}  // namespace ddprun
