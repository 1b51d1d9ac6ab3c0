// Tests that the loss of any one machine is survived. Four nodes train; three services and three
// members of etcd serve them. All ten have a host of their own. Each round has one fault of one
// host, while the job trains. DDPRUN_LOST_MACHINES_ROUNDS is the number of rounds.
//
// - A fault of a service or of a member of etcd: no worker is restarted.
// - A fault of a node: one restart, or none if it was short.
// - All agents end with 0, and the training with the bits of one without a fault.
// - The history in etcd is one line (decision_history.h), and agrees with what workers were told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/base64.h"
#include "base/concat.h"
#include "base/enum_names.h"
#include "base/rng.h"
#include "base/seconds.h"
#include "tests/integration/cluster/decision_history.h"
#include "tests/integration/cluster/several_hosts.h"
#include "tests/integration/worker_lib/training_phases.h"
#include "tests/support/read_file.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kNodes = 4, kCoordinators = 3;
constexpr int kFirstService = kNodes;
constexpr int kFirstMember = kFirstService + kCoordinators;
constexpr int kOperator = kFirstMember + kCoordinators;
constexpr int kHosts = kOperator + 1;
constexpr Duration kLease = seconds(10);
constexpr Duration kAllowed = seconds(180);  // torch starts slowly on a busy machine
const std::string kPrefix = "/test";

enum class Fault { kKill, kPowerLoss, kFreeze, kCut, kCutFrom, kCutTo };
constexpr EnumNames<Fault, 6> kFaults{{{Fault::kKill, "killed"},
                                       {Fault::kPowerLoss, "without power"},
                                       {Fault::kFreeze, "frozen"},
                                       {Fault::kCut, "cut off"},
                                       {Fault::kCutFrom, "cut off, sends nothing"},
                                       {Fault::kCutTo, "cut off, hears nothing"}}};

// A worker that has started, as it reports itself.
struct Start {
  std::int64_t generation = -1;
  int rank = -1;
  int restarts = -1;
};

class LostMachines : public SeveralHosts {
 protected:
  void SetUp() override {
    SeveralHosts::SetUp();
    if (IsSkipped()) return;
    for (const std::string tool : {"etcd", "curl", "tc"}) {
      if (ChildProcess({"sh", "-c", "command -v " + tool}).wait() != 0)
        GTEST_SKIP() << "the program '" << tool << "' is missing";
    }
  }
  void TearDown() override {
    programs_ = {};
    SeveralHosts::TearDown();
  }

  static std::string hosts(int first, const std::string& separator, const std::string& before = "",
                           const std::string& after = "") {
    std::string all;
    for (int i = first; i < first + kCoordinators; ++i) {
      all += (i == first ? "" : separator) + before + NetnsCluster::name(i) + after;
    }
    return all;
  }

  // Starts what the host is for. A host that was down gets its program, or its node, again.
  void start_program(int host) {
    const std::string name = NetnsCluster::name(host);
    const std::string address = "http://" + NetnsCluster::address(host);
    Arguments command;
    if (host < kNodes) {
      command = {"env",
                 "TMPDIR=" + scratch_.path(),  // tests of commands do not see the job
                 program("ddprun"),
                 "--rdzv-endpoint=" + hosts(kFirstService, ",", "", ":29400"),
                 "--rdzv-id=" + job_,
                 "--nnodes=" + std::to_string(kNodes),
                 "--max-restarts=100",
                 "--rdzv-conf=join_timeout=300",
                 "--verbose",
                 "--env=OMP_NUM_THREADS=1",  // the hosts share the cores of this machine
                 "sh",
                 "-c",
                 script()};
    } else if (host < kFirstMember) {
      command = {program("ddp-rendezvous"), "--listen=*:29400", "--advertise=" + name + ":29400",
                 "--lease=" + std::to_string(kLease / seconds(1)),
                 "--state=etcd://" + hosts(kFirstMember, ",") + kPrefix};
    } else {
      std::string members;
      for (int i = kFirstMember; i < kOperator; ++i) {
        members += (members.empty() ? "" : ",") + NetnsCluster::name(i) + "=http://" +
                   NetnsCluster::address(i) + ":2380";
      }
      command = {"etcd",
                 "--name=" + name,
                 "--data-dir=" + (scratch_ / ("etcd." + name)),
                 "--listen-peer-urls=" + address + ":2380",
                 "--initial-advertise-peer-urls=" + address + ":2380",
                 "--listen-client-urls=" + address + ":2379",
                 "--advertise-client-urls=" + address + ":2379",
                 "--initial-cluster=" + members,
                 "--initial-cluster-state=new"};
    }
    programs_.at(static_cast<std::size_t>(host)) = start_process(host, command);
  }
  // The workers stay until the file exists, so that the training may end during a fault.
  std::string script() const {
    return "echo $DDPRUN_GENERATION $RANK $TORCHELASTIC_RESTART_COUNT >> " + file("starts") + "; " +
           program("same_bits_worker") + " sgd " + std::to_string(kEpochs) + " " + file("digest") +
           " " + file("phases") + " " + file("checkpoints") + " " + std::to_string(pause_.count()) +
           " || exit 1; until [ -e " + file("go") + " ]; do sleep 0.1; done";
  }
  std::string file(const std::string& name) const { return scratch_ / (job_ + "." + name); }

