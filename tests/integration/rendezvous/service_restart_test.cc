// Tests that ddp-rendezvous is killed, ended, or out of disk space while jobs run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/rng.h"
#include "tests/integration/rendezvous/service_frame.h"
#include "tests/support/hung_file.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

class ServiceRestart : public ServiceTest {
 protected:
  std::unique_ptr<ChildProcess> agent(const std::string& script, int nodes = 2, int restarts = 3,
                                      const std::string& job = "job",
                                      const Arguments& more = {}) const {
    const Arguments options{"--nnodes=" + std::to_string(nodes),
                            "--max-restarts=" + std::to_string(restarts), "--rdzv-id=" + job};
    return start(node(address_, joined(options, more), script));
  }
  // Returns the script of a worker that prints its generation, and succeeds after let_go().
  static std::string waits_for_go() {
    return until_go_after("echo started $TORCHELASTIC_RESTART_COUNT pid $$");
  }
};

TEST_F(ServiceRestart, ARunningJobIsTakenOverByARestartedService) {
  state_.clear();
  start_service();
  const auto one = agent(waits_for_go());
  const auto two = agent(waits_for_go());
  ASSERT_TRUE(one->wait_for_out("started 0")) << one->err();
  ASSERT_TRUE(two->wait_for_out("started 0")) << two->err();
  kill_service();
  start_service();
  ASSERT_TRUE(service_->wait_for_err("took over generation 0")) << service_->err() << one->err();
  EXPECT_TRUE(service_->wait_for_err("history before that is lost")) << service_->err();
  let_go();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(two->wait(), 0) << two->err();
  for (const std::string& out : {one->out(), two->out()}) {
    EXPECT_EQ(count(out, "started"), 1u) << "its worker was started once: " << out;
  }
}

// The workers and the generation stay the same, and the used budget stays used.
TEST_F(ServiceRestart, WithAStateDirectoryNothingIsForgottenAndNobodyNotices) {
  give_directory_a_past();
  start_service();
  const TimePoint begun = BootClock::now();
  const std::string script = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; " + waits_for_go() +
                             "; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 4";
  const auto one = agent(script, 2, 2, "job", {"--report-file=report.json"});
  const auto two = agent(script, 2, 2);
  ASSERT_TRUE(one->wait_for_out("started 1")) << one->err();
  ASSERT_TRUE(two->wait_for_out("started 1")) << two->err();
  // The agent's line is read from another pipe, and may come later than the worker's.
  ASSERT_TRUE(one->wait_for_err("generation 1: starting")) << one->err();
  const std::string out_before = one->out();
  const std::string err_before = one->err();
  const TimePoint killed = BootClock::now();
  kill_service();
  start_service();
  ASSERT_TRUE(service_->wait_for_err("took over generation 1, 1 of 2 restarts used"))
      << service_->err();
  const TimePoint restarted = BootClock::now();
  EXPECT_THAT(service_->err(), Not(HasSubstr("lost")));
  EXPECT_EQ(one->out(), out_before);
  EXPECT_EQ(one->err(), err_before) << "not even its agent had anything to say";

  // The workers fail now, and may fail once more: the generation after that is the last one.
  let_go();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(two->wait(), 0) << two->err();
  for (const std::string& out : {one->out(), two->out()}) {
    EXPECT_EQ(count(out, "started 1"), 1u) << out;
    EXPECT_EQ(count(out, "started 2"), 1u) << out;
  }
  const auto times = nlohmann::json::parse(read_file(directory_ / "report.json"))["times"];
  const Duration wall = std::chrono::milliseconds(times["wall_ms"].get<std::int64_t>());
  EXPECT_EQ(times["restarts"], 2) << "the books go on: " << times;
  EXPECT_LE(wall, BootClock::now() - begun) << times;
  EXPECT_GE(wall, restarted - killed) << "also over the time without a service: " << times;
}

