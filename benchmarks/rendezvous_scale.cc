// Measures what a large job costs the rendezvous service: time to join, time to report a
// failure, memory, idle cost.
//
//   rendezvous_scale build/release/bin/ddp-rendezvous [join | failure | idle]
//       [OPTIONS OF THE SERVICE...]
//
// Agents are connections of this process. They send what agents send, through the service's own
// codec. The service is the real program. Each figure has its floor: a bare server that receives
// the same bytes and answers as many, with plain recv() and send(). Service and floor alternate.
//
//   join      10,000 agents connect, and send hello as soon as they are connected. Measures the
//             time until the last one has its assignment. At most 1,000 wait for their welcome
//             at a time. Memory: the growth of the service until all agents run, divided by
//             their number.
//   failure   one of 1,000 agents reports that its worker was killed. Measures the time until
//             the last of the others is told to stop, and then the time until all have the next
//             assignment. Their workers end at once.
//   idle      1,000 agents that send only heartbeats. Measures the time of one core that the
//             service uses.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <queue>
#include <string>
#include <variant>
#include <vector>

#include "base/descriptor_limit.h"
#include "benchmarks/give_up.h"
#include "benchmarks/many_clients.h"
#include "benchmarks/statistics.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/protocol/control_codec.h"

namespace ddprun::benchmarks {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kJoining = 10000;
constexpr std::size_t kOnTheirWay = 1000;
constexpr int kJoins = 5;
constexpr std::size_t kRunning = 1000;
constexpr int kFailures = 40;
constexpr Duration kIdle = 15s;
constexpr Duration kPatience = 20s;

std::vector<std::string> service_command;

// Returns the hello of an agent as a frame. It has the same length for all agents.
std::string hello_of(std::size_t agent, std::size_t agents) {
  char name[32];
  std::snprintf(name, sizeof name, "node%05zu", agent);
  Hello hello{
      .version = "0.0.0", .instance = "", .job = {}, .node = {}, .status = {}, .assignment = {}};
  hello.job.id = "large";
  hello.job.nodes = {static_cast<int>(agents), static_cast<int>(agents)};
  hello.job.max_restarts = 1'000'000;
  hello.node.agent_id = std::string("0123456789abcdef-") + name;
  hello.node.host = name;
  hello.node.slots = 8;
  hello.node.address = "10." + std::to_string(agent / 65536) + "." +
                       std::to_string(agent / 256 % 256) + "." + std::to_string(agent % 256);
  hello.status.store_port = 29500;
  return need(encode(AgentMessage(hello)));
}

std::string status_frame(AgentPhase phase, Generation generation,
                         std::vector<WorkerEnd> ends = {}) {
  AgentStatus status;
  status.phase = phase;
  status.generation = generation;
  status.ends = std::move(ends);
  if (phase == AgentPhase::kIdle) status.store_port = 29500;
  return need(encode(AgentMessage(status)));
}

// Agents: the agents of one job.
class Agents {
 public:
  Agents(std::uint16_t port, std::size_t count)
      : clients_(port, [this](std::size_t agent, std::string_view bytes) { take(agent, bytes); }),
        frames_(count) {
    for (std::size_t agent = 0; agent < count; ++agent) hellos_.push_back(hello_of(agent, count));
  }

  // Connects all agents. Returns when all have their assignment.
  void join() {
    for (std::size_t agent = 0; agent < hellos_.size(); ++agent) {
      clients_.connect();
      clients_.send(agent, hellos_[agent]);
      serve_until("a welcome", [&] { return clients_.size() - welcomed_ < kOnTheirWay; });
    }
    serve_until("an assignment", [&] { return assigned_ == hellos_.size(); });
  }
  // Reports that the workers of all agents have started.
  void say_running() {
    assigned_ = stopped_ = 0;
    say_all(status_frame(AgentPhase::kRunning, generation_));
    settle();
  }
  // Waits until the service has answered the last message of every agent.
  void settle() {
    acknowledged_ = 0;
    say_all(need(encode(AgentMessage(Heartbeat{1}))));
    serve_until("an answer", [&] { return acknowledged_ == hellos_.size(); });
  }
  // Reports a killed worker of `agent`. Returns when all other agents are told to stop.
  void fail(std::size_t agent) {
    WorkerEnd end{.kind = EndKind::kSignaled, .code = 9};
    end.rank = Rank(static_cast<int>(agent) * 8);
    end.node_rank = NodeRank(static_cast<int>(agent));
    end.host = "node";
    end.pid = 4711;
    clients_.send(agent, status_frame(AgentPhase::kStopping, generation_, {end}));
    serve_until("a stop", [&] { return stopped_ >= hellos_.size() - 1; });
  }
  // Reports that all workers have ended. Returns when all agents have the next assignment.
  void go_on() {
    say_all(status_frame(AgentPhase::kIdle, generation_));
    serve_until("an assignment", [&] { return assigned_ == hellos_.size(); });
  }
  // Sends only heartbeats, at the times that the service asks for. The first ones are spread
  // over an interval.
  void idle(Duration length) {
    const std::string heartbeat = need(encode(AgentMessage(Heartbeat{1})));
    const TimePoint begin = BootClock::now();
    for (std::size_t agent = 0; beats_.size() < hellos_.size(); ++agent) {
      beats_.push({begin + interval_ * static_cast<Duration::rep>(agent) /
                               static_cast<Duration::rep>(hellos_.size()),
                   agent});
    }
    is_idle_ = true;
    while (BootClock::now() < begin + length) {
      clients_.serve(1ms);
      const TimePoint now = BootClock::now();
      for (; !beats_.empty() && beats_.top().first <= now; beats_.pop()) {
        clients_.send(beats_.top().second, heartbeat);
      }
    }
  }

