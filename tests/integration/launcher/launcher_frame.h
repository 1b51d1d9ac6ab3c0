// The fixture of tests that run ddprun on this host: the real binary and real workers. Nothing
// may be left when a test ends.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/program.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_mark.h"

namespace ddprun::testing_support {

using Variables = std::vector<std::pair<std::string, std::string>>;

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Describes processes that a test did not expect, for its failure message.
inline std::string describe_processes(const std::vector<pid_t>& pids) {
  std::string text;
  for (const pid_t pid : pids) {
    const std::string proc = "/proc/" + std::to_string(pid);
    std::string command = read_file(proc + "/cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    text += read_file(proc + "/stat").substr(0, 60) + " | " + command + "\n";
  }
  return text;
}

// The processes of each test have a mark in their environment. None may be left when the test
// ends.
class LauncherTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(tmp()); }
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return left_behind().empty(); })) << "processes were left behind";
    for (const pid_t pid : left_behind()) kill(pid, SIGKILL);
    EXPECT_TRUE(std::filesystem::is_empty(tmp())) << "temporary files were left behind";
  }

  // The directory for files that ddprun removes at its end.
  std::string tmp() const { return directory_ / "tmp"; }

  std::vector<pid_t> left_behind() const { return mark_.processes(); }

  // Removes the directory that a guardian has just made, if it was killed during its start.
  void remove_what_an_early_kill_left() const {
    for (const auto& entry : std::filesystem::directory_iterator(tmp())) {
      std::filesystem::remove_all(entry.path());
    }
  }

  ChildProcess::Options environment(Variables more = {}) const {
    ChildProcess::Options options;
    options.variables = {mark_.variable(), {"TMPDIR", tmp()}};
    options.variables.insert(options.variables.end(), more.begin(), more.end());
    options.directory = directory_.path();
    options.own_session = true;
    return options;
  }
  std::unique_ptr<ChildProcess> start(const Arguments& arguments, Variables more = {}) const {
    return std::make_unique<ChildProcess>(joined({program("ddprun")}, arguments),
                                          environment(std::move(more)));
  }
  // Starts workers that run a line of shell.
  std::unique_ptr<ChildProcess> start_shell(const Arguments& options, const std::string& script,
                                            Variables more = {}) const {
    return start(joined(options, {"sh", "-c", script}), std::move(more));
  }

  // A worker's line of shell that waits for let_go(). Everything here runs in directory_.
  static constexpr std::string_view kUntilGo = "until [ -e go ]; do sleep 0.02; done";
  static std::string until_go_after(const std::string& script) {
    return script + "; " + std::string(kUntilGo);
  }
  void let_go() const { std::ofstream(directory_ / "go"); }

  const TestMark mark_;
  const TemporaryDirectory directory_;
};

// The processes of ddprun on this node. The guardian is the one that the test started.
struct Tree {
  pid_t guardian;
  pid_t keeper;
  pid_t agent;
  pid_t worker;
};

inline Tree tree_of(const ChildProcess& job) {
  Tree tree{};
  tree.guardian = job.pid();
  tree.keeper = first_child_of(tree.guardian);
  tree.agent = first_child_of(tree.keeper);
  tree.worker = first_child_of(tree.agent);
  return tree;
}

// Kills guardian (0), keeper (1) and agent (2), except those that are spared. Returns the
// number of killed processes. A job that was just started may have a guardian only.
inline int kill_guards(const Tree& tree, const std::set<std::uint64_t>& spared) {
  const std::array<pid_t, 3> guards{tree.guardian, tree.keeper, tree.agent};
  int killed = 0;
  for (std::size_t i = 0; i < guards.size(); ++i) {
    if (guards[i] > 1 && !spared.contains(i) && kill(guards[i], SIGKILL) == 0) ++killed;
  }
  return killed;
}

}  // namespace ddprun::testing_support