// The service is killed at any moment, repeatedly, while the job fails until its budget is
// used up.
TEST_F(ServiceRestart, KilledAtRandomMomentsItCountsEveryRestartOnce) {
  const std::uint64_t seed = test_seed(20261121);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  give_directory_a_past();
  start_service();
  constexpr int kRestarts = 12;
  const std::string script = "echo started $TORCHELASTIC_RESTART_COUNT.; sleep 0.1; exit 3";
  const auto one = agent(script, 2, kRestarts);
  const auto two = agent(script, 2, kRestarts);
  // An agent on the service's host that finds no service at first would run the service
  // itself.
  ASSERT_TRUE(one->wait_for_out("started 0.")) << one->err();
  ASSERT_TRUE(two->wait_for_out("started 0.")) << two->err();
  int kills = 0;
  while (!one->wait(up_to(std::chrono::milliseconds(300), rng))) {
    ASSERT_NO_FATAL_FAILURE(kill_service());
    ASSERT_NO_FATAL_FAILURE(start_service());
    ASSERT_LT(++kills, 500) << one->err();
  }
  EXPECT_EQ(one->exit_code(), 3) << one->err();
  EXPECT_EQ(two->wait(), 3) << two->err();
  EXPECT_GT(kills, 0);
  // A node that was reconnecting may have missed a generation that the other one saw fail.
  for (int restart = 0; restart <= kRestarts; ++restart) {
    const std::string line = "started " + std::to_string(restart) + ".";
    EXPECT_LE(count(one->out(), line), 1u) << one->out();
    EXPECT_LE(count(two->out(), line), 1u) << two->out();
    EXPECT_GE(count(one->out() + two->out(), line), 1u) << line << "\n" << one->err();
  }
}

TEST_F(ServiceRestart, ToldToEndItTellsItsAgentsAndAnotherOneGoesOn) {
  give_directory_a_past();
  start_service();
  const auto one = agent(waits_for_go(), 1);
  const auto idle = agent(waits_for_go(), 2, 3, "waits");
  ASSERT_TRUE(one->wait_for_out("started 0")) << one->err();
  ASSERT_TRUE(idle->wait_for_err("1 of 2 nodes here")) << idle->err();
  end(*service_);
  EXPECT_TRUE(idle->wait_for_err("will be silent for a while")) << idle->err();
  start_service();
  ASSERT_TRUE(service_->wait_for_err("took over generation 0")) << service_->err();
  let_go();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(count(one->out(), "started"), 1u);
  idle->signal(SIGTERM);
  EXPECT_EQ(idle->wait(), 128 + SIGTERM);
}

