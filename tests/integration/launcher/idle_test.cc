// Tests the cost of ddprun itself while its workers work: nothing, or close to it.

#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/rendezvous/service_frame.h"
#include "tests/support/eventually.h"

namespace ddprun::testing_support {
namespace {

using std::chrono::seconds;

// Returns the number after a name in a file of /proc: "VmRSS:   6396 kB".
std::int64_t number_in(const std::string& file, const std::string& name) {
  for (const std::string& line : lines_of(read_file(file))) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  }
  return 0;
}

std::vector<pid_t> guards_of(const ChildProcess& job) {
  const Tree tree = tree_of(job);
  return {tree.guardian, tree.keeper, tree.agent};
}

// Returns the number of times that the threads of these processes have woken up for an event.
std::int64_t wake_ups(const std::vector<pid_t>& pids) {
  std::int64_t sum = 0;
  for (const pid_t pid : pids) {
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
      sum += number_in(task.path() / "status", "voluntary_ctxt_switches");
    }
  }
  return sum;
}

// Returns whether some stretch of time has no more wake-ups than this. The remaining work of
// the start ends at some time. On a busy machine one wake-up sometimes becomes two.
bool wakes_up_at_most(std::int64_t count, const std::vector<pid_t>& pids, Duration stretch) {
  for (int i = 0; i < 6; ++i) {
    const std::int64_t before = wake_ups(pids);
    let_pass(stretch);
    if (before > 0 && wake_ups(pids) - before <= count) return true;
  }
  return false;
}

class IdleTest : public ServiceTest {
 protected:
  // Starts eight workers that report that they run, and then do nothing.
  std::unique_ptr<ChildProcess> start_eight(const Arguments& options) const {
    auto job = start_shell(joined(options, {"--nproc-per-node=8", "--no-python"}),
                           "touch here.$RANK; exec sleep 1000");
    EXPECT_TRUE(eventually([&] {
      for (int rank = 0; rank < 8; ++rank) {
        if (!std::filesystem::exists(directory_ / ("here." + std::to_string(rank)))) return false;
      }
      return true;
    }));
    return job;
  }
  static void stop(ChildProcess& job) {
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
  }
};

TEST_F(IdleTest, AJobOfOneNodeNeverWakesItsLauncher) {
  const auto job = start_eight({"--standalone"});
  EXPECT_TRUE(wakes_up_at_most(0, guards_of(*job), seconds(3)));
  stop(*job);
}

TEST_F(IdleTest, LookingForHangsTakesAWakeUpASecondAtMost) {
  const auto job = start_eight({"--standalone", "--hang-timeout=30"});
  EXPECT_TRUE(wakes_up_at_most(4, guards_of(*job), seconds(4)));
  stop(*job);
}

// One wake-up sends the heartbeat. Its answer arrives while the agent is still awake, if the
// machine has a core for the service.
TEST_F(IdleTest, ALeaseTakesAWakeUpOrTwoASecond) {
  service_flags_ = {};  // with the default lease
  ASSERT_NO_FATAL_FAILURE(start_service());
  const auto job = start_eight({"--nnodes=1", "--rdzv-endpoint=" + address_});
  EXPECT_TRUE(wakes_up_at_most(9, guards_of(*job), seconds(4)));
  stop(*job);
}

// The machine's memory is for the workers. Pages that several processes have mapped count once
// (proportional set size). Resident sizes would depend on the page cache: where it has large
// folios, Linux 6.18 maps a whole one, up to 2 MB of code, at the first fault in it.
TEST_F(IdleTest, GuardsAndAgentHaveTwelveMegabytesTogether) {
  const auto job = start_eight({"--standalone"});
  const auto memory = [&] {
    std::int64_t sum = 0;
    for (const pid_t pid : guards_of(*job)) {
      sum += number_in("/proc/" + std::to_string(pid) + "/smaps_rollup", "Pss");
    }
    return sum;
  };
  EXPECT_TRUE(eventually([&] { return memory() > 0 && memory() < 12'000; })) << memory() << " kB";
  stop(*job);
}

}  // namespace
}  // namespace ddprun::testing_support