  std::size_t bytes_received() const { return clients_.bytes_received(); }
  const std::vector<std::string>& hellos() const { return hellos_; }
  std::size_t stop_bytes() const { return stop_bytes_; }
  Duration interval() const { return interval_; }

 private:
  void say_all(const std::string& frame) {
    for (std::size_t agent = 0; agent < hellos_.size(); ++agent) {
      clients_.send(agent, frame);
      if (agent % 64 == 63) clients_.serve(0ns);
    }
  }
  template <class Condition>
  void serve_until(const char* what, Condition&& condition) {
    const TimePoint deadline = BootClock::now() + kPatience;
    while (!condition()) {
      clients_.serve(100ms);
      if (BootClock::now() > deadline) {
        give_up(std::string("an agent waits too long for ") + what + ": " +
                std::to_string(assigned_) + " assigned, " + std::to_string(stopped_) +
                " stopped, " + std::to_string(acknowledged_) + " acknowledged");
      }
    }
  }
  void take(std::size_t agent, std::string_view bytes) {
    frames_[agent].append(bytes);
    while (const std::optional<std::string_view> frame = need(frames_[agent].next())) {
      const ServiceMessage message = need(decode<ServiceMessage>(*frame));
      if (const auto* welcome = std::get_if<Welcome>(&message)) {
        ++welcomed_;
        interval_ = welcome->heartbeat_interval;
      } else if (const auto* assignment = std::get_if<Assignment>(&message)) {
        ++assigned_;
        generation_ = assignment->generation;
      } else if (std::holds_alternative<Stop>(message)) {
        ++stopped_;
        stop_bytes_ = frame->size() + kControlHeaderBytes;
      } else if (const auto* ack = std::get_if<HeartbeatAck>(&message)) {
        ++acknowledged_;
        if (is_idle_)
          beats_.push({BootClock::now() + (ack->next > 0s ? ack->next : interval_), agent});
      } else if (!std::holds_alternative<Wait>(message)) {
        give_up("unexpected: " + std::string(*frame));
      }
    }
  }

  using Beat = std::pair<TimePoint, std::size_t>;  // when this agent sends a heartbeat

  ManyClients clients_;
  std::vector<FrameReader> frames_;
  std::priority_queue<Beat, std::vector<Beat>, std::greater<>> beats_;
  bool is_idle_ = false;
  std::vector<std::string> hellos_;
  Generation generation_{-1};
  Duration interval_ = 1s;
  std::size_t welcomed_ = 0;
  std::size_t assigned_ = 0;
  std::size_t stopped_ = 0;
  std::size_t acknowledged_ = 0;
  std::size_t stop_bytes_ = 0;
};

template <class Act>
double ms_of(Act&& act) {
  const TimePoint begin = BootClock::now();
  act();
  return ms_since(begin);
}

// BareJoin: as many connections to a bare server, each with one message and its answer.
class BareJoin {
 public:
  explicit BareJoin(std::size_t answer)
      : server_([answer](std::string_view) { return BareAnswer{.bytes = answer}; }),
        clients_(server_.port,
                 [this](std::size_t, std::string_view bytes) { came_ += bytes.size(); }),
        answer_(answer) {}
  void join(const std::vector<std::string>& hellos) {
    for (std::size_t client = 0; client < kJoining; ++client) {
      clients_.connect();
      clients_.send(client, hellos[client]);
      while (clients_.size() - came_ / answer_ >= kOnTheirWay) clients_.serve(100ms);
    }
    while (came_ < kJoining * answer_) clients_.serve(100ms);
  }

