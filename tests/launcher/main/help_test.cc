#include "launcher/main/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>

#include "base/exit_codes.h"
#include "launcher/options/core/command_names.h"
#include "launcher/options/option_table.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;

TEST(Help, NamesEveryOptionWithAnExampleAndEveryExitCode) {
  std::string help = help_text();
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  // A long example may be broken over two lines.
  help = std::regex_replace(help, std::regex("\\s+"), " ");
  for (const OptionSpec& option : option_table()) {
    EXPECT_THAT(help, HasSubstr("--" + option.name));
    EXPECT_THAT(help, HasSubstr("; e.g. " + option.example));
  }
  for (const CommandName& command : command_names()) {
    EXPECT_THAT(help, HasSubstr(" " + std::string(command.name) + " "));
  }
  for (const ExitCodeText& row : kExitCodes) {
    EXPECT_THAT(help,
                HasSubstr(" " + std::to_string(to_int(row.code)) + " " + std::string(row.meaning)));
  }
}

// The page must not contain text that roff reads as a request or an escape.
TEST(ManPage, HasEveryOptionAndNothingThatRoffMisreads) {
  const std::string page = man_page();
  EXPECT_TRUE(page.starts_with(".TH DDPRUN 1 "));
  for (const OptionSpec& option : option_table()) {
    std::string name = "\\-\\-";
    for (const char c : option.name) name += c == '-' ? "\\-" : std::string(1, c);
    EXPECT_THAT(page, HasSubstr(name)) << option.name;
  }
  for (const ExitCodeText& row : kExitCodes) {
    EXPECT_THAT(page, HasSubstr(".B " + std::to_string(to_int(row.code)) + "\n"));
  }
  const std::regex known("\\.(TH|SH|SS|TP|PP|BR|B|br)( .*)?");
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(line.empty());
    EXPECT_FALSE(line.starts_with('\''));
    if (line.starts_with('.')) {
      EXPECT_TRUE(std::regex_match(line, known)) << line;
    }
  }
}

}  // namespace
}  // namespace ddprun
