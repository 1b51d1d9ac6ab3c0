#include "rendezvous/persistence/state_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "rendezvous/membership/core/job_table.h"
#include "tests/support/hello_of.h"
#include "tests/support/sanitized.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;

using std::chrono::seconds;

// Returns what a disk would hold of a service's changes.
JournalImage image_of(const ServiceState& state) {
  JournalImage image;
  const auto keep = [&](const StateChange& change) {
    const JournalEntry entry = to_entry(change);
    apply_entries({&entry, 1}, image);
  };
  keep(ServiceBegun{state.service_id, state.jobs_begun});
  for (const auto& [id, record] : state.jobs) keep(JobChanged{record});
  return image;
}

JobRecord a_record() {
  JobRecord record{.instance = "s-1", .former_instance = "r-9", .state = {}};
  JobState& state = record.state;
  state.spec = {.id = "a job",
                .nodes = {1, 4},
                .max_restarts = 3,
                .join_timeout = seconds(9),
                .on_join = OnJoin::kCheckpoint,
                .node_failures = 2};
  state.missing = {"gone"};
  state.node_failures = {{"broken", 4}};
  state.restart_ages = {std::chrono::seconds(40), std::chrono::milliseconds(1500)};
  state.generation = Generation(5);
  state.restarts_used = 2;
  state.reason = "failure";
  state.failed = true;
  WorkerEnd end{.kind = EndKind::kSignaled, .code = 9};
  end.stderr_tail = {"no UTF-8: \xff\xfe"};
  end.age = seconds(3);
  state.ends = {end};
  state.ending = stopped_verdict(143, "why");
  Place place;
  place.node = {.agent_id = "id", .host = "h", .slots = 2, .node_rank = 1, .address = "10.0.0.1"};
  place.assignment = {.generation = Generation(5), .node_rank = NodeRank(1), .node_count = 2};
  state.places = {place};
  state.books = BooksState{.booked = {.generations = 6, .has_steps = true},
                           .since = TimePoint(seconds(1'795'263'000)),
                           .cause = TimeCause::kStopped,
                           .in_generation = true,
                           .left = TimePoint(seconds(1'795'263'060)),
                           .open = {.heard = TimePoint(seconds(1'795'263'059)),
                                    .started = TimePoint(seconds(1'795'263'001)),
                                    .first_step_at = TimePoint(seconds(1'795'263'002)),
                                    .first_step = -4,
                                    .last_step = 7,
                                    .checkpoint = seconds(1),
                                    .stopped = seconds(2),
                                    .hung = TimePoint(seconds(1'795'263'050))},
                           .steps = {{-3, 99, seconds(50)}}};
  state.books->booked[TimeCause::kLostWork] = seconds(7);
  state.generations = {{.number = Generation(4),
                        .nodes = 2,
                        .ranks = 16,
                        .formed = TimePoint(seconds(1'795'262'000)),
                        .ended = TimePoint(seconds(1'795'262'900)),
                        .end = GenerationEnd::kFailed,
                        .what = "rank 3 failed"},
                       {.number = Generation(5)}};
  return record;
}

TEST(StateCodec, AJobComesBackAsItWas) {
  ServiceState state{.service_id = "s", .jobs_begun = 7, .jobs = {{"a job", a_record()}}};
  const JournalImage image = image_of(state);
  const auto decoded = decode_state(image);
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(decoded->service_id, "s");
  EXPECT_EQ(decoded->jobs_begun, 7u);
  const JobRecord& record = decoded->jobs.at("a job");
  EXPECT_EQ(record.former_instance, "r-9");
  EXPECT_EQ(record.state.spec.join_timeout, seconds(9));
  EXPECT_EQ(record.state.spec.on_join, OnJoin::kCheckpoint);
  EXPECT_EQ(record.state.spec.node_failures, 2);
  EXPECT_EQ(record.state.missing, std::vector<std::string>{"gone"});
  EXPECT_EQ(record.state.node_failures.at("broken"), 4);
  EXPECT_THAT(record.state.restart_ages,
              testing::ElementsAre(std::chrono::seconds(40), std::chrono::milliseconds(1500)));
  EXPECT_TRUE(record.state.failed);
  EXPECT_EQ(record.state.ends.at(0).age, seconds(3));
  EXPECT_EQ(record.state.ending, stopped_verdict(143, "why"));
  EXPECT_EQ(record.state.books, a_record().state.books);
  EXPECT_EQ(record.state.generations, a_record().state.generations);
  EXPECT_EQ(record.state.places.at(0).node.node_rank, 1);
  EXPECT_EQ(record.state.places.at(0).assignment, a_record().state.places[0].assignment);
  EXPECT_EQ(image_of(*decoded), image) << "and is written again as it was read";
}

TEST(StateCodec, ReadsRecordsOfAnEarlierVersion) {
  JobRecord record = a_record();
  record.state.books.reset();
  record.state.generations.clear();
  std::string text = to_entry(JobChanged{record}).value;
  for (const std::string field :
       {R"("restart_ages_ms":[40000,1500],)", R"("missing":["gone"],)",
        R"("node_failures":{"broken":4},)", R"(,"on_join":"checkpoint")", R"(,"node_failures":2)",
        R"("lease_ms":5000,)", R"("cause":"stopped",)"}) {
    ASSERT_THAT(text, HasSubstr(field)) << field << " in " << text;
    text.erase(text.find(field), field.size());
  }
  const auto older = decode_state({{"job/a job", text}});
  ASSERT_TRUE(older) << older.error().message();
  const JobState& state = older->jobs.at("a job").state;
  EXPECT_TRUE(state.missing.empty() && state.node_failures.empty() && state.generations.empty());
  EXPECT_EQ(state.spec.on_join, OnJoin::kNow);
  EXPECT_EQ(state.spec.node_failures, 3);
  EXPECT_EQ(state.places.at(0).assignment.lease, kDefaultLease);
  EXPECT_EQ(state.ending, stopped_verdict(143, "why"));
}

TEST(StateCodec, KeepsTheHowManythAJobWasToEndAndReadsRecordsWithoutIt) {
  JobRecord record = a_record();
  record.end_number = 42;
  JournalEntry entry = to_entry(JobChanged{record});
  EXPECT_EQ(decode_state({{entry.key, entry.value}})->jobs.at("a job").end_number, 42u);
  const std::string field = R"("end_number":42,)";
  entry.value.erase(entry.value.find(field), field.size());
  const auto older = decode_state({{entry.key, entry.value}});
  ASSERT_TRUE(older) << older.error().message();
  EXPECT_EQ(older->jobs.at("a job").end_number, 0u);
}

TEST(StateCodec, KeepsWhoseJobItIsAndReadsRecordsWithoutIt) {
  JobRecord record = a_record();
  JournalEntry entry = to_entry(JobChanged{record});
  EXPECT_FALSE(decode_state({{entry.key, entry.value}})->jobs.at("a job").owner);
  record.owner = UserId(4'000'000'000);
  entry = to_entry(JobChanged{record});
  EXPECT_EQ(decode_state({{entry.key, entry.value}})->jobs.at("a job").owner, record.owner);
}

TEST(StateCodec, NoValueLooksLikeTheBeginningOfAFrame) {
  for (const auto& [key, value] : image_of({.service_id = "s", .jobs = {{"a job", a_record()}}})) {
    EXPECT_THAT((key + value), Not(HasSubstr("\xff")));
  }
}

TEST(StateCodec, WhatNoServiceWroteIsRefusedWithItsKey) {
  const std::string good = to_entry(JobChanged{a_record()}).value;
  const auto refused = [&](const std::string& key, const std::string& what,
                           const std::string& instead) {
    std::string text = good;
    text.replace(text.find(what), what.size(), instead);
    const auto decoded = decode_state({{key, text}});
    ASSERT_FALSE(decoded) << text;
    EXPECT_EQ(decoded.error().kind, ErrorKind::kCorrupt);
    EXPECT_THAT(decoded.error().message(), HasSubstr(key));
  };
  ASSERT_TRUE(decode_state({{"job/a job", good}}));
  refused("job/another", "x", "x");
  refused("job/a job", "\"forming\"", "\"dreaming\"");
  refused("job/a job", "\"forming\"", "\"ended\"");
  refused("job/a job", "\"min_nodes\":1", "\"min_nodes\":0");
  refused("job/a job", "\"restarts_used\":2", "\"restarts_used\":-2");
  refused("job/a job", "{", "[");
}

TEST(StateCodec, ANewerVersionIsRefusedAsSuch) {
  const auto decoded = decode_state({{"service", R"({"version":2})"}});
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().kind, ErrorKind::kUnsupported);
}

// RandomService: a service with random agents of a few jobs. After every step, a service that
// starts from the journal must know the current state. It may lack only what agents repeat. Some
// writes end in a crash of the service.
class RandomService {
 public:
  explicit RandomService(std::uint64_t seed) : rng_(seed) {}

  void step() {
    now_ += std::chrono::milliseconds(rng_.below(1500));
    const std::string id = "agent" + std::to_string(rng_.below(6));
    Agent& agent = agents_[id];
    if (!agent.connection.value || rng_.chance(0.1)) return hello(id, agent);
    if (rng_.chance(0.1)) {
      take(table_.disconnected(std::exchange(agent.connection, {}), now_));
    } else if (rng_.chance(0.05)) {
      take(table_.receive({.connection = agent.connection}, Leave{kTerm, "told"}, now_));
      agent = {};
    } else if (rng_.chance(0.6)) {
      obey(agent);
      take(table_.receive({.connection = agent.connection}, agent.status, now_));
    } else {
      take(table_.tick(now_));
    }
  }

  // Expects that a service that was started now would know the current state.
  void expect_kept(std::uint64_t seed) const {
    const auto reading = read_journal(journal_);
    ASSERT_TRUE(reading) << seed;
    const auto kept = decode_state(reading->image);
    ASSERT_TRUE(kept) << seed << ": " << kept.error().message();
    for (const auto& [id, record] : kept->jobs) {
      const Membership* job = table_.find(id);
      ASSERT_TRUE(job) << seed;
      const JobState now = job->state(now_);
      const JobState& then = record.state;
      EXPECT_EQ(then.phase, now.phase) << seed;
      EXPECT_EQ(then.generation, now.generation) << seed;
      EXPECT_EQ(then.restarts_used, now.restarts_used) << seed;
      EXPECT_EQ(then.failed, now.failed) << seed;
      // A service that starts while this one has not yet judged a recalled generation finds the
      // reason itself.
      if (job->phase() == now.phase) {
        EXPECT_EQ(then.reason, now.reason) << seed;
      }
      EXPECT_EQ(then.ending.has_value(), now.ending.has_value()) << seed;
      EXPECT_EQ(then.verdict.has_value(), now.verdict.has_value()) << seed;
      // Nodes that come back one by one while a job is recalled are written when the recall
      // ends.
      if (job->landmark().places == 0) continue;
      // A node that is gone may be kept longer than needed: the service waits one lease for it.
      EXPECT_TRUE(job->phase() == JobPhase::kForming || then.places.size() == now.places.size())
          << seed;
      for (const Place& place : now.places) {
        EXPECT_TRUE(std::any_of(then.places.begin(), then.places.end(), [&](const Place& other) {
          return other.node.agent_id == place.node.agent_id && other.assignment == place.assignment;
        })) << seed;
      }
    }
  }

  // Kills the service during a write. The disk has all that was acknowledged, and a part of the
  // rest.
  void crash() {
    const std::size_t torn = acknowledged_ + rng_.below(journal_.size() - acknowledged_ + 1);
    const auto reading = read_journal(std::string_view(journal_).substr(0, torn));
    ASSERT_TRUE(reading);
    ASSERT_GE(reading->whole_bytes, acknowledged_);
    journal_.resize(reading->whole_bytes);
    const auto kept = decode_state(reading->image);
    ASSERT_TRUE(kept) << kept.error().message();
    table_ = JobTable(options(), *kept, now_);
    for (auto& [id, agent] : agents_) agent.connection = {};
  }

  int generations() const { return generations_; }

 private:
  static constexpr int kTerm = 15;
  struct Agent {
    AgentConnectionId connection;  // 0: none
    std::string instance;
    AgentStatus status;
    std::optional<Assignment> assignment;
    std::optional<Directive> directive;
  };
  static ServiceOptions options() { return {.service_id = "random"}; }

  void hello(const std::string& id, Agent& agent) {
    if (agent.connection.value) take(table_.disconnected(agent.connection, now_));
    agent.connection = AgentConnectionId(next_connection_++);
    Hello hello = testing_support::hello_of("job" + std::to_string(id.back() % 2), id, {1, 3});
    hello.instance = agent.instance;
    hello.job.max_restarts = 4;
    hello.job.last_call = Duration(0);
    hello.status = agent.status;
    hello.assignment = agent.assignment;
    take(table_.receive({.connection = agent.connection}, hello, now_));
  }

  void obey(Agent& agent) {
    if (!agent.directive) return;
    if (const auto* assignment = std::get_if<Assignment>(&*agent.directive)) {
      if (assignment->generation > agent.status.generation) {
        agent.assignment = *assignment;
        agent.status = {.phase = AgentPhase::kRunning, .generation = assignment->generation};
      } else if (rng_.chance(0.3)) {
        WorkerEnd end{.kind = EndKind::kExited, .code = 3};
        end.rank = assignment->first_rank;
        agent.status.phase = AgentPhase::kStopping;
        agent.status.ends = {end};
      } else if (rng_.chance(0.2)) {
        agent.status.phase = AgentPhase::kFinished;
      }
    } else if (std::holds_alternative<Stop>(*agent.directive)) {
      agent.status.phase = AgentPhase::kIdle;
    } else if (std::holds_alternative<End>(*agent.directive)) {
      agent.instance.clear();
      agent.status = {};
      agent.assignment.reset();
    }
  }

  void take(ServiceOutput out) {
    std::vector<JournalEntry> entries;
    for (const ServiceOutput::Change& change : out.changes) {
      entries.push_back(to_entry(change.what));
      const auto* changed = std::get_if<JobChanged>(&change.what);
      generations_ += changed && changed->record.state.phase == JobPhase::kRunning ? 1 : 0;
    }
    if (!entries.empty()) journal_ += journal_frame(entries);
    // The service was killed before the write ended, so no message leaves.
    if (!entries.empty() && rng_.chance(0.2)) return crash();
    acknowledged_ = journal_.size();
    for (ServiceOutput::Send& send : out.sends) {
      for (auto& [id, agent] : agents_) {
        if (agent.connection != send.connection) continue;
        if (const auto* welcome = std::get_if<Welcome>(&send.message)) {
          agent.instance = welcome->instance;
        } else if (std::holds_alternative<Refused>(send.message)) {
          agent = {};
        } else if (const auto directive = directive_of(send.message)) {
          agent.directive = *directive;
        }
      }
    }
  }

  Rng rng_;
  TimePoint now_ = TimePoint(seconds(1000));
  JobTable table_{options()};
  std::map<std::string, Agent> agents_;
  std::uint64_t next_connection_ = 1;
  std::string journal_ = journal_snapshot({});
  std::size_t acknowledged_ = journal_.size();
  int generations_ = 0;
};

TEST(StateCodec, WhatIsKeptOfRandomJobsIsWhatThereIs) {
  int generations = 0;
  constexpr int kJobs = testing_support::rounds(60);
  for (std::uint64_t seed = 0; seed < kJobs; ++seed) {
    RandomService service(seed);
    for (int i = 0; i < 200; ++i) {
      service.step();
      service.expect_kept(seed);
      if (testing::Test::HasFailure()) FAIL() << "seed " << seed << " step " << i;
    }
    generations += service.generations();
  }
  EXPECT_GT(generations, testing_support::rounds(500)) << "jobs that do nothing prove nothing";
}

}  // namespace
}  // namespace ddprun