  ChildProcess& program_of(int host) { return *programs_.at(static_cast<std::size_t>(host)); }
  std::string all_err() {
    std::string all;
    for (int host = 0; host < kOperator; ++host) {
      if (host >= kFirstMember || !programs_.at(static_cast<std::size_t>(host))) continue;
      const std::string text = program_of(host).err();
      all += "--- " + NetnsCluster::name(host) + "\n" +
             text.substr(text.size() - std::min<std::size_t>(text.size(), 3000));
    }
    return all;
  }
  // Returns what curl prints on the operator's host.
  std::string curl(const Arguments& words) {
    const auto run = start_process(kOperator, joined({"curl", "-s", "--max-time", "3"}, words));
    run->wait();
    return run->out();
  }

  // As eventually(). Each condition here starts programs, so pauses come between its checks.
  template <class Condition>
  static bool soon(const Condition& condition) {
    return eventually(
        [&] {
          let_pass(milliseconds(100));
          return condition();
        },
        kAllowed);
  }
  // Returns whether all members of etcd are healthy, one service leads, and the others stand by.
  bool is_whole() {
    Arguments urls;
    for (int i = kFirstMember; i < kOperator; ++i)
      urls.push_back("http://" + NetnsCluster::address(i) + ":2379/health");
    for (int i = kFirstService; i < kFirstMember; ++i)
      urls.push_back("http://" + NetnsCluster::address(i) + ":29400/readyz");
    const std::string text = curl(urls);
    const auto times = [&](const std::string& word) {
      std::size_t count = 0;
      for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++count;
      return count;
    };
    return times("\"health\":\"true\"") == 3 && times("ok\n") == 1 && times("standby") == 2;
  }
  static bool is_service(int host) { return host >= kFirstService && host < kFirstMember; }
  // Returns the host of the service that leads, by what the services say.
  int leader() {
    const std::string word = "leads in term ";
    std::pair<long, int> newest{0, kFirstService};
    for (int host = kFirstService; host < kFirstMember; ++host) {
      const std::string said = program_of(host).err();
      const std::size_t at = said.rfind(word);
      if (at == said.npos) continue;
      newest = std::max(newest, std::pair(std::stol(said.substr(at + word.size())), host));
    }
    return newest.second;
  }
  // Returns the newest generation if all nodes run it, by the page of any service; else nullopt.
  std::optional<std::int64_t> running_generation() {
    std::string status;
    for (int i = kFirstService; i < kFirstMember && status.empty(); ++i)
      status = curl({"-L", "http://" + NetnsCluster::address(i) + ":29400/status.json"});
    const nlohmann::json page = nlohmann::json::parse(status, nullptr, false);
    if (page.is_discarded()) return std::nullopt;
    for (const auto& job : page.at("jobs")) {
      if (job.at("id") != job_ || job.at("phase") != "running") continue;
      int running = 0;
      for (const auto& node : job.at("nodes")) {
        running += node.at("connected") == true && node.at("generation") == job.at("generation") &&
                   node.at("phase") == "running";
      }
      if (running == kNodes) return job.at("generation").get<std::int64_t>();
    }
    return std::nullopt;
  }

  // Reads what workers of the job have reported. Expects that no rank of a generation has started
  // twice, and that all ranks of a generation were told the same count of restarts.
  std::vector<Start> starts() {
    std::vector<Start> all;
    std::istringstream lines(read_file(file("starts")));
    std::map<std::int64_t, int> restarts;
    std::set<std::pair<std::int64_t, int>> seen;
    for (Start one; lines >> one.generation >> one.rank >> one.restarts;) {
      EXPECT_TRUE(seen.emplace(one.generation, one.rank).second)
          << "rank " << one.rank << " of generation " << one.generation << " has started twice";
      EXPECT_EQ(restarts.emplace(one.generation, one.restarts).first->second, one.restarts);
      all.push_back(one);
    }
    return all;
  }

