#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <csignal>

#include "rendezvous/state_codec.h"

namespace ddprun::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr std::size_t kTraceLines = 200;
constexpr Duration kFaultTime = seconds(240);
constexpr const char* kJob = "job";
}  // namespace

struct ClusterSim::Worker {
  Generation generation;
  Rank rank;
  bool alive = false;
  bool stubborn = false;
};

struct ClusterSim::Connection {
  AgentConnectionId id = 0;
  std::size_t node = 0;
  std::uint64_t agent = 0;
  bool open = true;
  std::deque<AgentMessage> to_service;
  std::deque<ServiceMessage> to_agent;
  bool pumping_service = false;
  bool pumping_agent = false;
};

struct ClusterSim::Agent {
  Agent(std::uint64_t serial_number, std::size_t node_index, AgentLink the_link,
        Supervisor the_supervisor)
      : serial(serial_number),
        node(node_index),
        link(std::move(the_link)),
        supervisor(std::move(the_supervisor)) {}

  std::uint64_t serial;
  std::size_t node;
  NodeSpec spec;
  AgentLink link;
  Supervisor supervisor;
  std::vector<Worker> workers;
  std::shared_ptr<Connection> connection;
  std::optional<TimePoint> armed;
  bool exited = false;
};

struct ClusterSim::Node {
  std::string name;
  int slots = 1;
  bool cut = false;
  std::unique_ptr<Agent> agent;
  std::vector<std::unique_ptr<Agent>> graves;  // late events may still name them
};

ClusterSim::ClusterSim(std::uint64_t seed) : rng_(seed) {
  faults_until_ = now_ + kFaultTime;
  const int node_count = 1 + static_cast<int>(rng_.below(6));
  job_.id = kJob;
  job_.nodes.max = node_count;
  job_.nodes.min = rng_.chance(0.5)
                       ? node_count
                       : 1 + static_cast<int>(rng_.below(static_cast<std::uint64_t>(node_count)));
  job_.max_restarts = static_cast<int>(rng_.below(12));
  job_.join_timeout = seconds(120);
  job_.last_call = seconds(rng_.below(20));
  crash_rate_ = rng_.chance(0.3) ? 0.0 : 0.3;
  keeps_state_ = rng_.chance(0.5);
  begin_service();
  const int extra = rng_.chance(0.3) ? 1 : 0;
  for (int i = 0; i < node_count + extra; ++i) {
    Node node;
    node.name = "node" + std::to_string(i);
    node.slots = 1 + static_cast<int>(rng_.below(3));
    nodes_.push_back(std::move(node));
  }
}

ClusterSim::~ClusterSim() = default;

SimResult ClusterSim::run() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    at(between(0, 3000), [this, i] { start_agent(i); });
  }
  at(between(1000, 5000), [this] { inject_faults(); });
  // A bound on liveness: after the last fault a join timeout, a last call, and a few runs.
  const TimePoint must_end = faults_until_ + seconds(900);
  while (!events_.empty() && result_.violation.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    if (now_ > must_end) {
      violate("the job does not end although all faults are healed");
      break;
    }
    event.run();
    if (has_ended()) dismiss_strangers();
    const bool all_gone = std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
      return !node.agent || node.agent->exited;
    });
    if (all_gone && job_is_over()) break;
  }
  for (const std::string& line : trace_) result_.trace += line + "\n";
  const Membership* job = service_->find(kJob);
  result_.generations = job ? static_cast<int>(job->generation().value) + 1 : 0;
  return result_;
}

// --- plumbing

void ClusterSim::at(Duration delay, std::function<void()> what) {
  events_.push({now_ + delay, next_order_++, std::move(what)});
}

Duration ClusterSim::between(int min_ms, int max_ms) {
  return milliseconds(min_ms) + std::chrono::microseconds(rng_.below(
                                    static_cast<std::uint64_t>(max_ms - min_ms) * 1000 + 1));
}

