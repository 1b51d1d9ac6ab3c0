#include "launcher/plan/exec_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

class ExecDiagnosis : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text, mode_t mode = 0755) {
    ASSERT_EQ(chmod(directory_.write(name, text).c_str(), mode), 0);
  }
  std::string trouble(const std::string& name, int way = X_OK) {
    return trouble_with(name, directory_.path(), way).value_or("");
  }
  std::string none_here() const { return "no such file in " + directory_.path(); }

  const testing_support::TemporaryDirectory directory_;
};

TEST_F(ExecDiagnosis, AFileOfTheSameNameInABuildIsSuggestedTheNewestOfThem) {
  EXPECT_EQ(trouble("./train"), none_here());
  write("build/debug/bin/train", "#!/bin/sh\n");
  write("build/release/bin/train", "#!/bin/sh\n");
  using Clock = std::filesystem::file_time_type::clock;
  std::filesystem::last_write_time(directory_ / "build/debug/bin/train",
                                   Clock::now() - std::chrono::hours(1));
  EXPECT_EQ(trouble("./train"), none_here() + "; did you mean build/release/bin/train?");
  EXPECT_EQ(trouble_with("/no/such/model", directory_.path(), X_OK), "no such file");
  EXPECT_EQ(did_you_mean("bin/train", directory_.path(), X_OK),
            "; did you mean build/release/bin/train?");
  write("train", "#!/bin/sh\n");
  EXPECT_EQ(did_you_mean("bild/train", directory_.path(), X_OK), "; did you mean ./train?");
  std::filesystem::create_directory(directory_ / "src");
  EXPECT_EQ(did_you_mean("./train", directory_ / "src", X_OK),
            "; did you mean ../build/release/bin/train?");
}

TEST_F(ExecDiagnosis, WhatCannotBeUsedIsNotSuggested) {
  write("build/train", "data", 0644);
  std::filesystem::create_directories(directory_ / "build/other/train");
  EXPECT_EQ(trouble("./train"), none_here());
  EXPECT_EQ(trouble("train", R_OK), none_here() + "; did you mean build/train?");
}

TEST_F(ExecDiagnosis, AnInterpreterThatIsNotThereIsNamed) {
  write("script", "#!/no/such/python -u\n");
  EXPECT_THAT(trouble("./script"), HasSubstr("interpreter /no/such/python, which does not exist"));
  write("windows", "#!/bin/sh\r\n");
  EXPECT_THAT(trouble("./windows"), HasSubstr("the line ends with CR LF"));
  write("good", "#! /bin/sh -e\n");
  EXPECT_EQ(trouble("./good"), "");
}

TEST_F(ExecDiagnosis, SaysWhatIsInTheWay) {
  std::filesystem::create_directory(directory_ / "folder");
  EXPECT_EQ(trouble("./folder"), "it is a directory; give the path of a file");
  write("plain", "x", 0644);
  EXPECT_THAT(trouble("./plain"), HasSubstr("not executable; chmod +x"));
  if (geteuid() == 0) return;  // root can enter every directory
  write("closed/train", "#!/bin/sh\n");
  ASSERT_EQ(chmod((directory_ / "closed").c_str(), 0), 0);
  EXPECT_THAT(trouble("closed/train"), HasSubstr("/closed cannot be entered"));
  ASSERT_EQ(chmod((directory_ / "closed").c_str(), 0700), 0);
}

TEST_F(ExecDiagnosis, AnErrnoOfExecIsExplainedByTheFile) {
  write("text", "echo hello\n");
  write("empty", "");
  const auto said = [&](const std::string& name, int number) {
    return exec_diagnosis(name, directory_.path(), number);
  };
  EXPECT_EQ(said("./text", ENOEXEC),
            "Exec format error: a script needs a first line such as #!/bin/sh");
  EXPECT_EQ(said("./empty", ENOEXEC), "Exec format error: the file is empty");
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::string program(4096, '\0');
  self.read(program.data(), 4096);
  program[18] = '\x2b';  // e_machine: SPARC V9
  write("foreign", program);
  EXPECT_THAT(said("./foreign", ENOEXEC), HasSubstr("built for machine 43"));
  const std::size_t loader = program.find("/lib");
  ASSERT_NE(loader, std::string::npos);
  program[loader + 1] = 'X';
  write("elsewhere", program);
  EXPECT_THAT(said("./elsewhere", ENOENT),
              HasSubstr("does not exist: the program was built for another"));
  EXPECT_THAT(said("./text", E2BIG), HasSubstr("ulimit -s"));
}

}  // namespace
}  // namespace ddprun