  void start_coordinators() {
    cluster_ = std::make_unique<NetnsCluster>(kHosts);
    for (int host = kOperator - 1; host >= kFirstService; --host) start_program(host);
    ASSERT_TRUE(soon([&] { return is_whole(); })) << all_err();
  }
  void start_job(const std::string& name) {
    job_ = name;
    generation_ = 0;
    restarts_ = 0;
    phases_ = std::make_unique<PhaseFile>(file("phases"));
    for (int node = 0; node < kNodes; ++node) start_program(node);
    ASSERT_TRUE(soon([&] { return running_generation() == 0; })) << all_err();
    ASSERT_TRUE(eventually([&] { return phase() >= Phase::kForward; }, kAllowed)) << all_err();
    take_starts();
  }
  // Returns the phase of rank 0 in the newest generation that is known.
  Phase phase() const { return phases_->slot(static_cast<std::size_t>(generation_), 0).phase; }
  // Lets the job end. Expects that all agents end with 0. Returns the digest of its weights.
  std::string end_job() {
    EXPECT_EQ(ChildProcess({"touch", file("go")}).wait(), 0);
    for (int node = 0; node < kNodes; ++node) {
      EXPECT_EQ(program_of(node).wait(kAllowed), 0) << all_err();
    }
    EXPECT_NE(first_line_of(file("digest")), "") << all_err();
    return first_line_of(file("digest"));
  }

  static constexpr auto kShort = seconds(3);  // no node is lost in this time

  // Does the fault, and undoes it.
  void hurt(int host, Fault fault, Duration time) {
    switch (fault) {
      case Fault::kKill: cluster_->kill_processes(host); break;
      case Fault::kPowerLoss: cluster_->crash(host); break;
      case Fault::kFreeze: cluster_->freeze(host); break;
      case Fault::kCut: cluster_->cut(host); break;
      case Fault::kCutFrom: cluster_->cut_from(host); break;
      case Fault::kCutTo: cluster_->cut_to(host); break;
    }
    let_pass(time);
    switch (fault) {
      case Fault::kPowerLoss: cluster_->boot(host); [[fallthrough]];
      case Fault::kKill: start_program(host); break;
      case Fault::kFreeze:
        cluster_->thaw(host);
        program_of(host).signal(SIGCONT);  // nsenter has stopped with its program
        break;
      case Fault::kCut: cluster_->heal(host); break;
      case Fault::kCutFrom:
      case Fault::kCutTo: cluster_->heal_one_way(host); break;
    }
  }
  // Returns whether the fault of a node costs a restart; nullopt: it may, or not. lasted: the time
  // from before the fault to after its end. Programs start slowly on a busy machine, so the fault
  // may last longer than planned.
  static std::optional<bool> costs_a_restart(int host, Fault fault, Duration planned,
                                             Duration lasted) {
    if (host >= kNodes) return false;
    if (fault == Fault::kKill || fault == Fault::kPowerLoss) return true;
    if (lasted < kShort) return false;
    if (planned > kLease + seconds(4)) return true;
    return std::nullopt;
  }
  void do_round(Rng& rng) {
    int host = static_cast<int>(rng.below(kOperator));
    if (is_service(host) && rng.chance(0.7)) host = leader();
    const Fault fault = static_cast<Fault>(rng.below(kFaults.size()));
    // From 1 to 20 s, most of them short. A lease of etcd is 2 s.
    const double part = static_cast<double>(rng.below(1000)) / 1000;
    const Duration time =
        milliseconds(1000 + static_cast<int>(19000 * std::pow(part, host < kNodes ? 6 : 4)));
    let_pass(up_to(milliseconds(1500), rng));
    const std::string what =
        concat(NetnsCluster::name(host), " ", enum_name(kFaults, fault), " for ", in_seconds(time));
    SCOPED_TRACE(what);
    const int before = restarts_;
    const std::int64_t generation = generation_;
    const bool in_training = phase() >= Phase::kForward && phase() < Phase::kEnding;
    in_training_ += in_training;
    const TimePoint begin = BootClock::now();
    hurt(host, fault, time);
    const Duration lasted = BootClock::now() - begin;
    const std::optional<bool> restarts = costs_a_restart(host, fault, time, lasted);
    // TCP may send again only when as much time has passed again, which may exceed the patience.
    if (!restarts) let_pass(kLease);
    // A killed node is lost only when its lease has run out.
    EXPECT_TRUE(soon([&] {
      if (!is_whole()) return false;
      const std::optional<std::int64_t> running = running_generation();
      take_starts();
      return generation_ == running && (restarts != true || restarts_ > before);
    }));
    std::cout << what << (in_training ? " in training" : "") << ": lasted " << in_seconds(lasted)
              << ", whole after " << in_seconds(BootClock::now() - begin) << ", generation "
              << generation_ << ", " << restarts_ << " restarts" << std::endl;
    EXPECT_LE(restarts_, before + 1);
    if (restarts) {
      EXPECT_EQ(restarts_, before + (*restarts ? 1 : 0));
    }
    if (restarts == false) {
      EXPECT_EQ(generation_, generation);
    }
  }
  // Takes over what the newest generation was told.
  void take_starts() {
    for (const Start& one : starts()) {
      if (one.generation < generation_) continue;
      generation_ = one.generation;
      restarts_ = one.restarts;
    }
  }
  // Expects that the history in etcd is one line, and that workers were told nothing else.
  void check_history(const std::vector<std::string>& jobs) {
    const std::string key = to_base64(kPrefix + "/"), end = to_base64(kPrefix + "0");
    const std::string lines =
        curl({"--max-time", "10",
              "http://" + NetnsCluster::address(kFirstMember) + ":2379/v3/watch", "-d",
              R"({"create_request":{"start_revision":"1","key":")" + key + R"(","range_end":")" +
                  end + R"("}})"});
    DecisionHistory history;
    EXPECT_EQ(history.check(history_events(kPrefix, lines)), "");
    for (const std::string& job : jobs) {
      job_ = job;
      for (const Start& one : starts()) {
        EXPECT_EQ(history.restarts_of(job, one.generation), one.restarts)
            << job << ", generation " << one.generation;
      }
    }
    std::cout << history.terms() << " terms, " << history.decisions() << " decisions\n";
    EXPECT_GT(history.decisions(), 0);
  }

  static constexpr int kEpochs = 16;  // 30 steps each
  milliseconds pause_{0};             // after each step
  std::string job_ = "undisturbed";
  std::int64_t generation_ = 0;
  int restarts_ = 0;
  std::uint64_t in_training_ = 0;  // rounds whose fault began in a step or a save
  std::unique_ptr<PhaseFile> phases_;
  std::array<std::unique_ptr<ChildProcess>, kHosts> programs_;
};