// The fixture has a write in progress that never ends.
class ServiceWithAHungDisk : public ServiceRestart {
 protected:
  void SetUp() override {
    ServiceRestart::SetUp();
    give_directory_a_past();
    hung_.emplace(state_ + "/journal.new");
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // the service inherits it
    start_service();
    std::signal(SIGXFSZ, handler);
    // If an append fails, the service rewrites the journal.
    const rlimit limit{20, 20};
    ASSERT_EQ(::prlimit(service_->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
    newcomer_ = agent("true", 1);
    ASSERT_TRUE(service_->wait_for_err("File too large")) << service_->err();
    ASSERT_TRUE(eventually([&] { return service_has_open("journal.new"); }));
  }
  void TearDown() override {
    newcomer_->signal(SIGTERM);
    EXPECT_EQ(newcomer_->wait(), 128 + SIGTERM) << newcomer_->err();
    ServiceRestart::TearDown();
  }
  bool service_has_open(const std::string& name) const {
    const std::string all = "/proc/" + std::to_string(service_->pid()) + "/fd";
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(all, error)) {
      if (std::filesystem::read_symlink(entry, error).filename() == name) return true;
    }
    return false;
  }

  std::optional<HungFile> hung_;
  std::unique_ptr<ChildProcess> newcomer_;
};

TEST_F(ServiceWithAHungDisk, EndsNevertheless) {
  service_->signal(SIGTERM);
  EXPECT_EQ(service_->wait(), 0) << service_->err();
  EXPECT_THAT(service_->err(), HasSubstr("the disk takes too long"));
}

TEST_F(ServiceWithAHungDisk, ASecondSignalEndsItBeforeItGivesUpTheDisk) {
  service_->signal(SIGTERM);
  service_->signal(SIGINT);
  EXPECT_EQ(service_->wait(), 0) << service_->err();
  EXPECT_THAT(service_->err(), Not(HasSubstr("the disk takes too long")));
}

TEST_F(ServiceRestart, TwoServicesDoNotShareADirectory) {
  start_service();
  address_ = kAnyPort;
  const auto second = start_rendezvous(service_options());
  EXPECT_EQ(second->wait(), 73);
  EXPECT_THAT(second->err(), HasSubstr(state_));
  EXPECT_THAT(second->err(), HasSubstr("another ddp-rendezvous"));
  kill_service();
  start_service();
}

TEST_F(ServiceRestart, ADamagedJournalIsRefusedWithItsOffsetAndWhatToDo) {
  start_service();
  let_go();
  for (const char* job : {"a", "b"}) EXPECT_EQ(agent(waits_for_go(), 1, 0, job)->wait(), 0);
  kill_service();
  const std::string path = state_ + "/journal";
  {
    std::fstream journal(path, std::ios::in | std::ios::out | std::ios::binary);
    journal.seekp(40);
    journal.put('?');
  }
  const auto refused = start_rendezvous(service_options());
  EXPECT_EQ(refused->wait(), 73);
  for (const std::string& part : {path, std::string("offset 17"), std::string("move it away")}) {
    EXPECT_THAT(refused->err(), HasSubstr(part));
  }
  std::filesystem::remove(path);
  start_service();
}

// The service has its own disk in its own mount namespace. The test reaches it through /proc.
TEST_F(ServiceRestart, AFullDiskAdmitsNothingNewHarmsNothingThatRunsAndPasses) {
  const std::string disk = directory_ / "disk";
  std::filesystem::create_directory(disk);
  const std::string mount = "mount -t tmpfs -o size=4m none " + disk;
  if (::geteuid() != 0 || ChildProcess({"unshare", "-m", "sh", "-c", mount}).wait() != 0) {
    GTEST_SKIP() << "mounting a small tmpfs needs root";
  }
  state_ = disk + "/state";
  use_service(std::make_unique<ChildProcess>(
      joined({"unshare", "-m", "sh", "-c", mount + " && exec \"$@\"", "sh"},
             {program("ddp-rendezvous")}, service_options()),
      environment()));
  const auto running =
      agent("[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; " + waits_for_go() + "; exit 3", 1, 3,
            "running");
  ASSERT_TRUE(running->wait_for_out("started 0")) << running->err();

  const std::string inside = "/proc/" + std::to_string(service_->pid()) + "/root" + disk;
  {
    std::ofstream filler(inside + "/filler", std::ios::binary);
    const std::string block(4096, 'x');
    while (filler.write(block.data(), 4096).flush()) {
    }
  }
  const auto newcomer = agent("echo admitted", 1, 3, "newcomer");
  ASSERT_TRUE(newcomer->wait_for_err("No space left on device")) << newcomer->err();
  ASSERT_TRUE(service_->wait_for_err("no new jobs or agents are admitted until"))
      << service_->err();

  // Running jobs are served to their end, including a restart.
  let_go();
  EXPECT_EQ(running->wait(), 0) << running->err();
  EXPECT_EQ(count(running->out(), "started"), 1u);
  EXPECT_EQ(newcomer->out(), "");
  EXPECT_EQ(count(service_->err(), "no new jobs or agents are admitted"), 1u) << service_->err();

  ASSERT_TRUE(std::filesystem::remove(inside + "/filler"));
  EXPECT_TRUE(service_->wait_for_err("new jobs and agents are admitted")) << service_->err();
  EXPECT_EQ(newcomer->wait(), 0) << newcomer->err();
  EXPECT_THAT(newcomer->out(), HasSubstr("admitted"));
}

}  // namespace
}  // namespace ddprun::testing_support
