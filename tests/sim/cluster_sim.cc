#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <cctype>
#include <csignal>

#include "base/exit_codes.h"
#include "rendezvous/persistence/state_codec.h"

namespace ddprun::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr std::size_t kTraceLines = 200;
constexpr Duration kFaultTime = seconds(240);
constexpr Duration kFaultTimeOfManyAgents = seconds(60);
constexpr int kManyAgents = 200;
constexpr Duration kMeetingTime = seconds(60);  // how long workers try to meet
constexpr const char* kJob = "job";
}  // namespace

struct ClusterSim::Worker {
  Generation generation;
  Rank rank;
  bool alive = false;
  bool stubborn = false;
  bool met = false;             // it has met all others in the store
  StoreSim::Client client = 0;  // its connection to the store at store_port; 0: none
  std::uint16_t store_port = 0;
};

struct ClusterSim::Connection {
  AgentConnectionId id;
  std::size_t node = 0;
  std::uint64_t agent = 0;
  bool open = true;
  ServiceTerm former_term = 0;  // of the former leader at its other end; 0: of the leader
  bool is_of_former() const { return former_term != 0; }
  bool lingers = false;  // closed, but messages on their way to the service arrive late
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
  std::uint16_t store_port = 0;  // of the store that it serves now, or next
  bool exited = false;
};

struct ClusterSim::Node {
  std::string name;
  int slots = 1;
  bool cut_up = false;    // the service receives nothing from the node
  bool cut_down = false;  // the node receives nothing from the service
  bool slow = false;
  std::unique_ptr<Agent> agent;

  bool cut() const { return cut_up || cut_down; }
  std::vector<std::unique_ptr<Agent>> graves;  // ended agents, which late events may still name
};

ClusterSim::ClusterSim(std::uint64_t seed) : Simulation(seed) {
  const bool is_large = seed % 8 == 3;
  int node_count = 1 + static_cast<int>(rng_.below(6));
  if (is_large) node_count = kManyAgents + static_cast<int>(rng_.below(60));
  if (seed % 200 == 99) node_count = 1000;  // none in the 30 seeds that sanitizers run
  faults_until_ = now_ + (is_large ? kFaultTimeOfManyAgents : kFaultTime);
  if (is_large) saw(Happening::kLargeCluster);
  job_.id = kJob;
  job_.nodes.max = node_count;
  job_.nodes.min = node_count;
  if (rng_.chance(0.5)) {
    const int fewest = is_large ? node_count / 2 : 0;
    job_.nodes.min =
        fewest + 1 + static_cast<int>(rng_.below(static_cast<std::uint64_t>(node_count - fewest)));
  }
  job_.max_restarts = static_cast<int>(rng_.below(12));
  if (rng_.chance(0.2)) job_.restart_rules.window = seconds(1 + rng_.below(120));
  job_.join_timeout = seconds(120);
  job_.last_call = seconds(rng_.below(20));
  job_.on_join = static_cast<OnJoin>(rng_.below(3));
  job_.node_failures = 1 + static_cast<int>(rng_.below(3));
  crash_rate_ = rng_.chance(0.3) ? 0.0 : 0.3;
  if (is_large) crash_rate_ /= kManyAgents;
  keeps_state_ = rng_.chance(0.5);
  has_terms_ = keeps_state_ && rng_.chance(0.5);
  is_embedded_ = !keeps_state_ && rng_.chance(0.5);
  if (is_embedded_) saw(Happening::kEmbeddedService);
  begin_service();
  pulse();
  const int spares = rng_.chance(0.5) ? 0 : 1 + static_cast<int>(rng_.below(is_large ? 10 : 2));
  for (int i = 0; i < node_count + spares; ++i) {
    Node node;
    node.name = "node" + std::to_string(i);
    node.slots = is_large ? 1 : 1 + static_cast<int>(rng_.below(3));
    nodes_.push_back(std::move(node));
  }
  if (rng_.chance(0.2)) {
    broken_ = static_cast<int>(rng_.below(nodes_.size()));
    saw(Happening::kBrokenNode);
  }
}

ClusterSim::~ClusterSim() = default;

SimResult ClusterSim::run() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    at(between(0, 3000), [this, i] { start_agent(i); });
  }
  at(between(1000, 5000), [this] { inject_faults(); });
  // Limits how long the job may run after the last fault: a join timeout, a last call, and a few
  // runs.
  const TimePoint must_end = faults_until_ + seconds(900);
  while (has_events() && result_.violation.empty()) {
    const std::function<void()> run = next_event();
    if (now_ > must_end) {
      note_who_is_left();
      violate("the job does not end although all faults are healed");
      break;
    }
    run();
    check_times();
    if (has_ended()) dismiss_unwelcomed();
    if (!exited_ || !job_is_over()) continue;
    exited_ = false;
    const bool all_gone = std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
      return !node.agent || node.agent->exited;
    });
    if (all_gone) break;
  }
  for (const std::string& line : trace_) result_.trace += line + "\n";
  const Membership* job = service_->find(kJob);
  if (result_.exit_code == 0) saw(Happening::kJobEndedWell);
  result_.generations = job ? static_cast<int>(job->generation().value) + 1 : 0;
  return result_;
}

