#include "launcher/cluster/slurm_requeue.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing_support::read_file;
using testing_support::TemporaryDirectory;

// A squeue and an scontrol of our own come first in PATH while it exists. squeue prints the file
// `job`. scontrol appends its arguments to `asked`; for requeue it is the script of the test.
class SlurmRequeue : public testing::Test {
 protected:
  SlurmRequeue() : path_(getenv("PATH")) {
    write_program("squeue", "cat " + folder_ / "job");
    answer_requeue("exit 0");
    setenv("PATH", (folder_.path() + ":" + path_).c_str(), 1);
  }
  ~SlurmRequeue() override { setenv("PATH", path_.c_str(), 1); }

  void set_job(const std::string& text) { folder_.write("job", text + "\n"); }
  void answer_requeue(const std::string& script) {
    write_program("scontrol", "echo \"$*\" >> " + folder_ / "asked" +
                                  "\n[ \"$1\" = requeue ] || exit 0\n" + script);
  }
  std::string asked() const { return read_file(folder_ / "asked"); }

  bool requeue(SlurmEnd end = SlurmEnd::kNotKnown, int requeues = 0) {
    return requeue_in_slurm("77", {.most = 3, .requeues = requeues, .step = 43}, end, log_);
  }

  TemporaryDirectory folder_;
  std::string lines_;  // of the log

 private:
  void write_program(const std::string& name, const std::string& script) {
    std::filesystem::permissions(folder_.write(name, "#!/bin/sh\n" + script + "\n"),
                                 std::filesystem::perms::owner_all);
  }

  std::string path_;
  Logger log_{"ddprun", [this](std::string_view line) { lines_ += line; }};
};

TEST_F(SlurmRequeue, RequeuesARunningJobAndStoresItsStepInTheComment) {
  set_job("RUNNING|mine");
  EXPECT_TRUE(requeue());
  EXPECT_EQ(lines_, "ddprun: Slurm job 77 is requeued (1 of --requeue=3)\n");
  EXPECT_EQ(asked(), "update JobId=77 Comment=mine ddprun: step 43\nrequeue 77\n");
}

TEST_F(SlurmRequeue, LeavesAJobThatSlurmIsEnding) {
  set_job("COMPLETING|");
  EXPECT_FALSE(requeue());
  EXPECT_EQ(lines_,
            "ddprun: Slurm job 77 is not requeued by ddprun: Slurm is ending it (COMPLETING)\n");
  EXPECT_EQ(asked(), "");
}

TEST_F(SlurmRequeue, WithoutAnAnswerAboutTheJobItsEndDecides) {
  EXPECT_FALSE(requeue(SlurmEnd::kBegun));
  EXPECT_EQ(lines_,
            "ddprun: Slurm job 77 is not requeued by ddprun: Slurm is ending it (SIGTERM came)\n");
  EXPECT_EQ(asked(), "");
  EXPECT_TRUE(requeue(SlurmEnd::kNotKnown));
  EXPECT_EQ(asked(), "requeue 77\n") << "a comment that is not known must not be replaced";
}

TEST_F(SlurmRequeue, StopsAtTheLimitOfTheUser) {
  set_job("RUNNING|(null)");
  EXPECT_FALSE(requeue(SlurmEnd::kNotKnown, 3));
  EXPECT_EQ(lines_,
            "ddprun: warning: Slurm job 77 is not requeued: it was requeued 3 times, of "
            "--requeue=3\n");
  EXPECT_EQ(asked(), "");
}

TEST_F(SlurmRequeue, ReportsTheFirstLineOfARefusal) {
  set_job("RUNNING|ddprun: step 43");
  answer_requeue("echo 'Job may not be requeued' >&2; echo more; exit 1");
  EXPECT_FALSE(requeue());
  EXPECT_EQ(lines_,
            "ddprun: error: scontrol requeue 77: Job may not be requeued; the job was saved: start "
            "it again by hand\n");
}

TEST_F(SlurmRequeue, ASilentScontrolMeansARequeueIfTheJobIsEnding) {
  set_job("RUNNING|");
  answer_requeue("echo 'COMPLETING|' > " + folder_ / "job" + "; kill -KILL $$");
  EXPECT_TRUE(requeue());
  EXPECT_EQ(lines_,
            "ddprun: Slurm job 77 is requeued (1 of --requeue=3), or Slurm ends it (COMPLETING)\n");
}

TEST_F(SlurmRequeue, ASilentScontrolOfARunningJobIsAnErrorThoughTheJobMayBeQueued) {
  set_job("RUNNING|");
  answer_requeue("exit 1");
  EXPECT_TRUE(requeue());
  EXPECT_EQ(lines_,
            "ddprun: error: scontrol requeue 77: no answer; the job may be in the queue; the job "
            "was saved: start it again by hand\n");
}

}  // namespace
}  // namespace ddprun