void ClusterSim::note(const std::string& line) {
  const auto ms = std::chrono::duration_cast<milliseconds>(now_.time_since_epoch()).count();
  trace_.push_back(std::to_string(ms) + " ms  " + line);
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

void ClusterSim::violate(const std::string& what) {
  if (!result_.violation.empty()) return;
  note("VIOLATION: " + what);
  result_.violation = what;
}

ClusterSim::Agent* ClusterSim::find(std::uint64_t serial) {
  for (Node& node : nodes_) {
    if (node.agent && node.agent->serial == serial) return node.agent.get();
  }
  return nullptr;
}

// --- the service

void ClusterSim::begin_service() {
  const bool is_first = result_.faults.service_restarts == 0;
  ServiceOptions options{.service_id = "sim" + std::to_string(result_.faults.service_restarts)};
  ServiceState past;
  if (keeps_state_) {
    const Result<JournalReading> reading = read_journal(journal_);
    const Result<ServiceState> kept =
        reading ? decode_state(reading->image) : Result<ServiceState>(reading.error());
    if (!kept) return violate(kept.error().message());
    past = *kept;
    journal_.resize(reading->whole_bytes);
    if (rng_.chance(0.2)) journal_ = journal_snapshot(reading->image);
  } else if (!is_first) {
    options.strangers_until = now_ + options.agent_patience;
  }
  service_ = std::make_unique<JobTable>(options, past, now_);
  if (keeps_state_) service_->note_safe(0);
  service_is_up_ = true;
  service_armed_.reset();
  if (disk_is_full_) service_->close_admission("the disk is full");
  arm_service();
  if (is_first) restarts_before_ = 0;
  if (is_first || keeps_state_) return;
  // It may give a number again that its earlier life gave to a node which is cut off now.
  ranks_.clear();
  restarts_.clear();
  restarts_before_.reset();
}

void ClusterSim::restart_service() {
  if (!service_is_up_ || job_is_over()) return;
  note("the service is killed");
  ++result_.faults.service_restarts;
  service_is_up_ = false;
  const std::size_t written = rng_.below(frame_.size() + 1);
  if (written > 0 && written < frame_.size()) ++result_.faults.torn_writes;
  journal_ += frame_.substr(0, written);
  frame_.clear();
  unwritten_.clear();
  held_.clear();
  last_change_ = safe_ = 0;
  for (const auto& [id, connection] : std::map(connections_)) close(connection, "service killed");
  at(between(100, rng_.chance(0.5) ? 2000 : 20000), [this] {
    note("the service is back");
    begin_service();
  });
}

void ClusterSim::write_journal() {
  if (!frame_.empty() || unwritten_.empty()) return;
  frame_ = journal_frame(unwritten_);
  frame_number_ = last_change_;
  unwritten_.clear();
  const int life = result_.faults.service_restarts;
  const Duration duration = between(0, rng_.chance(0.1) ? 1500 : 5);
  at(duration, [this, life] { end_write(life); });
  // The moment at which a kill can do most harm.
  if (now_ < faults_until_ && rng_.chance(0.05)) {
    at(between(0, 5), [this, life] {
      if (life == result_.faults.service_restarts) restart_service();
    });
  }
}

void ClusterSim::end_write(int life) {
  if (life != result_.faults.service_restarts) return;
  if (disk_is_full_) {
    at(milliseconds(500), [this, life] { end_write(life); });
    return;
  }
  journal_ += std::exchange(frame_, "");
  safe_ = frame_number_;
  service_->note_safe(safe_);
  for (ServiceOutput::Send& send : std::exchange(held_, {})) {
    if (send.after > safe_) {
      held_.push_back(std::move(send));
    } else {
      deliver(send);
    }
  }
  write_journal();
}

void ClusterSim::fill_disk() {
  if (!keeps_state_ || !service_is_up_ || disk_is_full_) return;
  note("the disk of the service is full");
  ++result_.faults.full_disks;
  disk_is_full_ = true;
  service_->close_admission("the disk is full");
  ServiceOutput out = service_->take_back(safe_, "the disk is full");
  std::erase_if(held_, [&](const auto& send) {
    return std::count(out.closes.begin(), out.closes.end(), send.connection) > 0;
  });
  take(std::move(out));
  at(between(100, 10000), [this] {
    note("the disk of the service has room");
    disk_is_full_ = false;
    service_->close_admission(std::nullopt);
  });
}

// --- agents

bool ClusterSim::has_ended() const {
  const Membership* job = service_->find(kJob);
  return over_ || (job && job->phase() == Membership::Phase::kEnded);
}

// What is not safe may yet never have been.
bool ClusterSim::job_is_over() {
  over_ = has_ended() && (over_ || !keeps_state_ || safe_ == last_change_);
  return over_;
}

// A new agent would now begin a new job of the same id; the simulation is of one.
void ClusterSim::dismiss_strangers() {
  for (Node& node : nodes_) {
    if (node.agent && node.agent->link.instance().empty()) node.agent->exited = true;
  }
}

void ClusterSim::start_agent(std::size_t index) {
  Node& node = nodes_[index];
  if (has_ended() || (node.agent && !node.agent->exited)) return;
  if (node.agent) node.graves.push_back(std::move(node.agent));
  AgentLinkOptions link_options;
  link_options.service = "service";
  link_options.join_timeout = job_.join_timeout;
  SupervisorOptions options{
      .host = node.name, .slots = node.slots, .grace = seconds(10), .kill_timeout = seconds(30)};
  const std::uint64_t serial = next_serial_++;
  node.agent = std::make_unique<Agent>(
      serial, index, AgentLink(link_options, Rng(rng_.next()), now_), Supervisor(options));
  Agent& agent = *node.agent;
  agent.spec = {.agent_id = "agent" + std::to_string(serial),
                .host = node.name,
                .slots = node.slots,
                .node_rank = {},
                .address = "10.0.0." + std::to_string(index)};
  note(node.name + ": " + agent.spec.agent_id + " starts");
  take(agent, agent.link.start(now_));
  arm(agent);
}

void ClusterSim::kill_agent(std::size_t index) {
  Node& node = nodes_[index];
  if (!node.agent || node.agent->exited) return;
  Agent& agent = *node.agent;
  note(node.name + ": " + agent.spec.agent_id + " is killed");
  ++result_.faults.agent_kills;
  agent.exited = true;
  const std::uint64_t serial = agent.serial;
  // The guardian ends what is left, a moment later.
  at(between(0, 50), [this, serial, index] {
    for (Node& other : nodes_) {
      for (auto& grave : other.graves) {
        if (grave->serial == serial) grave->workers.clear();
      }
    }
    if (nodes_[index].agent && nodes_[index].agent->serial == serial)
      nodes_[index].agent->workers.clear();
  });
  if (agent.connection) close(agent.connection, "agent killed");
  if (rng_.chance(0.7)) at(between(500, 20000), [this, index] { start_agent(index); });
}

void ClusterSim::arm(Agent& agent) {
  if (agent.exited) return;
  std::optional<TimePoint> due = agent.link.deadline();
  const std::optional<TimePoint> other = agent.supervisor.deadline();
  if (other && (!due || *other < *due)) due = other;
  if (!due || (agent.armed && *agent.armed <= *due && *agent.armed >= now_)) return;
  agent.armed = std::max(*due, now_);
  const std::uint64_t serial = agent.serial;
  at(*agent.armed - now_, [this, serial] {
    Agent* armed = find(serial);
    if (!armed || armed->exited) return;
    armed->armed.reset();
    if (armed->link.deadline() && *armed->link.deadline() <= now_)
      take(*armed, armed->link.tick(now_));
    if (armed->supervisor.deadline() && *armed->supervisor.deadline() <= now_) {
      take(*armed, armed->supervisor.step(Tick{}, now_));
    }
    arm(*armed);
  });
}

void ClusterSim::take(Agent& agent, LinkActions actions) {
  for (LinkAction& action : actions) {
    if (agent.exited) return;
    if (std::holds_alternative<LinkLookUp>(action)) {
      const std::uint64_t serial = agent.serial;
      at(between(0, rng_.chance(0.1) ? 8000 : 1), [this, serial] {  // a slow name server
        Agent* waiting = find(serial);
        if (!waiting || waiting->exited) return;
        take(*waiting, waiting->link.looked_up(now_));
        arm(*waiting);
      });
    } else if (std::holds_alternative<LinkConnect>(action)) {
      connect(agent);
    } else if (std::holds_alternative<LinkClose>(action)) {
      if (agent.connection) close(agent.connection, "closed by the agent");
    } else if (std::holds_alternative<LinkHello>(action)) {
      Hello hello;
      hello.instance = agent.link.instance();
      hello.job = job_;
      hello.node = agent.spec;
      hello.status = agent.supervisor.status(now_);
      hello.assignment = agent.supervisor.assignment();
      send(agent, hello);
    } else if (auto* transmit = std::get_if<LinkTransmit>(&action)) {
      send(agent, transmit->message);
    } else if (auto* deliver = std::get_if<LinkDeliver>(&action)) {
      std::visit(
          [&](const auto& directive) { take(agent, agent.supervisor.step(directive, now_)); },
          deliver->directive);
    } else if (auto* lost = std::get_if<LinkLost>(&action)) {
      note(agent.spec.agent_id + " lost the service: " + lost->reason);
      take(agent,
           agent.supervisor.step(ServiceLost{lost->reason, lost->for_good, lost->code}, now_));
    } else if (auto* refused = std::get_if<LinkRefused>(&action)) {
      take(agent, agent.supervisor.step(ServiceRefused{refused->reason}, now_));
    }
  }
}

void ClusterSim::take(Agent& agent, SupervisorActions actions) {
  for (SupervisorAction& action : actions) {
    if (agent.exited) return;
    if (auto* start = std::get_if<StartWorkers>(&action)) {
      start_workers(agent, start->assignment);
    } else if (auto* signal = std::get_if<SignalTree>(&action)) {
      signal_workers(agent, signal->signal);
    } else if (std::holds_alternative<KillTree>(action)) {
      signal_workers(agent, SIGKILL);
    } else if (std::holds_alternative<SendStatus>(action)) {
      take(agent, agent.link.send(agent.supervisor.status(now_), now_));
    } else if (auto* leave = std::get_if<SendLeave>(&action)) {
      take(agent, agent.link.leave(leave->leave, now_));
    } else if (auto* say = std::get_if<Say>(&action)) {
      note(agent.spec.agent_id + " says: " + say->text);
    } else if (auto* exit = std::get_if<Exit>(&action)) {
      note(agent.spec.agent_id + " exits with " + std::to_string(exit->code));
      agent.exited = true;
      for (const Worker& worker : agent.workers) {
        if (worker.alive) violate(agent.spec.agent_id + " left a worker behind");
      }
      if (exit->verdict) {
        if (result_.exit_code >= 0 && result_.exit_code != exit->code) violate("two verdicts");
        result_.exit_code = exit->code;
      }
      if (agent.connection) {
        const std::shared_ptr<Connection> last = agent.connection;
        at(milliseconds(100), [this, last] { close(last, "agent exited"); });
      }
    }
  }
  if (!agent.exited) check_tree(agent);
}

// --- workers

void ClusterSim::start_workers(Agent& agent, const Assignment& assignment) {
  for (const Node& node : nodes_) {
    std::vector<const Agent*> agents;
    if (node.agent) agents.push_back(node.agent.get());
    for (const auto& grave : node.graves) agents.push_back(grave.get());
    for (const Agent* other : agents) {
      for (const Worker& worker : other->workers) {
        if (worker.alive && worker.generation < assignment.generation) {
          violate("generation " + to_text(assignment.generation) + " starts on " + agent.spec.host +
                  " while rank " + to_text(worker.rank) + " of generation " +
                  to_text(worker.generation) + " is alive on " + node.name);
        }
      }
    }
  }
  // Counted here, not taken from the membership's own count. A service that was restarted begins
  // with what those who came back knew.
  const bool is_restart = assignment.reason.starts_with("restart");
  if (!restarts_before_) restarts_before_ = assignment.restart_count - (is_restart ? 1 : 0);
  if (is_restart) restarts_.insert(assignment.generation);
  if (*restarts_before_ + static_cast<int>(restarts_.size()) > job_.max_restarts) {
    violate("more restarts than the budget");
  }
  const int slots = agent.spec.slots;
  check_ranks(assignment, slots);
  note(agent.spec.agent_id + " starts generation " + to_text(assignment.generation) +
       ", ranks from " + to_text(assignment.first_rank) + " of " +
       std::to_string(assignment.world_size));
  agent.workers.clear();
  const bool calm = now_ > faults_until_;
  for (int i = 0; i < slots; ++i) {
    Worker worker{assignment.generation, Rank(assignment.first_rank.value + i), true,
                  !calm && rng_.chance(0.1)};
    result_.faults.stubborn_workers += worker.stubborn ? 1 : 0;
    agent.workers.push_back(worker);
    const std::uint64_t serial = agent.serial;
    const Generation generation = assignment.generation;
    const auto later = [&](Duration when, EndKind kind, int code) {
      at(when, [=, this] {
        Agent* still = find(serial);
        if (!still || still->exited || still->workers.empty()) return;
        if (still->workers[static_cast<std::size_t>(i)].generation != generation) return;
        end_worker(serial, i, kind, code);
      });
    };
    if (!calm && rng_.chance(crash_rate_)) {
      ++result_.faults.worker_crashes;
      const bool by_signal = rng_.chance(0.5);
      later(between(10, 60000), by_signal ? EndKind::kSignaled : EndKind::kExited,
            by_signal ? SIGSEGV : 3);
    } else {
      later(between(5000, calm ? 10000 : 90000), EndKind::kExited, 0);
    }
  }
}

void ClusterSim::end_worker(std::uint64_t serial, int local_rank, EndKind kind, int code) {
  Agent* agent = find(serial);
  if (!agent || agent->exited) return;
  Worker& worker = agent->workers[static_cast<std::size_t>(local_rank)];
  if (!worker.alive) return;
  worker.alive = false;
  WorkersEnded::One one;
  one.local_rank = LocalRank(local_rank);
  one.pid = 1000 + local_rank;
  one.kind = kind;
  one.code = code;
  take(*agent, agent->supervisor.step(WorkersEnded{{one}}, now_));
  arm(*agent);
}

void ClusterSim::signal_workers(Agent& agent, int signal) {
  for (std::size_t i = 0; i < agent.workers.size(); ++i) {
    const Worker& worker = agent.workers[i];
    if (!worker.alive || (worker.stubborn && signal != SIGKILL)) continue;
    const std::uint64_t serial = agent.serial;
    const Generation generation = worker.generation;
    const Duration reaction = signal == SIGKILL ? between(0, 50) : between(0, 2000);
    at(reaction, [=, this] {
      Agent* still = find(serial);
      if (!still || i >= still->workers.size() || still->workers[i].generation != generation)
        return;
      end_worker(serial, static_cast<int>(i), EndKind::kSignaled, signal);
    });
  }
}

void ClusterSim::check_tree(Agent& agent) {
  if (agent.supervisor.state() != Supervisor::State::kStopping) return;
  const bool alive = std::any_of(agent.workers.begin(), agent.workers.end(),
                                 [](const Worker& worker) { return worker.alive; });
  if (!alive) take(agent, agent.supervisor.step(TreeEmpty{}, now_));
}

void ClusterSim::check_ranks(const Assignment& assignment, int slots) {
  const std::int64_t generation = assignment.generation.value;
  std::map<int, int>& blocks = ranks_[generation];
  const int first = assignment.first_rank.value;
  const auto [it, fresh] = blocks.emplace(first, first + slots);
  if (!fresh)
    violate("two nodes have rank " + std::to_string(first) + " in generation " +
            std::to_string(generation));
  if (static_cast<int>(blocks.size()) > assignment.node_count) violate("more nodes than assigned");
  int expected = 0;
  const bool complete = static_cast<int>(blocks.size()) == assignment.node_count;
  for (const auto& [begin, end] : blocks) {
    if (begin < expected) violate("ranks overlap");
    if (complete && begin != expected) violate("a gap in the ranks");
    expected = end;
  }
  if (complete && expected != assignment.world_size) violate("ranks do not fill the world");
}

// --- network

void ClusterSim::connect(Agent& agent) {
  const std::uint64_t serial = agent.serial;
  at(between(0, 30), [this, serial] {
    Agent* connecting = find(serial);
    if (!connecting || connecting->exited) return;
    if (nodes_[connecting->node].cut) return;  // the try hangs until the link ends it
    if (!service_is_up_) {
      take(*connecting, connecting->link.disconnected("Connection refused", now_));
      arm(*connecting);
      return;
    }
    auto connection = std::make_shared<Connection>();
    connection->id = next_serial_++;
    connection->node = connecting->node;
    connection->agent = serial;
    connections_[connection->id] = connection;
    connecting->connection = connection;
    take(*connecting, connecting->link.connected(now_));
    arm(*connecting);
  });
}

// What is written to a connection that has just broken is lost.
void ClusterSim::send(Agent& agent, const AgentMessage& message) {
  if (!agent.connection) return;
  agent.connection->to_service.push_back(message);
  pump(agent.connection, true);
}

void ClusterSim::close(const std::shared_ptr<Connection>& connection, const std::string& why) {
  if (!connection->open) return;
  connection->open = false;
  const bool cut = nodes_[connection->node].cut;
  const AgentConnectionId id = connection->id;
  // A cut cable carries no FIN: the service then only has its lease.
  if (!cut) {
    at(between(0, 20), [this, id] {
      service_->disconnected(id);
      arm_service();
    });
  }
  const std::uint64_t serial = connection->agent;
  if (Agent* agent = find(serial); agent && agent->connection == connection) {
    agent->connection.reset();
    if (agent->exited) return;
    if (why == "closed by the agent") return;
    at(between(0, 20), [this, serial, why] {
      Agent* still = find(serial);
      if (!still || still->exited || still->connection) return;
      take(*still, still->link.disconnected(why, now_));
      arm(*still);
    });
  }
}

void ClusterSim::pump(const std::shared_ptr<Connection>& connection, bool to_service) {
  if (!connection) return;
  bool& pumping = to_service ? connection->pumping_service : connection->pumping_agent;
  if (pumping) return;
  pumping = true;
  at(between(0, rng_.chance(0.05) ? 800 : 5), [this, connection, to_service] {
    bool& busy = to_service ? connection->pumping_service : connection->pumping_agent;
    busy = false;
    if (!connection->open) return;
    if (nodes_[connection->node].cut) {  // TCP tries again
      busy = true;
      at(milliseconds(200), [this, connection, to_service] {
        (to_service ? connection->pumping_service : connection->pumping_agent) = false;
        pump(connection, to_service);
      });
      return;
    }
    if (to_service) {
      if (connection->to_service.empty()) return;
      const AgentMessage message = std::move(connection->to_service.front());
      connection->to_service.pop_front();
      take(service_->receive({.connection = connection->id}, message, now_));
      arm_service();
    } else {
      if (connection->to_agent.empty()) return;
      const ServiceMessage message = std::move(connection->to_agent.front());
      connection->to_agent.pop_front();
      Agent* agent = find(connection->agent);
      if (agent && !agent->exited && agent->connection == connection) {
        take(*agent, agent->link.received(message, now_));
        arm(*agent);
      }
    }
    const bool more = to_service ? !connection->to_service.empty() : !connection->to_agent.empty();
    if (more) pump(connection, to_service);
  });
}

void ClusterSim::take(ServiceOutput out) {
  for (const std::string& line : out.log) {
    note("service: " + line);
    if (line.find("took over") != std::string::npos) ++result_.take_overs;
  }
  for (const ServiceOutput::Change& change : out.changes) {
    last_change_ = change.number;
    if (keeps_state_) unwritten_.push_back(to_entry(change.what));
  }
  write_journal();
  for (ServiceOutput::Send& send : out.sends) {
    if (keeps_state_ && send.after > safe_) {
      held_.push_back(std::move(send));
    } else {
      deliver(send);
    }
  }
  for (const AgentConnectionId id : out.closes) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    const std::shared_ptr<Connection> connection = found->second;
    at(milliseconds(1000), [this, connection] { close(connection, "closed by the service"); });
  }
}

