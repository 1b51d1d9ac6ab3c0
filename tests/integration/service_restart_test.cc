// ddp-rendezvous is killed under a running job and started again: nobody notices.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing_support::ChildProcess;

// A lease that no load of the machine uses up; its patience is as much longer.
ChildProcess service_on(const std::string& address) {
  return ChildProcess({DDPRUN_BIN_DIR "/ddp-rendezvous", "--listen", address, "--lease", "60"});
}

TEST(ServiceRestart, ARunningJobIsTakenOverByARestartedService) {
  const TemporaryDirectory directory;
  const std::string go = directory / "go";
  std::string address;
  ChildProcess first = service_on("127.0.0.1:0");
  const auto line = first.line();
  ASSERT_TRUE(line);
  address = line->substr(line->rfind(' ') + 1);

  const std::string script =
      "echo started $TORCHELASTIC_RESTART_COUNT; while ! [ -e " + go + " ]; do sleep 0.05; done";
  const std::vector<std::string> argv{DDPRUN_BIN_DIR "/ddprun",
                                      "--nnodes=2",
                                      "--max-restarts=3",
                                      "--rdzv-endpoint=" + address,
                                      "--nproc-per-node=1",
                                      "--no-python",
                                      "sh",
                                      "-c",
                                      script};
  ChildProcess one(argv);
  ChildProcess two(argv);
  ASSERT_TRUE(one.wait_for_out("started 0")) << one.err();
  ASSERT_TRUE(two.wait_for_out("started 0")) << two.err();

  first.signal(SIGKILL);
  ASSERT_EQ(first.wait(), 128 + SIGKILL);
  ChildProcess second = service_on(address);
  ASSERT_TRUE(second.wait_for_err("took over generation 0")) << second.err() << one.err();

  std::ofstream(go).put('\n');
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(two.wait(), 0) << two.err();
  for (const std::string& out : {one.out(), two.out()}) {
    EXPECT_EQ(out.find("started"), out.rfind("started")) << "its worker was started once: " << out;
  }
}

}  // namespace
}  // namespace ddprun
