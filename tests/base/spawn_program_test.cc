#include "base/spawn_program.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "base/pipe.h"
#include "base/read_all.h"
#include "base/wait_status.h"

namespace ddprun {
namespace {

// Returns what a shell line prints in a started program, and its exit code.
std::string output_of(const std::string& line, ProgramStart start = {}) {
  Result<Pipe> made = make_pipe();
  if (!made) return made.error().message();
  Pipe& pipe = *made;
  start.words = {"sh", "-c", line};
  start.output = pipe.write.get();
  const Result<pid_t> pid = spawn_program(start);
  pipe.write.reset();
  if (!pid) return pid.error().message();
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(
      std::max<ssize_t>(0, read_all(pipe.read.get(), text.data(), text.size()))));
  int status = 0;
  EXPECT_EQ(waitpid(*pid, &status, 0), *pid);
  return text + std::to_string(exit_code_of_status(status));
}

TEST(SpawnProgram, GivesVariablesInsteadOfThoseOfTheEnvironment) {
  setenv("DDPRUN_TEST_A", "old", 1);
  setenv("DDPRUN_TEST_B", "kept", 1);
  EXPECT_EQ(output_of("echo $DDPRUN_TEST_A $DDPRUN_TEST_B; cat; exit 4",
                      {.variables = {{"DDPRUN_TEST_A", "a new one"}}}),
            "a new one kept\n4");
}

TEST(SpawnProgram, NoSignalIsBlockedOrIgnored) {
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  const auto old = signal(SIGUSR1, SIG_IGN);
  EXPECT_EQ(output_of("kill -TERM $$"), "143");
  EXPECT_EQ(output_of("kill -USR1 $$"), "138");
  signal(SIGUSR1, old);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST(SpawnProgram, MayHaveAGroupOfItsOwn) {
  const std::string own =
      "read -r pid name state parent group rest </proc/$$/stat; [ $group = $$ ]";
  EXPECT_EQ(output_of(own, {.has_own_group = true}), "0");
  EXPECT_EQ(output_of(own), "1");
}

TEST(SpawnProgram, WhatCannotBeStartedIsNamed) {
  const Result<pid_t> pid = spawn_program({.words = {"/no/program"}});
  ASSERT_FALSE(pid);
  EXPECT_EQ(pid.error().message(), "start /no/program: No such file or directory");
}

}  // namespace
}  // namespace ddprun