void ClusterSim::deliver(ServiceOutput::Send& send) {
  const auto found = connections_.find(send.connection);
  if (found == connections_.end() || !found->second->open) return;
  found->second->to_agent.push_back(std::move(send.message));
  pump(found->second, false);
}

void ClusterSim::arm_service() {
  const std::optional<TimePoint> due = service_->deadline();
  if (!service_is_up_ || !due ||
      (service_armed_ && *service_armed_ <= *due && *service_armed_ >= now_))
    return;
  service_armed_ = std::max(*due, now_);
  at(*service_armed_ - now_, [this] {
    service_armed_.reset();
    if (service_is_up_) take(service_->tick(now_));
    arm_service();
  });
}

// --- faults

void ClusterSim::inject_faults() {
  if (now_ > faults_until_) return heal();
  const std::size_t index = rng_.below(nodes_.size());
  Node& node = nodes_[index];
  const std::uint64_t kind = rng_.below(10);
  if (kind < 2) {
    kill_agent(index);
  } else if (kind < 5 && !node.cut) {
    node.cut = true;
    ++result_.faults.cuts;
    note(node.name + " is cut off");
    at(between(200, 15000), [this, index] {
      if (nodes_[index].cut) note(nodes_[index].name + " is healed");
      nodes_[index].cut = false;
    });
  } else if (kind < 8 && node.agent && node.agent->connection) {
    ++result_.faults.resets;
    note(node.name + ": connection reset");
    close(node.agent->connection, "Connection reset by peer");
  } else if (kind == 8 && rng_.chance(0.15) && node.agent && !node.agent->exited) {
    ++result_.faults.signals;
    note(node.name + " gets SIGTERM");
    take(*node.agent, node.agent->supervisor.step(UserSignal{SIGTERM}, now_));
    arm(*node.agent);
  } else if (kind == 9 && rng_.chance(0.5)) {
    restart_service();
  } else if (kind == 9) {
    fill_disk();
  }
  at(between(200, 20000), [this] { inject_faults(); });
}

void ClusterSim::heal() {
  note("all faults are healed");
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].cut = false;
    start_agent(i);
  }
}

}  // namespace ddprun::sim