TEST_F(LostMachines, OfAnyOneTheJobGoesOn) {
  const std::uint64_t seed = test_seed(20261129);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  ASSERT_NO_FATAL_FAILURE(start_coordinators());
  ASSERT_NO_FATAL_FAILURE(start_job("undisturbed"));
  const std::string expected = end_job();
  ASSERT_FALSE(HasFailure());
  pause_ = milliseconds(100);
  std::vector<std::string> jobs;
  const std::uint64_t rounds = number_from("DDPRUN_LOST_MACHINES_ROUNDS", 30);
  for (std::uint64_t round = 0; round < rounds;) {
    jobs.push_back("job" + std::to_string(jobs.size()));
    ASSERT_NO_FATAL_FAILURE(start_job(jobs.back()));
    while (round < rounds && phase() != Phase::kEnding) {
      SCOPED_TRACE("round " + std::to_string(round++));
      do_round(rng);
      ASSERT_FALSE(HasFailure()) << all_err();
    }
    EXPECT_EQ(end_job(), expected);
    ASSERT_FALSE(HasFailure()) << all_err();
  }
  std::cout << in_training_ << " of " << rounds << " rounds in training, " << jobs.size()
            << " jobs\n";
  EXPECT_GE(3 * in_training_, rounds);
  check_history(jobs);
}

// --- the check of histories ---