// --- plumbing ---

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
  const auto found = node_of_.find(serial);
  if (found == node_of_.end()) return nullptr;
  Agent* agent = nodes_[found->second].agent.get();
  return agent && agent->serial == serial ? agent : nullptr;
}

// Returns how late the node handles something, because it is busy with other work.
Duration ClusterSim::lateness(const Node& node) {
  // This is less than the difference between an agent's lease and its patience.
  return node.slow ? between(50, 750) : Duration(0);
}

// --- the service ---

void ClusterSim::begin_service() {
  const bool is_first = life_ == 0;
  ServiceOptions options{.embedded = is_embedded_, .service_id = "sim" + std::to_string(life_)};
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
    options.earlier_agents_until = now_ + options.times.patience();
  }
  if (has_terms_ && !is_first && rng_.chance(0.5)) {
    former_ = std::move(service_);
    former_term_ = term() - 1;
    former_until_ = now_ + between(5000, 60000);
  }
  service_ = std::make_unique<JobTable>(options, past, now_);
  if (keeps_state_) service_->note_durable(0);
  service_is_up_ = true;
  service_armed_.reset();
  if (disk_is_full_) service_->close_admission("the disk is full");
  arm_service();
  if (is_first) restarts_before_ = 0;
  if (is_first || keeps_state_) return;
  // This service may use a generation number that its earlier life gave to a node that is cut
  // off now.
  ranks_.clear();
  restarts_.clear();
  restarts_before_.reset();
}

void ClusterSim::restart_service() {
  // A service inside an agent ends with the agent, for good.
  if (!service_is_up_ || is_embedded_ || job_is_over()) return;
  note("the service is killed");
  ++life_;
  held_up_until_ = now_;
  saw(Happening::kServiceRestart);
  service_is_up_ = false;
  const std::size_t written = rng_.below(frame_.size() + 1);
  if (written > 0 && written < frame_.size()) saw(Happening::kTornWrite);
  journal_ += frame_.substr(0, written);
  frame_.clear();
  unwritten_.clear();
  outbox_ = Outbox();
  last_change_ = 0;
  for (const auto& [id, connection] : std::map(connections_)) close(connection, "service killed");
  at(between(100, rng_.chance(0.5) ? 2000 : 20000), [this] {
    note("the service is back");
    begin_service();
  });
}

// Calls the service's pulse() as its timer does, as long as any event may come.
void ClusterSim::pulse() {
  const bool all_gone = std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return !node.agent || node.agent->exited;
  });
  const bool nobody_comes = now_ > faults_until_ + seconds(60) && all_gone;
  if (nobody_comes && (has_ended() || !service_->find(kJob))) return;
  if (service_runs()) take(service_->pulse(now_));
  at(service_->pulse_period(), [this] { pulse(); });
}

// Stops the service's process for a while. Messages to it wait, and its own deadlines wait too.
void ClusterSim::hold_up_service() {
  if (!service_runs()) return;
  saw(Happening::kServiceHeldUp);
  const Duration time = between(500, 30000);
  note("the service is stopped for " + to_text(time));
  held_up_until_ = now_ + time;
}

void ClusterSim::write_journal() {
  if (!frame_.empty() || unwritten_.empty()) return;
  frame_ = journal_frame(unwritten_);
  frame_number_ = last_change_;
  unwritten_.clear();
  const int life = life_;
  const bool is_slow = rng_.chance(0.1);
  if (is_slow) saw(Happening::kSlowDisk);
  const Duration duration = between(0, is_slow ? 1500 : 5);
  at(duration, [this, life] { end_write(life); });
  // A kill does the most harm at this moment.
  if (now_ < faults_until_ && rng_.chance(0.05)) {
    at(between(0, 5), [this, life] {
      if (life == life_) restart_service();
    });
  }
}

void ClusterSim::end_write(int life) {
  if (life != life_) return;
  if (disk_is_full_ || !service_runs()) {
    at(milliseconds(500), [this, life] { end_write(life); });
    return;
  }
  journal_ += std::exchange(frame_, "");
  service_->note_durable(frame_number_);
  for (ServiceOutput::Send& send : outbox_.take_durable(frame_number_)) deliver(send);
  write_journal();
}

