// Tests --hang-timeout with Python programs: which rank is blamed, by the stacks that py-spy
// shows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/integration/launcher/launcher_frame.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The fixture has a Python program that reports step 1 and sleeps. A script replaces py-spy,
// which may not be installed. It shows rank 0 in torch.distributed.
class PythonHangTest : public LauncherTest {
 protected:
  PythonHangTest() {
    directory_.write("train.py",
                     "import glob, mmap, os, struct, sys, time\n"
                     "offset, path = os.environ['DDPRUN_WORKER_PAGE'].split('@', 1)\n"
                     "page = mmap.mmap(os.open(path, os.O_RDWR), 4096, offset=int(offset))\n"
                     "open(f'pid.{os.getpid()}', 'w').write(os.environ['RANK'])\n"
                     "while len(glob.glob('pid.*')) < int(os.environ['WORLD_SIZE']):\n"
                     "  time.sleep(0.01)\n"
                     "struct.pack_into('<q', page, 16, 1)\n"
                     "if sys.argv[1] == 'reports': struct.pack_into('<Q', page, 8, 1)\n"
                     "time.sleep(float(sys.argv[2]))\n");
    const std::string debugger =
        directory_.write("py-spy",
                         "#!/bin/sh\n"
                         "for pid; do :; done\n"
                         "echo \"Thread $pid (idle): \\\"MainThread\\\"\"\n"
                         "if [ $(cat pid.$pid) = 0 ]; then\n"
                         "  echo '    all_reduce (torch/distributed/distributed_c10d.py:3075)'\n"
                         "  echo '    wrapper (torch/distributed/c10d_logger.py:83)'\n"
                         "else\n"
                         "  echo '    load (train.py:7)'\n"
                         "fi\n"
                         "echo '    <module> (train.py:9)'\n");
    std::filesystem::permissions(debugger, std::filesystem::perms::owner_all);
  }
  std::unique_ptr<ChildProcess> train(const Arguments& options, const Arguments& arguments) const {
    return start(joined(joined(options, {"train.py"}), arguments),
                 {{"PATH", directory_.path() + ":" + std::getenv("PATH")}});
  }
};

TEST_F(PythonHangTest, TheRankThatIsNotInTorchDistributedIsBlamedWithItsStack) {
  auto job = train({"--nproc-per-node=3", "--hang-timeout=1", "--report-file=report.json"},
                   {"reports", "1000"});
  EXPECT_EQ(job->wait(), 71) << job->err();
  const json failed = json::parse(read_file(directory_ / "report.json"))["failed_generations"][0];
  ASSERT_EQ(failed["first"].size(), 2u) << failed.dump(2);
  EXPECT_EQ(failed["first"][0]["rank"], 1);
  EXPECT_EQ(failed["first"][1]["rank"], 2);
  EXPECT_THAT(job->err(), HasSubstr("it has not come to torch.distributed.all_reduce, where rank 0 "
                                    "has waited "));
  EXPECT_EQ(failed["first"][1]["frames"], json({"<module> (train.py:9)", "load (train.py:7)"}));
}

TEST_F(PythonHangTest, AProgramThatReportsNoStepsIsToldThatItIsNotWatched) {
  auto job = train({"--nproc-per-node=2", "--hang-timeout=0.3"}, {"silent", "2"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("--hang-timeout: ranks 0-1 have reported no step for 300 ms "
                                    "and made no call that is recorded, and cannot be watched"));
}

}  // namespace
}  // namespace ddprun::testing_support
