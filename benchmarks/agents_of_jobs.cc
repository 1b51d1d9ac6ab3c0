// Plays the agents of some jobs, with the link that real agents have. leader_change.py and
// page_cost.py run it.
//
//   agents_of_jobs HOST:PORT,HOST:PORT,... JOBS NODES [RANKS]
//
// While a person watches, each agent reports RANKS ranks, which take 10 steps a second.
// It takes precedence over other programs if it may. It reads commands from stdin: "fail J" reports
// a killed worker of job J. It ends with stdin.
// Each line that it prints ends with the time in ns on CLOCK_BOOTTIME:
//
//   served A T    agent A was welcomed on a new connection, and told what to do
//   lost A T      agent A has given the service up, and would end its workers
//   failed J T    the failure of job J was reported
//   formed J T    all agents of job J have the next generation's assignment
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/descriptor_limit.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "benchmarks/give_up.h"
#include "rendezvous/client/service_link.h"

namespace ddprun::benchmarks {
namespace {

void print(const char* what, std::size_t who) {
  std::printf("%s %zu %lld\n", what, who,
              static_cast<long long>(BootClock::now().time_since_epoch().count()));
  std::fflush(stdout);
}

// Size: what is played.
struct Size {
  std::size_t jobs = 1;
  int nodes = 1;  // of a job
  int ranks = 0;  // of a node
};

// Agent: one agent. Its workers start and end at once.
class Agent {
 public:
  Agent(boost::asio::io_context& io, const std::vector<HostPort>& services, std::size_t number,
        std::size_t job, Size size, std::function<void(Generation)> assigned)
      : number_(number), job_(job), size_(size), assigned_(std::move(assigned)) {
    RemoteLinkOptions options;
    options.address = services.front();
    options.others.assign(services.begin() + 1, services.end());
    options.link.service = "the services";
    ServiceLinkEvents events;
    events.hello = [this](const std::string&) {
      is_served_ = false;
      return hello();
    };
    events.directive = [this](const Directive& directive) { take(directive); };
    events.answer = [](const Answer&) {};
    events.forward_signal = [](const ForwardSignal&) {};
    events.output_directive = [](const OutputDirective&) {};
    events.lost = [this](const ServiceLost&) { print("lost", number_); };
    events.refused = [](const ServiceRefused& refused) { give_up(refused.reason); };
    if (size.ranks > 0) events.ranks = [this] { return ranks(); };
    link_ = make_remote_link(io, std::move(options), std::move(events));
    link_->start();
  }

  void fail() {
    WorkerEnd end{.kind = EndKind::kSignaled, .code = 9};
    end.rank = Rank(0);
    end.host = "node";
    end.pid = 4711;
    status_.phase = AgentPhase::kStopping;
    status_.ends = {end};
    link_->send(status_);
  }

 private:
  Hello hello() const {
    Hello hello;
    hello.version = "0.0.0";
    hello.job.id = concat("job", job_, "-", getpid());
    hello.job.nodes = {size_.nodes, size_.nodes};
    hello.job.max_restarts = 1000;
    hello.node.agent_id = "agent" + std::to_string(number_);
    hello.node.host = hello.node.agent_id;
    hello.node.address = "10.0.0.1";
    hello.node.slots = std::max(size_.ranks, 1);
    hello.status = status_;
    hello.assignment = assignment_;
    return hello;
  }

  RankReport ranks() const {
    RankReport report;
    if (!assignment_) return report;
    report.generation = assignment_->generation;
    const auto step = BootClock::now().time_since_epoch() / std::chrono::milliseconds(100);
    for (int i = 0; i < size_.ranks; ++i) {
      report.rows.push_back({.rank = Rank(assignment_->first_rank.value + i),
                             .local_rank = LocalRank(i),
                             .pid = 4711 + i,
                             .state = "running",
                             .step = step,
                             .total_steps = 1'000'000'000,
                             .steps_per_second = 10,
                             .collective = "all_reduce " + std::to_string(step),
                             .waiting_s = 0.01,
                             .cpu_percent = 99,
                             .memory_bytes = 1 << 30});
    }
    return report;
  }

