// Runs twenty agents with real workers, and kills ddp-rendezvous or agents at random moments,
// repeatedly. chaos_worker, the worker, checks its own rank and generation. This test checks
// all workers together. DDPRUN_CHAOS_ROUNDS is the number of kills.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <map>
#include <set>
#include <sstream>

#include "base/poll_until.h"
#include "base/rng.h"
#include "base/unique_fd.h"
#include "tests/integration/rendezvous/service_frame.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kNodes = 20;
constexpr Duration kAllowed = seconds(60);  // twenty agents on a busy machine

std::uint64_t rounds(std::uint64_t unless_given) {
  return number_from("DDPRUN_CHAOS_ROUNDS", unless_given);
}

struct Worker {
  int rank = -1;
  int world_size = 0;
  int restarts = -1;
  pid_t pid = -1;
};

class Chaos : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    reports_ = make_fifo("reports");
    go_ = make_fifo("go");
  }
  void TearDown() override {
    agents_.clear();
    ServiceTest::TearDown();
  }

  // Makes a FIFO. It is open for reading and writing, so it stays usable as long as this test
  // runs.
  UniqueFd make_fifo(const std::string& name) const {
    const std::string path = directory_ / name;
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0) << path;
    return UniqueFd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  }

  std::unique_ptr<ChildProcess> start_agent() const {
    return start({"--nnodes=" + std::to_string(kNodes), "--max-restarts=100000",
                  "--rdzv-endpoint=" + address_, "--rdzv-id=chaos", program("chaos_worker"),
                  directory_.path()});
  }
  void start_agents() {
    for (int i = 0; i < kNodes; ++i) agents_.push_back(start_agent());
  }

  // Reads what the workers have reported since the last call.
  void read_reports() {
    std::array<char, 4096> buffer;
    for (ssize_t size; (size = ::read(reports_.get(), buffer.data(), buffer.size())) > 0;) {
      unread_.append(buffer.data(), static_cast<std::size_t>(size));
    }
    for (std::size_t end; (end = unread_.find('\n')) != std::string::npos;) {
      take_report(unread_.substr(0, end));
      unread_.erase(0, end + 1);
    }
  }
  void take_report(const std::string& line) {
    std::istringstream words(line);
    std::string kind;
    std::int64_t generation = -1;
    Worker worker;
    words >> kind >> generation >> worker.rank >> worker.world_size >> worker.restarts >>
        worker.pid;
    if (kind != "started" || !words) {
      ADD_FAILURE() << line;
      return;
    }
    ++starts_;
    EXPECT_GE(generation, generation_) << "after that of a newer generation: " << line;
    if (generation > generation_) workers_.clear();
    generation_ = generation;
    EXPECT_TRUE(workers_.emplace(worker.rank, worker).second) << "its rank is taken: " << line;
    EXPECT_EQ(worker.world_size, kNodes) << line;
    EXPECT_EQ(worker.restarts, workers_.begin()->second.restarts) << "not as the others: " << line;
    EXPECT_TRUE(worker.rank >= 0 && worker.rank < kNodes) << line;
  }

  // Waits until every rank of this generation, or of a later one, has started.
  void wait_for_generation(std::int64_t least) {
    const TimePoint deadline = in(kAllowed);
    for (;;) {
      read_reports();
      ASSERT_FALSE(HasFailure()) << output_tails();
      if (generation_ >= least && workers_.size() == kNodes) return;
      pollfd ready{reports_.get(), POLLIN, 0};
      ASSERT_TRUE(poll_until({&ready, 1}, deadline))
          << "of generation " << least << " or a later one; the newest is " << generation_
          << " with " << workers_.size() << " workers\n"
          << output_tails();
    }
  }

  std::set<pid_t> living_workers() const {
    std::set<pid_t> found;
    for (const pid_t pid : left_behind()) {
      if (read_file("/proc/" + std::to_string(pid) + "/comm") == "chaos_worker\n") {
        found.insert(pid);
      }
    }
    return found;
  }
  // Expects that of all workers ever started, those of the newest generation live, and no
  // others. An agent that was delayed too long by the machine may begin another generation
  // meanwhile.
  void expect_only_the_newest_workers() {
    std::set<pid_t> living, newest;
    EXPECT_TRUE(eventually(
        [&] {
          read_reports();
          newest.clear();
          for (const auto& [rank, worker] : workers_) newest.insert(worker.pid);
          living = living_workers();
          return newest.size() == kNodes && living == newest;
        },
        kAllowed))
        << "generation " << generation_ << " has " << newest.size() << " workers\n"
        << describe_processes({living.begin(), living.end()}) << output_tails();
  }

  // Ends the job: makes the FIFO readable, which the workers see. No worker reads it.
  void expect_a_good_end() {
    EXPECT_EQ(::write(go_.get(), "\n", 1), 1);
    for (const auto& agent : agents_) EXPECT_EQ(agent->wait(kAllowed), 0) << agent->err();
    read_reports();
    EXPECT_EQ(living_workers(), std::set<pid_t>());
  }

  std::string output_tails() const {
    const auto tail = [](const std::string& text) {
      return text.substr(text.size() - std::min<std::size_t>(text.size(), 2000));
    };
    std::string text = "the service:\n" + tail(service_->err());
    for (const auto& agent : agents_) text += "an agent:\n" + tail(agent->err());
    return text;
  }

  std::vector<std::unique_ptr<ChildProcess>> agents_;
  std::int64_t generation_ = -1;   // the newest one in which a worker has started
  std::map<int, Worker> workers_;  // workers of that generation, by rank
  int starts_ = 0;                 // number of workers started, in all generations

 private:
  UniqueFd reports_;
  UniqueFd go_;
  std::string unread_;
};

// --- kill -9 of the service ---------------------------------------------------------------------