class Histories : public testing::Test {
 protected:
  Histories() {
    record_.state.spec.id = "job";
    add({.created = 5, .key = "leader", .value = "h:1"});
    write("5 1", to_entry(ServiceBegun{"s", 1}));
    decide("5 2", 0, 0);
    decide("5 3", 1, 1);
    add({.created = 0, .key = "leader", .value = std::nullopt});
    add({.created = 9, .key = "leader", .value = "h:2"});
  }
  void add(HistoryEvent event) {
    event.revision = static_cast<std::int64_t>(events_.size());
    events_.push_back(std::move(event));
  }
  void write(const std::string& chain, const JournalEntry& entry) {
    add({.created = 1, .key = "chain", .value = chain});
    events_.push_back({.revision = events_.back().revision,
                       .created = 1,
                       .key = "state/" + entry.key,
                       .value = entry.value});
  }
  void decide(const std::string& chain, std::int64_t generation, int restarts,
              const std::string& store = "h") {
    JobState& state = record_.state;
    state.phase = JobPhase::kRunning;
    state.generation = Generation{generation};
    state.restarts_used = restarts;
    state.places = {{.node = {.agent_id = "a", .host = "h", .address = "10.0.0.1"},
                     .assignment = {.generation = Generation{generation},
                                    .store = {store, 1},
                                    .restart_count = restarts}}};
    write(chain, to_entry(JobChanged{record_}));
  }
  std::string wrong() { return DecisionHistory().check(events_); }

  std::vector<HistoryEvent> events_;
  JobRecord record_{.instance = "s-1", .former_instance = "", .state = {}};
};

TEST_F(Histories, OneLineIsGood) {
  decide("9 1", 2, 2);
  DecisionHistory history;
  EXPECT_EQ(history.check(events_), "");
  EXPECT_EQ(history.restarts_of("job", 2), 2);
  EXPECT_EQ(history.restarts_of("job", 3), std::nullopt);
  EXPECT_EQ(history.terms(), 2);
}
TEST_F(Histories, AWriteOfAFormerTermIsFound) {
  decide("5 4", 2, 2);
  EXPECT_THAT(wrong(), HasSubstr("a write of term 5 4, which does not lead"));
}
TEST_F(Histories, AWriteThatIsMissingIsFound) {
  decide("9 2", 2, 2);
  EXPECT_THAT(wrong(), HasSubstr("write 9 2 is not the next one"));
}
TEST_F(Histories, AGenerationThatComesAgainIsFound) {
  decide("9 1", 0, 1);
  EXPECT_THAT(wrong(), HasSubstr("an older generation"));
}
TEST_F(Histories, ARestartThatIsForgottenIsFound) {
  decide("9 1", 2, 0);
  EXPECT_THAT(wrong(), HasSubstr("fewer restarts"));
}
TEST_F(Histories, AnotherAssignmentInOneGenerationIsFound) {
  decide("9 1", 1, 1, "elsewhere");
  EXPECT_THAT(wrong(), HasSubstr("another assignment in one generation"));
}
TEST_F(Histories, TwoRestartsInOneGenerationAreFound) {
  record_.state.restarts_used = 2;
  write("9 1", to_entry(JobChanged{record_}));
  EXPECT_EQ(wrong(), "");
  record_.state.restarts_used = 3;
  write("9 2", to_entry(JobChanged{record_}));
  EXPECT_THAT(wrong(), HasSubstr("two restarts in one generation"));
}
TEST_F(Histories, TwoCountsInOneGenerationAreFound) {
  decide("9 1", 1, 2);
  EXPECT_THAT(wrong(), HasSubstr("two counts in one generation"));
}
TEST_F(Histories, RestartsWithoutGenerationsAreFound) {
  decide("9 1", 2, 4);
  EXPECT_THAT(wrong(), HasSubstr("restarts without generations"));
}
TEST_F(Histories, AWriteWithoutTheChainKeyIsFound) {
  const JournalEntry entry = to_entry(ServiceBegun{"s", 2});
  add({.created = 1, .key = "state/" + entry.key, .value = entry.value});
  EXPECT_THAT(wrong(), HasSubstr("a write without the chain key"));
}
TEST_F(Histories, ATermThatIsNotNewerIsFound) {
  add({.created = 0, .key = "leader", .value = std::nullopt});
  add({.created = 9, .key = "leader", .value = "h:3"});
  EXPECT_THAT(wrong(), HasSubstr("a term that is not newer"));
}
TEST_F(Histories, AnUnknownKeyIsFound) {
  add({.created = 1, .key = "other", .value = "x"});
  EXPECT_THAT(wrong(), HasSubstr("an unknown key other"));
}
TEST_F(Histories, TwoLeadersAtATimeAreFound) {
  add({.created = 20, .key = "leader", .value = "h:3"});
  EXPECT_THAT(wrong(), HasSubstr("a second leader"));
}

}  // namespace
}  // namespace ddprun::testing_support