  void take(const Directive& directive) {
    if (std::holds_alternative<Wait>(directive)) return;  // a standby's answer comes as one, too
    if (!std::exchange(is_served_, true)) print("served", number_);
    if (const auto* assignment = std::get_if<Assignment>(&directive)) {
      const bool is_new = !assignment_ || assignment_->generation != assignment->generation;
      assignment_ = *assignment;
      if (!is_new) return;
      tell(AgentPhase::kRunning, assignment->generation);
      assigned_(assignment->generation);
    } else if (const auto* stop = std::get_if<Stop>(&directive)) {
      tell(AgentPhase::kIdle, stop->generation);
    }
  }

  void tell(AgentPhase phase, Generation generation) {
    status_ = {.phase = phase, .generation = generation};
    if (phase == AgentPhase::kIdle) status_.store_port = 29500;
    link_->send(status_);
  }

  std::size_t number_;
  std::size_t job_;
  Size size_;
  std::function<void(Generation)> assigned_;
  AgentStatus status_{.store_port = 29500};
  std::optional<Assignment> assignment_;
  bool is_served_ = false;  // on this connection
  std::shared_ptr<ServiceLink> link_;
};

struct Job {
  std::vector<std::unique_ptr<Agent>> agents;
  Generation generation{-1};
  std::size_t assigned = 0;  // agents with an assignment of that generation
};

class Jobs {
 public:
  Jobs(boost::asio::io_context& io, const std::vector<HostPort>& services, Size size)
      : jobs_(size.jobs), stdin_(io, ::dup(STDIN_FILENO)), io_(io) {
    std::size_t number = 0;
    for (std::size_t job = 0; job < size.jobs; ++job) {
      for (int node = 0; node < size.nodes; ++node) {
        jobs_[job].agents.push_back(std::make_unique<Agent>(
            io, services, number++, job, size,
            [this, job](Generation generation) { assigned(job, generation); }));
      }
    }
    read();
  }

 private:
  void assigned(std::size_t number, Generation generation) {
    Job& job = jobs_[number];
    if (std::exchange(job.generation, generation) != generation) job.assigned = 0;
    if (++job.assigned == job.agents.size()) print("formed", number);
  }

  void read() {
    boost::asio::async_read_until(stdin_, input_, '\n',
                                  [this](boost::system::error_code error, std::size_t) {
                                    if (error) return io_.stop();
                                    std::istream lines(&input_);
                                    std::string command, job;
                                    lines >> command >> job;
                                    lines.ignore();
                                    const auto number = parse_number<std::size_t>(job);
                                    if (command != "fail" || !number || *number >= jobs_.size())
                                      give_up("expected: fail J");
                                    print("failed", *number);
                                    jobs_[*number].agents.front()->fail();
                                    read();
                                  });
  }

  std::vector<Job> jobs_;
  boost::asio::posix::stream_descriptor stdin_;
  boost::asio::streambuf input_;
  boost::asio::io_context& io_;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 3 && arguments.size() != 4)
    give_up("usage: agents_of_jobs HOST:PORT,... JOBS NODES [RANKS]");
  std::vector<HostPort> services;
  for (const std::string_view one : split(arguments[0], ','))
    services.push_back(need(parse_host_port(one)));
  raise_descriptor_limit();
  // Real agents run on other hosts. Without the right to do this, other programs delay the agents.
  setpriority(PRIO_PROCESS, 0, -10);
  boost::asio::io_context io{1};
  Size size{.jobs = parse_number<std::size_t>(arguments[1]).value_or(1),
            .nodes = parse_number<int>(arguments[2]).value_or(1)};
  if (arguments.size() == 4) size.ranks = parse_number<int>(arguments[3]).value_or(0);
  Jobs jobs(io, services, size);
  io.run();
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) {
  return ddprun::benchmarks::run(std::vector<std::string>(argv + 1, argv + argc));
}