class ServiceKills : public Chaos, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Chaos::SetUp();
    if (!GetParam()) state_.clear();
  }
  // Expects that all twenty nodes have come back to the service, and that it knows the job's
  // history.
  void expect_taken_over() {
    const std::string line = "took over generation " + std::to_string(generation_) + ", " +
                             std::to_string(restarts_) + " of 100000 restarts used";
    ASSERT_TRUE(service_->wait_for_err(line, kAllowed)) << line << "\n" << output_tails();
  }
  // Kills one worker. Expects that the generation number grows by one, and one restart is
  // used.
  void fail_one_worker(Rng& rng) {
    const std::int64_t next = generation_ + 1;
    ::kill(workers_.at(static_cast<int>(rng.below(kNodes))).pid, SIGKILL);
    ASSERT_NO_FATAL_FAILURE(wait_for_generation(next));
    ASSERT_EQ(generation_, next) << output_tails();
    ++restarts_;
    for (const auto& [rank, worker] : workers_) ASSERT_EQ(worker.restarts, restarts_) << rank;
  }

  int restarts_ = 0;
};

TEST_P(ServiceKills, AtRandomMomentsRestartNoWorkerAndLoseNothing) {
  const std::uint64_t seed = test_seed(20261122);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  ASSERT_NO_FATAL_FAILURE(start_service());
  start_agents();
  ASSERT_NO_FATAL_FAILURE(wait_for_generation(0));
  ASSERT_NO_FATAL_FAILURE(fail_one_worker(rng));  // this uses some budget, which must not be lost
  const std::uint64_t count = rounds(5);
  for (std::uint64_t round = 0; round < count; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    let_pass(up_to(milliseconds(400), rng));
    ASSERT_NO_FATAL_FAILURE(kill_service());
    let_pass(up_to(milliseconds(300), rng));
    ASSERT_NO_FATAL_FAILURE(start_service());
    // Sometimes the job needs the service between two kills.
    if (rng.chance(0.1) || round == count - 1) {
      ASSERT_NO_FATAL_FAILURE(expect_taken_over());
      ASSERT_NO_FATAL_FAILURE(fail_one_worker(rng));
    }
    read_reports();
    ASSERT_EQ(starts_, kNodes * (1 + restarts_)) << output_tails();
  }
  expect_only_the_newest_workers();
  expect_a_good_end();
  EXPECT_EQ(starts_, kNodes * (1 + restarts_));
}
// The lease is the default. The service is back within the agents' patience. It has heard from
// all agents when it is killed again.
TEST_P(ServiceKills, WithTheDefaultLeaseOutagesGoUnnoticed) {
  const std::uint64_t seed = test_seed(20261124);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  service_flags_.clear();
  ASSERT_NO_FATAL_FAILURE(start_service());
  start_agents();
  ASSERT_NO_FATAL_FAILURE(wait_for_generation(0));
  for (std::uint64_t left = rounds(5); left > 0; --left) {
    SCOPED_TRACE(std::to_string(left) + " rounds left");
    ASSERT_NO_FATAL_FAILURE(kill_service());
    let_pass(up_to(milliseconds(1500), rng));
    ASSERT_NO_FATAL_FAILURE(start_service());
    ASSERT_NO_FATAL_FAILURE(expect_taken_over());
    let_pass(up_to(milliseconds(400), rng));
    read_reports();
    ASSERT_EQ(starts_, kNodes) << output_tails();
  }
  expect_only_the_newest_workers();
  expect_a_good_end();
  EXPECT_EQ(starts_, kNodes);
}
INSTANTIATE_TEST_SUITE_P(Of, ServiceKills, testing::Bool(), [](const auto& one) {
  return one.param ? "AServiceWithAStateDirectory" : "AServiceThatForgets";
});

// --- kill -9 of agents --------------------------------------------------------------------------

class AgentKills : public Chaos {
 protected:
  // Kills a node as far as this is possible from within: two of its three guards at once.
  // Another node replaces it.
  void replace_one_node(Rng& rng) {
    auto& job = agents_[rng.below(kNodes)];
    if (kill_guards(tree_of(*job), {rng.below(3)}) < 2) job->signal(SIGKILL);
    std::unique_ptr<ChildProcess> old = std::exchange(job, start_agent());
    ASSERT_TRUE(old->wait()) << old->err();
    if (old->err().find(": starting") == std::string::npos) ++killed_early_;
  }

  int killed_early_ = 0;  // number of nodes that were killed before they had a worker
};

TEST_F(AgentKills, AtRandomMomentsLeaveTheRanksRightAndNoWorker) {
  const std::uint64_t seed = test_seed(20261123);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  service_flags_ = {"--lease=2"};  // short, because every round waits for it
  ASSERT_NO_FATAL_FAILURE(start_service());
  start_agents();
  ASSERT_NO_FATAL_FAILURE(wait_for_generation(0));
  const std::uint64_t count = rounds(10);
  for (std::uint64_t kills = 0; kills < count;) {
    SCOPED_TRACE("after " + std::to_string(kills) + " kills");
    let_pass(up_to(milliseconds(200), rng));
    const std::int64_t before = generation_;
    // Sometimes another node is killed while the job forms again.
    do {
      ASSERT_NO_FATAL_FAILURE(replace_one_node(rng));
      ++kills;
      let_pass(up_to(milliseconds(200), rng));
    } while (kills < count && rng.chance(0.25));
    ASSERT_NO_FATAL_FAILURE(wait_for_generation(before + 1));
    expect_only_the_newest_workers();
    ASSERT_FALSE(HasFailure());
  }
  expect_a_good_end();
  if (killed_early_ > 0) remove_what_an_early_kill_left();
}

}  // namespace
}  // namespace ddprun::testing_support
