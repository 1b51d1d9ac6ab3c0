// MembershipFixture: the base of Membership's tests: one job and its agents, which the test
// drives by hand. One test at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/core/membership.h"
#include "tests/support/hello_of.h"

namespace ddprun::testing_support {

// received_ has the last directive that each agent was sent.
class MembershipFixture : public testing::Test {
 protected:
  void start(NodeRange nodes, int max_restarts = 0) {
    JobSpec spec;
    spec.id = "job";
    spec.nodes = nodes;
    spec.max_restarts = max_restarts;
    spec.join_timeout = std::chrono::seconds(600);
    spec.last_call = std::chrono::seconds(30);
    start(spec);
  }
  void start(const JobSpec& spec) { job_.emplace(spec, std::chrono::seconds(5), now_); }

  Hello hello(const std::string& host, int slots = 1) {
    Hello hello = hello_of(job_->spec().id, "id-" + host);
    hello.job = job_->spec();
    hello.node.host = host;
    hello.node.slots = slots;
    hello.status.store_port = 4000;
    return hello;
  }
  // Returns the hello of a node that has already run a generation.
  Hello hello_again(const std::string& host, AgentPhase phase, int generation,
                    std::vector<WorkerEnd> ends = {}) {
    Hello again = hello(host);
    again.status.phase = phase;
    again.status.generation = Generation(generation);
    again.status.ends = std::move(ends);
    return again;
  }
  void join(const std::string& host, int slots = 1) {
    take(job_->joined(hello(host, slots), false, now_));
  }

  void say(const std::string& host, AgentPhase phase, int generation,
           std::vector<WorkerEnd> ends = {}) {
    AgentStatus status{.phase = phase,
                       .generation = Generation(generation),
                       .ends = std::move(ends),
                       .store_port = 4001};
    take(job_->status("id-" + host, status, now_));
  }

  void pass(Duration time) {
    // Every host in beating_ sends heartbeats. Only the others lose their lease.
    const TimePoint end = now_ + time;
    while (now_ < end) {
      now_ += std::min<Duration>(std::chrono::seconds(1), end - now_);
      for (const std::string& host : beating_) job_->heard("id-" + host, now_);
      if (job_->deadline() && *job_->deadline() <= now_) take(job_->tick(now_));
    }
  }

  void take(MembershipOutput out) {
    EXPECT_TRUE(job_->is_consistent());
    for (ToAgent& one : out.directives) received_[one.agent_id] = std::move(one.message);
    for (std::string& line : out.log) log_ += line + "\n";
    counted_.generations_formed += out.generations_formed;
    counted_.restarts += out.restarts;
    counted_.lease_losses += out.lease_losses;
  }

  template <class T>
  const T* received(const std::string& host) {
    const auto found = received_.find("id-" + host);
    return found == received_.end() ? nullptr : std::get_if<T>(&found->second);
  }

  // Lets time pass in which every member is heard and does nothing.
  void live(Duration time) {
    now_ += time;
    for (const auto& [id, member] : job_->members()) job_->heard(id, now_);
  }

  // Lets one worker on each of these nodes run for a while. Then the worker of `guilty` fails
  // first, and the others are its victims.
  void fail(const std::vector<std::string>& hosts, const std::string& guilty,
            Duration lived = RestartBudget::kQuick) {
    const int generation = static_cast<int>(job_->generation().value);
    for (const std::string& host : hosts) say(host, AgentPhase::kRunning, generation);
    live(lived);
    WorkerEnd end = killed(0, std::chrono::milliseconds(100));
    end.host = guilty;
    say(guilty, AgentPhase::kIdle, generation, {end});
    for (const std::string& host : hosts) {
      if (host == guilty) continue;
      WorkerEnd victim = killed(1);
      victim.host = host;
      say(host, AgentPhase::kIdle, generation, {victim});
    }
  }

  static WorkerEnd killed(int rank, Duration age = Duration(0)) {
    WorkerEnd end{.kind = EndKind::kSignaled, .code = SIGKILL};
    end.rank = Rank(rank);
    end.host = "somewhere";
    end.age = age;
    return end;
  }

  TimePoint now_ = TimePoint(std::chrono::seconds(1000));
  std::optional<Membership> job_;
  std::vector<std::string> beating_;
  std::map<std::string, ServiceMessage> received_;
  std::string log_;
  MembershipOutput counted_;  // the sums over all outputs
};

}  // namespace ddprun::testing_support