void ClusterSim::fill_disk() {
  if (!keeps_state_ || !service_runs() || disk_is_full_) return;
  note("the disk of the service is full");
  saw(Happening::kFullDisk);
  disk_is_full_ = true;
  service_->close_admission("the disk is full");
  ServiceOutput out = service_->withdraw_after(outbox_.durable(), "the disk is full");
  for (const AgentConnectionId id : out.closes) outbox_.forget(id);
  take(std::move(out));
  at(between(100, 10000), [this] {
    note("the disk of the service has room");
    disk_is_full_ = false;
    service_->close_admission(std::nullopt);
  });
}

// --- agents ---

bool ClusterSim::has_ended() const {
  const Membership* job = service_->find(kJob);
  return over_ || (job && job->phase() == JobPhase::kEnded);
}

// Returns whether the job has ended for good. An end that is not durable yet may still be lost.
bool ClusterSim::job_is_over() {
  over_ = has_ended() && (over_ || !keeps_state_ || outbox_.durable() == last_change_);
  return over_;
}

// Ends the agents that were never welcomed. They would now begin a new job of the same id, but
// the simulation is of one job.
void ClusterSim::dismiss_unwelcomed() {
  for (Node& node : nodes_) {
    if (!node.agent || node.agent->exited || !node.agent->link.instance().empty()) continue;
    node.agent->exited = exited_ = true;
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
  node_of_[serial] = index;
  node.agent = std::make_unique<Agent>(
      serial, index, AgentLink(link_options, Rng(rng_.next()), now_), Supervisor(options));
  Agent& agent = *node.agent;
  agent.spec = {.agent_id = "agent" + std::to_string(serial),
                .host = node.name,
                .slots = node.slots,
                .node_rank = {},
                .address = "10.0.0." + std::to_string(index)};
  close_store(agent);
  note(node.name + ": " + agent.spec.agent_id + " starts");
  take(agent, agent.link.start(now_));
  arm(agent);
}

void ClusterSim::kill_agent(std::size_t index) {
  Node& node = nodes_[index];
  if (!node.agent || node.agent->exited) return;
  Agent& agent = *node.agent;
  note(node.name + ": " + agent.spec.agent_id + " is killed");
  saw(Happening::kAgentKill);
  agent.exited = exited_ = true;
  close_store(agent);
  const std::uint64_t serial = agent.serial;
  // The guardian ends the remaining workers a moment later.
  at(between(0, 50), [this, serial, index] {
    for (auto& grave : nodes_[index].graves) {
      if (grave->serial == serial) bury(*grave);
    }
    if (Agent* killed = find(serial)) bury(*killed);
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
  at(*agent.armed - now_ + lateness(nodes_[agent.node]), [this, serial] {
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
      at(between(0, rng_.chance(0.1) ? 8000 : 1), [this, serial] {  // sometimes a slow name server
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
      hello.status = status_of(agent);
      hello.assignment = agent.supervisor.assignment();
      send(agent, hello);
    } else if (auto* transmit = std::get_if<LinkTransmit>(&action)) {
      send(agent, transmit->message);
    } else if (auto* deliver = std::get_if<LinkDeliver>(&action)) {
      std::visit(
          [&](const auto& message) {
            if constexpr (std::is_constructible_v<SupervisorEvent, decltype(message)>) {
              take(agent, agent.supervisor.step(message, now_));
            }
          },
          deliver->message);
    } else if (auto* lost = std::get_if<ServiceLost>(&action)) {
      note(agent.spec.agent_id + " lost the service: " + lost->reason);
      take(agent, agent.supervisor.step(*lost, now_));
    } else if (auto* refused = std::get_if<ServiceRefused>(&action)) {
      take(agent, agent.supervisor.step(*refused, now_));
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
      take(agent, agent.link.send(status_of(agent)));
    } else if (std::holds_alternative<ReleaseGeneration>(action)) {
      close_store(agent);
    } else if (auto* leave = std::get_if<SendLeave>(&action)) {
      take(agent, agent.link.leave(leave->leave));
    } else if (auto* say = std::get_if<Say>(&action)) {
      note(agent.spec.agent_id + " says: " + say->text);
    } else if (auto* exit = std::get_if<Exit>(&action)) {
      note(agent.spec.agent_id + " exits with " + std::to_string(exit->code));
      agent.exited = exited_ = true;
      close_store(agent);
      for (const Worker& worker : agent.workers) {
        if (worker.alive) violate(agent.spec.agent_id + " left a worker behind");
      }
      if (exit->verdict) {
        if (result_.exit_code >= 0 && result_.exit_code != exit->code) violate("two verdicts");
        result_.exit_code = exit->code;
        check_success(*exit->verdict);
      }
      if (agent.connection) {
        const std::shared_ptr<Connection> last = agent.connection;
        at(milliseconds(100), [this, last] { close(last, "agent exited"); });
      }
    }
  }
  if (!agent.exited) check_tree(agent);
}

// --- workers ---

void ClusterSim::start_workers(Agent& agent, const Assignment& assignment) {
  if (!alive_.empty() && alive_.begin()->first < assignment.generation) {
    violate("generation " + to_text(assignment.generation) + " starts on " + agent.spec.host +
            " while a worker of generation " + to_text(alive_.begin()->first) + " is alive");
  }
  check_reason(assignment);
  // The test counts restarts itself instead of using the membership's count. A restarted service
  // begins with what the returning agents knew. Only "restart 1 of 3: ..." uses budget; "restart
  // asked for by ..." uses none.
  const bool is_restart =
      assignment.reason.starts_with("restart ") && std::isdigit(assignment.reason[8]) != 0;
  if (!restarts_before_) restarts_before_ = assignment.restart_count - (is_restart ? 1 : 0);
  if (is_restart) restarts_.insert(assignment.generation);
  // restart_budget_test checks how many restarts a window allows. A service without kept state
  // forgets them.
  const bool has_window = job_.restart_rules.window > Duration(0);
  if (!has_window && *restarts_before_ + static_cast<int>(restarts_.size()) > job_.max_restarts) {
    violate("more restarts than the budget");
  }
  const int slots = agent.spec.slots;
  check_ranks(assignment, slots);
  note(agent.spec.agent_id + " starts generation " + to_text(assignment.generation) +
       ", ranks from " + to_text(assignment.first_rank) + " of " +
       std::to_string(assignment.world_size));
  bury(agent);
  if (assignment.node_rank == NodeRank(0)) {
    if (assignment.store.port != agent.store_port)
      violate("the store is not where it is said to be");
    stores_.try_emplace(agent.store_port, agent.node, assignment.generation, assignment.world_size);
    announce_later(agent.serial, assignment.generation);
  }
  const bool calm = now_ > faults_until_;
  for (int i = 0; i < slots; ++i) {
    Worker worker{assignment.generation, Rank(assignment.first_rank.value + i), true,
                  !calm && rng_.chance(0.1)};
    if (worker.stubborn) saw(Happening::kStubbornWorker);
    agent.workers.push_back(worker);
    ++alive_[worker.generation];
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
    const bool is_broken = static_cast<int>(agent.node) == broken_;
    if (!calm && (is_broken || rng_.chance(crash_rate_))) {
      saw(Happening::kWorkerCrash);
      const bool by_signal = rng_.chance(0.5);
      // Often this is before all agents have reported that they run. Then many messages are on
      // their way.
      const int latest = rng_.chance(0.3) ? 300 : is_broken ? 10000 : 60000;
      later(between(10, latest), by_signal ? EndKind::kSignaled : EndKind::kExited,
            by_signal ? SIGSEGV : 3);
    } else {
      finish_later(serial, i, generation, between(5000, calm ? 10000 : 90000));
    }
    at(between(1, 300), [=, this, store_port = assignment.store.port, until = now_ + kMeetingTime] {
      meet(serial, i, generation, store_port, until);
    });
  }
}

void ClusterSim::end_worker(std::uint64_t serial, int local_rank, EndKind kind, int code) {
  Agent* agent = find(serial);
  if (!agent || agent->exited) return;
  Worker& worker = agent->workers[static_cast<std::size_t>(local_rank)];
  if (!worker.alive) return;
  worker.alive = false;
  if (--alive_[worker.generation] == 0) alive_.erase(worker.generation);
  hang_up(worker);
  if (kind == EndKind::kExited && code == 0) ++ended_well_[worker.generation];
  WorkerEnd one;
  one.local_rank = LocalRank(local_rank);
  one.pid = 1000 + local_rank;
  one.kind = kind;
  one.code = code;
  take(*agent, agent->supervisor.step(WorkersEnded{{one}}, now_));
  arm(*agent);
}

// Ends the worker with success at this time. A worker that has not met the others yet has not
// begun its work, so it ends later.
void ClusterSim::finish_later(std::uint64_t serial, int local_rank, Generation generation,
                              Duration when) {
  at(when, [=, this] {
    const Worker* worker = find_worker(serial, local_rank, generation);
    if (!worker) return;
    if (!worker->met) return finish_later(serial, local_rank, generation, seconds(1));
    end_worker(serial, local_rank, EndKind::kExited, 0);
  });
}

ClusterSim::Worker* ClusterSim::find_worker(std::uint64_t serial, int local_rank,
                                            Generation generation) {
  Agent* agent = find(serial);
  if (!agent || agent->exited || agent->workers.empty()) return nullptr;
  Worker& worker = agent->workers[static_cast<std::size_t>(local_rank)];
  return worker.alive && worker.generation == generation ? &worker : nullptr;
}

// Lets a worker connect to the store of its generation and wait there for the others. Every wait
// ends with an answer, with the end of the store, or at its deadline.
void ClusterSim::meet(std::uint64_t serial, int local_rank, Generation generation,
                      std::uint16_t store_port, TimePoint until) {
  Worker* worker = find_worker(serial, local_rank, generation);
  if (!worker || worker->met) return;
  if (now_ >= until) return end_worker(serial, local_rank, EndKind::kExited, 1);
  at(worker->client ? until - now_ : Duration(milliseconds(500)),
     [=, this] { meet(serial, local_rank, generation, store_port, until); });
  const auto found = stores_.find(store_port);
  if (worker->client || found == stores_.end()) return;
  StoreSim& store = found->second;
  const std::size_t here = node_of_.at(serial);
  if (here != store.node && (nodes_[here].cut() || nodes_[store.node].cut())) return;
  if (store.generation != generation) {
    return violate("a worker of generation " + to_text(generation) +
                   " reaches the store of generation " + to_text(store.generation));
  }
  worker->client = next_client_++;
  worker->store_port = store_port;
  clients_[worker->client] = {serial, local_rank, generation};
  for (const StoreSim::Client met : store.arrive(worker->client)) {
    const auto client = clients_.find(met);
    if (client == clients_.end()) return violate("the store answers a worker that is gone");
    const auto& [agent, rank, of] = client->second;
    // A worker whose agent was just killed still gets the answer. The guardian ends it after
    // that.
    if (Worker* other = find_worker(agent, rank, of)) other->met = true;
  }
  if (!store.violation().empty()) violate(store.violation());
}

void ClusterSim::hang_up(Worker& worker) {
  if (!worker.client) return;
  clients_.erase(worker.client);
  const auto store = stores_.find(worker.store_port);
  if (store != stores_.end()) {
    store->second.leave(worker.client);
    if (!store->second.violation().empty()) violate(store->second.violation());
  }
  worker.client = 0;
}

// Ends the store together with its generation. The next one gets another port.
void ClusterSim::close_store(Agent& agent) {
  stores_.erase(agent.store_port);
  agent.store_port = next_port_ = next_port_ == 65535 ? 1 : next_port_ + 1;
}

AgentStatus ClusterSim::status_of(const Agent& agent) const {
  AgentStatus status = agent.supervisor.status(now_);
  status.store_port = agent.store_port;
  if (status.phase != AgentPhase::kIdle)
    status.times = {.first_step = status.generation.value, .since_first = seconds(1)};
  return status;
}

// Checks that the books of the job have a cause for each instant since its begin, also after
// restarts of the service that keep its state. The journal has whole milliseconds. An agent that
// comes after the end of the job begins another one. It has books of its own, unless the job was
// saved.
void ClusterSim::check_times() {
  const Membership* job = service_->find(kJob);
  const bool has_ended = job && job->phase() == JobPhase::kEnded;
  if (!job || (life_ != books_life_ && !keeps_state_) ||
      (has_ended && job->verdict()->exit_code != to_int(ExitCode::kSaved)))
    job_began_.reset();
  books_life_ = life_;
  if (!job || has_ended) return;
  const Duration wall = job->times(now_)->wall();
  if (!job_began_) job_began_ = now_ - wall;
  const Duration off = wall - (now_ - *job_began_);
  if (off > milliseconds(10) * life_ || off < -milliseconds(10) * life_)
    violate("the books of the job are off by " + to_text(off));
}

// Checks a success verdict: all workers of that generation must have succeeded. Workers of older
// generations do not count.
void ClusterSim::check_success(const Verdict& verdict) {
  if (!verdict.success || (life_ > 0 && !keeps_state_)) return;  // numbers may be reused
  const auto ranks = ranks_.find(verdict.generation);
  if (ranks == ranks_.end()) return violate("a generation that nobody ran ended well");
  const int world_size = ranks->second.empty() ? 0 : ranks->second.rbegin()->second;
  if (ended_well_[verdict.generation] == world_size) return;
  violate("generation " + to_text(verdict.generation) + " is said to have ended well, but " +
          std::to_string(ended_well_[verdict.generation]) + " of " + std::to_string(world_size) +
          " workers have");
}

// Writes to the trace what each agent believes and what its workers do.
void ClusterSim::note_who_is_left() {
  for (const Node& node : nodes_) {
    if (!node.agent || node.agent->exited) continue;
    const AgentStatus status = node.agent->supervisor.status(now_);
    std::string text = node.name + " is " + std::string(enum_name(kAgentPhaseWords, status.phase)) +
                       " in generation " + to_text(status.generation);
    for (const Worker& worker : node.agent->workers) {
      text +=
          worker.alive ? worker.met ? ", a worker works" : ", a worker waits" : ", one has ended";
    }
    note(text + (node.agent->connection ? "" : "; it is not connected"));
  }
}

// Ends an agent's workers, as the kernel does when no process watches them any more.
void ClusterSim::bury(Agent& agent) {
  for (Worker& worker : agent.workers) {
    if (worker.alive && --alive_[worker.generation] == 0) alive_.erase(worker.generation);
    hang_up(worker);
  }
  agent.workers.clear();
}

void ClusterSim::announce_later(std::uint64_t serial, Generation generation) {
  at(between(1000, 20000), [this, serial, generation] {
    Agent* agent = find(serial);
    if (!agent || agent->exited || agent->workers.empty()) return;
    const Worker& first = agent->workers.front();
    if (first.generation != generation || !first.alive) return;
    saw(Happening::kCheckpoint);
    const auto store = stores_.find(agent->store_port);
    if (store == stores_.end()) return violate("a generation runs whose store is gone");
    if (!store->second.announce(next_client_++, kCheckpointKey)) {
      return violate(store->second.violation());
    }
    ++announced_[generation];
    take(*agent, agent->supervisor.step(CheckpointAnnounced{generation}, now_));
    arm(*agent);
    announce_later(serial, generation);
  });
}

// Checks that the service was allowed to end the last generation for the reason that it gives.
void ClusterSim::check_reason(const Assignment& assignment) {
  if (assignment.node_count < job_.nodes.min || assignment.node_count > job_.nodes.max) {
    violate("a generation of " + std::to_string(assignment.node_count) + " nodes");
  }
  if (!assignment.reason.starts_with("a node joined")) return;
  switch (job_.on_join) {
    case OnJoin::kNow: return;
    case OnJoin::kRestart: return violate("a node joined, but not with a restart");
    case OnJoin::kCheckpoint: break;
  }
  // All earlier generations count here, not only the last one. A generation that no agent was
  // told of has no workers that could announce a checkpoint.
  const auto next = announced_.lower_bound(assignment.generation);
  const bool announced = next != announced_.begin() && std::prev(next)->second > 0;
  if (!announced) violate("a node joined, but no checkpoint was announced");
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
  std::map<int, int>& blocks = ranks_[assignment.generation];
  const int first = assignment.first_rank.value;
  const auto [it, fresh] = blocks.emplace(first, first + slots);
  if (!fresh)
    violate("two nodes have rank " + std::to_string(first) + " in generation " +
            to_text(assignment.generation));
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

// --- network ---

void ClusterSim::connect(Agent& agent) {
  const std::uint64_t serial = agent.serial;
  at(between(0, 30), [this, serial] {
    Agent* connecting = find(serial);
    if (!connecting || connecting->exited) return;
    const bool is_cut = nodes_[connecting->node].cut();
    const bool is_of_former = former_ && now_ < former_until_ &&
                              connecting->link.term() > former_term_ &&
                              (is_cut || rng_.chance(0.2));
    if (is_cut && !is_of_former) return;  // the attempt hangs until the link ends it
    if (!service_is_up_ && !is_of_former) {
      take(*connecting,
           connecting->link.disconnected("Connection refused", now_, LinkFailure::kRefused));
      arm(*connecting);
      return;
    }
    auto connection = std::make_shared<Connection>();
    connection->id = AgentConnectionId(next_serial_++);
    connection->node = connecting->node;
    connection->agent = serial;
    if (is_of_former) connection->former_term = former_term_;
    if (is_of_former) saw(Happening::kFormerLeader);
    connections_[connection->id] = connection;
    connecting->connection = connection;
    take(*connecting, connecting->link.connected(now_));
    arm(*connecting);
  });
}

// Sends a message to the service. A message to a connection that has just broken is lost.
void ClusterSim::send(Agent& agent, const AgentMessage& message) {
  if (!agent.connection) return;
  agent.connection->to_service.push_back(message);
  pump(agent.connection, true);
}

void ClusterSim::close(const std::shared_ptr<Connection>& connection, const std::string& why) {
  if (!connection->open) return;
  connection->open = false;
  const AgentConnectionId id = connection->id;
  for (std::size_t i = connection->to_agent.size(); i > 0; --i) saw(Happening::kLostMessage);
  connection->to_agent.clear();
  // A cut cable carries no FIN. Then the service has only the lease. A slow cable delivers the
  // earlier messages and the FIN late, when the agent may have connected again.
  const int life = life_;
  if (connection->is_of_former()) connection->to_service.clear();
  connection->lingers = !nodes_[connection->node].cut_up && why != "service killed" &&
                        !connection->to_service.empty() && rng_.chance(0.3);
  if (!connection->lingers) {
    for (std::size_t i = connection->to_service.size(); i > 0; --i) saw(Happening::kLostMessage);
    connection->to_service.clear();
  }
  if (!connection->is_of_former() && !nodes_[connection->node].cut_up) {
    at(connection->lingers ? between(500, 3000) : between(0, 20), [this, connection, id, life] {
      if (life == life_ && service_is_up_ && !service_runs()) {
        return at(held_up_until_ - now_ + milliseconds(1), [this, id, life] {
          if (life != life_) return;
          take(service_->disconnected(id, now_));
          arm_service();
        });
      }
      const bool is_late =
          std::exchange(connection->lingers, false) && life == life_ && service_is_up_;
      for (const AgentMessage& message : std::exchange(connection->to_service, {})) {
        if (!is_late) break;
        saw(Happening::kLateMessage);
        take(service_->receive({.connection = id}, message, now_));
      }
      take(service_->disconnected(id, now_));
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
  const bool is_slow = rng_.chance(0.05);
  if (is_slow) saw(Happening::kSlowMessage);
  const Duration handling = to_service ? Duration(0) : lateness(nodes_[connection->node]);
  at(between(0, is_slow ? 800 : 5) + handling, [this, connection, to_service] {
    bool& busy = to_service ? connection->pumping_service : connection->pumping_agent;
    busy = false;
    if (!connection->open) return;
    const Node& node = nodes_[connection->node];
    if (connection->is_of_former()) {
      if (to_service && !connection->to_service.empty()) {
        const AgentMessage message = std::move(connection->to_service.front());
        connection->to_service.pop_front();
        if (connection->former_term != former_term_) return;  // that one is gone
        take_from_former(former_->receive({.connection = connection->id}, message, now_));
        if (!connection->to_service.empty()) pump(connection, to_service);
        return;
      }
    } else if (to_service ? node.cut_up || !service_runs() : node.cut_down) {  // TCP retries
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
      const bool beats = std::holds_alternative<Heartbeat>(message);
      take(service_->receive({.connection = connection->id}, message, now_));
      if (!std::holds_alternative<Hello>(message) && rng_.chance(0.02)) {
        saw(Happening::kRepeatedMessage);
        take(service_->receive({.connection = connection->id}, message, now_));
      }
      if (!beats) arm_service();  // a heartbeat only moves deadlines to later times
    } else {
      if (connection->to_agent.empty()) return;
      const ServiceMessage message = std::move(connection->to_agent.front());
      connection->to_agent.pop_front();
      Agent* agent = find(connection->agent);
      if (agent && !agent->exited && agent->connection == connection) {
        take(*agent, agent->link.received(message, now_));
        if (!agent->exited && rng_.chance(0.02)) {
          saw(Happening::kRepeatedMessage);
          take(*agent, agent->link.received(message, now_));
        }
        arm(*agent);
      }
    }
    const bool more = to_service ? !connection->to_service.empty() : !connection->to_agent.empty();
    if (more) pump(connection, to_service);
  });
}

void ClusterSim::take(ServiceOutput out) {
  for (const Membership* job : service_->jobs()) {
    if (!job->is_consistent()) violate("what the service has counted is not what there is");
  }
  for (const std::string& line : out.log) {
    note("service: " + line);
    if (line.find("took over") != std::string::npos) saw(Happening::kTakeOver);
    if (line.find(": generation ") == std::string::npos) continue;
    if (line.find("restart asked for by") != std::string::npos) saw(Happening::kRestartAsked);
    if (line.find("joined at a checkpoint") != std::string::npos) saw(Happening::kJoinAtCheckpoint);
    if (line.find(" replaces ") != std::string::npos) saw(Happening::kReplacedNode);
  }
  for (const ServiceOutput::Change& change : out.changes) {
    last_change_ = change.number;
    if (keeps_state_) unwritten_.push_back(to_entry(change.what));
  }
  write_journal();
  for (ServiceOutput::Send& send : out.sends) {
    if (!keeps_state_) {
      deliver(send);
    } else if (auto now = outbox_.put(std::move(send))) {
      deliver(*now);
    }
  }
  for (const AgentConnectionId id : out.closes) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    const std::shared_ptr<Connection> connection = found->second;
    at(milliseconds(1000), [this, connection] { close(connection, "closed by the service"); });
  }
}

// A former leader's decisions are never durable, so it tells none of them.
void ClusterSim::take_from_former(ServiceOutput out) {
  for (ServiceOutput::Send& send : out.sends) {
    const bool is_decision = !std::holds_alternative<Welcome>(send.message) &&
                             !std::holds_alternative<HeartbeatAck>(send.message);
    const auto found = connections_.find(send.connection);
    if (is_decision || found == connections_.end() || !found->second->is_of_former()) continue;
    set_term(send.message, former_term_);
    found->second->to_agent.push_back(std::move(send.message));
    pump(found->second, false);
  }
}

void ClusterSim::deliver(ServiceOutput::Send& send) {
  const auto found = connections_.find(send.connection);
  if (found == connections_.end() || !found->second->open) return;
  set_term(send.message, term());
  found->second->to_agent.push_back(std::move(send.message));
  pump(found->second, false);
}

void ClusterSim::arm_service() {
  const std::optional<TimePoint> due = service_->deadline();
  if (!service_is_up_ || !due ||
      (service_armed_ && *service_armed_ <= *due && *service_armed_ >= now_))
    return;
  service_armed_ = std::max({*due, now_, held_up_until_});
  at(*service_armed_ - now_, [this] {
    service_armed_.reset();
    if (service_is_up_ && !service_runs()) return arm_service();
    if (service_is_up_) take(service_->tick(now_));
    arm_service();
  });
}

// --- faults ---

void ClusterSim::inject_faults() {
  if (now_ > faults_until_) return heal();
  // A large cluster gets faults in many places at once.
  for (std::size_t i = 0; i <= nodes_.size() / 50; ++i) inject_fault();
  at(between(200, 20000), [this] { inject_faults(); });
}

void ClusterSim::inject_fault() {
  const std::size_t index = rng_.below(nodes_.size());
  Node& node = nodes_[index];
  const bool is_large = nodes_.size() >= static_cast<std::size_t>(kManyAgents);
  const std::uint64_t kind = rng_.below(14);
  if (kind < 2) {
    kill_agent(index);
  } else if (kind < 5 && !node.cut()) {
    cut(index);
  } else if (kind < 8 && node.agent && node.agent->connection) {
    saw(Happening::kReset);
    note(node.name + ": connection reset");
    close(node.agent->connection, "Connection reset by peer");
  } else if (kind == 8 && rng_.chance(is_large ? 0.02 : 0.15) && node.agent &&
             !node.agent->exited) {
    saw(Happening::kSignal);
    note(node.name + " gets SIGTERM");
    take(*node.agent, node.agent->supervisor.step(UserSignal{SIGTERM}, now_));
    arm(*node.agent);
  } else if (kind == 9 && rng_.chance(0.5)) {
    restart_service();
  } else if (kind == 9) {
    fill_disk();
  } else if (kind == 12) {
    ask_for_restart(node);
  } else if (kind == 13) {
    if (!is_large || rng_.chance(0.2)) hold_up_service();
  } else if (kind > 9 && !node.slow) {
    saw(Happening::kSlowAgent);
    note(node.name + " is slow");
    node.slow = true;
    at(between(500, 30000), [this, index] { nodes_[index].slow = false; });
  }
}

// Sends a user's request through the node's agent. It may be lost with the connection.
void ClusterSim::ask_for_restart(Node& node) {
  if (!node.agent || node.agent->exited || !node.agent->link.is_up()) return;
  UserRequest request{.what = UserRequest::What::kRestart, .by = "a user on " + node.name};
  if (rng_.chance(0.2)) {
    request.what = UserRequest::What::kSignal;
    request.signal = SIGUSR1;
  }
  note(node.name + ": " + request.by + " asks for a " +
       std::string(enum_name(kUserRequestWords, request.what)));
  take(*node.agent, node.agent->link.send(request));
}

void ClusterSim::cut(std::size_t index) {
  Node& node = nodes_[index];
  const std::uint64_t way = rng_.below(4);
  node.cut_up = way != 0;
  node.cut_down = way != 1;
  saw(way < 2 ? Happening::kOneWayCut : Happening::kCut);
  note(node.name + (way == 0 ? " hears nothing" : way == 1 ? " is not heard" : " is cut off"));
  at(between(200, 15000), [this, index] {
    Node& healed = nodes_[index];
    if (healed.cut()) note(healed.name + " is healed");
    healed.cut_up = healed.cut_down = false;
  });
}

void ClusterSim::heal() {
  note("all faults are healed");
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].cut_up = nodes_[i].cut_down = nodes_[i].slow = false;
    start_agent(i);
  }
}

}  // namespace ddprun::sim