 private:
  BareServer server_;
  ManyClients clients_;
  std::size_t came_ = 0;
  std::size_t answer_;
};

void measure_join() {
  std::vector<double> ours, floor, bytes, cpu;
  for (int round = 0; round < kJoins; ++round) {
    const Server service(service_command);
    const std::uint64_t before = service.process.resident_bytes();
    auto agents = std::make_unique<Agents>(service.port, kJoining);
    ours.push_back(ms_of([&] { agents->join(); }));
    cpu.push_back(service.process.cpu_seconds() * 1000);
    const std::size_t answer = agents->bytes_received() / kJoining;
    agents->say_running();
    bytes.push_back(static_cast<double>(service.process.resident_bytes() - before) / kJoining);
    const std::vector<std::string> hellos = agents->hellos();
    agents.reset();  // frees the descriptors for the connections of the floor
    BareJoin bare(answer);
    floor.push_back(ms_of([&] { bare.join(hellos); }));
  }
  const double total = percentile(ours, 0.5), least = percentile(floor, 0.5);
  std::printf("%zu agents join: %.0f ms, floor %.0f ms, beyond it %.0f ms (worst %.0f ms)\n",
              kJoining, total, least, total - least, percentile(ours, 1) - least);
  std::printf("CPU time of the service for that: %.0f ms\n", percentile(cpu, 0.5));
  std::printf("memory of the service: %.1f KiB an agent (worst %.1f)\n",
              percentile(bytes, 0.5) / 1024, percentile(bytes, 1) / 1024);
}

void measure_failure() {
  std::vector<double> told, formed, floor;
  std::size_t answer = 0;
  for (int round = 0; round < kFailures; ++round) {
    // A new service each time, because a job pauses after its second failure within seconds.
    const Server service(service_command);
    Agents agents(service.port, kRunning);
    agents.join();
    agents.say_running();
    told.push_back(ms_of([&] { agents.fail(static_cast<std::size_t>(round) * 7); }));
    formed.push_back(ms_of([&] { agents.go_on(); }));
    answer = agents.stop_bytes();
  }

  const BareServer bare(
      [answer](std::string_view) { return BareAnswer{.bytes = answer, .to_all = true}; });
  std::size_t came = 0;
  ManyClients clients(bare.port,
                      [&](std::size_t, std::string_view bytes) { came += bytes.size(); });
  for (std::size_t client = 0; client < kRunning; ++client) clients.connect();
  for (int round = 0; round < kFailures; ++round) {
    came = 0;
    floor.push_back(ms_of([&] {
      clients.send(static_cast<std::size_t>(round) * 7, std::string(200, 'x'));
      while (came < kRunning * answer) clients.serve(100ms);
    }));
  }
  std::printf(
      "%zu agents, a failure -> the last one told: p50 %.1f ms, p90 %.1f ms; floor %.1f ms\n",
      kRunning, percentile(told, 0.5), percentile(told, 0.9), percentile(floor, 0.5));
  std::printf("%zu agents, all idle -> the next generation: p50 %.1f ms, p90 %.1f ms\n", kRunning,
              percentile(formed, 0.5), percentile(formed, 0.9));
}

void measure_idle() {
  const Server service(service_command);
  Agents agents(service.port, kRunning);
  agents.join();
  agents.say_running();
  agents.idle(2s);
  const double before = service.process.cpu_seconds();
  agents.idle(kIdle);
  const double ours = service.process.cpu_seconds() - before;

  const std::size_t ack = need(encode(ServiceMessage(HeartbeatAck{1, 1s}))).size();
  const std::string heartbeat = need(encode(AgentMessage(Heartbeat{1})));
  const BareServer bare([ack](std::string_view) { return BareAnswer{.bytes = ack}; });
  ManyClients clients(bare.port, [](std::size_t, std::string_view) {});
  for (std::size_t client = 0; client < kRunning; ++client) clients.connect();
  clients.serve(100ms);
  const double bare_before = bare.process.cpu_seconds();
  const TimePoint begin = BootClock::now();
  // Sends many at a time, as the service asks for them.
  constexpr std::size_t kTogether = kRunning / ServiceOptions::kBeatTimes;
  const Duration pace = agents.interval() / ServiceOptions::kBeatTimes;
  for (std::size_t sent = 0; BootClock::now() < begin + kIdle; sent += kTogether) {
    const auto times = static_cast<Duration::rep>(sent / kTogether);
    while (BootClock::now() < begin + pace * times) clients.serve(1ms);
    for (std::size_t i = 0; i < kTogether; ++i) clients.send((sent + i) % kRunning, heartbeat);
  }
  const double floor = bare.process.cpu_seconds() - bare_before;
  const double seconds = std::chrono::duration<double>(kIdle).count();
  std::printf("%zu idle agents, a heartbeat every %.1f s each: %.2f %% of a core; floor %.2f %%\n",
              kRunning, std::chrono::duration<double>(agents.interval()).count(),
              100 * ours / seconds, 100 * floor / seconds);
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) {
  using namespace ddprun::benchmarks;
  if (argc < 2)
    give_up("rendezvous_scale PATH_OF_DDP_RENDEZVOUS [join | failure | idle] [OPTIONS...]");
  ddprun::raise_descriptor_limit();
  service_command = {argv[1], "--listen", "127.0.0.1:0"};
  std::string wanted;
  int next = 2;
  if (next < argc && argv[next][0] != '-') wanted = argv[next++];
  for (; next < argc; ++next) service_command.emplace_back(argv[next]);
  if (wanted.empty() || wanted == "join") measure_join();
  if (wanted.empty() || wanted == "failure") measure_failure();
  if (wanted.empty() || wanted == "idle") measure_idle();
  return 0;
}
