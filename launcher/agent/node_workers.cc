#include "launcher/agent/node_workers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <csignal>
#include <utility>

#include "base/concat.h"
#include "base/process_tree.h"
#include "base/signal_names.h"
#include "base/step_shares.h"
#include "launcher/agent/agent.h"
#include "launcher/control/server.h"
#include "launcher/flight/process_flights.h"
#include "launcher/guard/run_cgroup.h"
#include "launcher/hang/worker_inspector.h"
#include "launcher/plan/binding.h"
#include "launcher/plan/job_plan.h"
#include "launcher/process/pseudo_terminal.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

namespace asio = boost::asio;

namespace {

// Returns a name of the job that does not reveal its instance: a UUID of version 5 (RFC 4122). A
// process that knows the instance could take an agent's place.
std::string submission_of(const std::string& instance) {
  if (instance.empty()) return {};
  const boost::uuids::name_generator_sha1 name(boost::uuids::ns::x500dn());
  return to_string(name(instance));
}

std::vector<std::optional<std::string>> devices_of_workers(const AgentConfig& config) {
  if (config.own_devices.empty()) {
    return std::vector(static_cast<std::size_t>(config.slots), shared_devices(config.options));
  }
  return {config.own_devices.begin(), config.own_devices.end()};
}

}  // namespace

NodeWorkers::NodeWorkers(const AgentConfig& config, const NodeWorkersParts& parts,
                         NodeWorkersEvents events)
    : config_(config),
      parts_(parts),
      events_(std::move(events)),
      gpu_table_(devices_of_workers(config)) {}

void NodeWorkers::start(const Assignment& assignment, const std::string& instance,
                        ControlServer& control) {
  attempt_directory_ = attempt_directory(assignment);
  generation_ = assignment.generation;
  PlanOptions plan = plan_options(config_, attempt_directory_);
  plan.submission = submission_of(instance);
  pages_.reset();
  rank_table_.clear();
  if (Result<WorkerPages> pages = WorkerPages::make(config_.slots); pages) {
    pages_ = std::move(*pages);
    plan.page_file = pages_->path();
  } else {
    parts_.log.debug(pages.error().message() + "; workers cannot report their steps");
  }
  for (WorkerPlan& one : plan_workers(plan, assignment)) {
    workers_.push_back(std::make_shared<Worker>(std::move(one)));
  }
  const WorkerConsole looks{
      .coloured = config_.look.coloured,
      .has_prefix = assignment.world_size > 1,
      .tee_pattern = config_.tee_pattern,
      .screen = size_of_terminal(STDOUT_FILENO),
      .json = config_.options.log_format == LogFormat::kJson ? &parts_.json : nullptr};
  const WorkerServices services{parts_.io,
                                parts_.console,
                                config_.options,
                                config_.command.executable,
                                parts_.descriptor_limit,
                                config_.cgroup,
                                parts_.interrupts,
                                parts_.logs,
                                looks,
                                control};
  const auto when_ended = [this](std::shared_ptr<Worker> one) { ended(std::move(one)); };
  const Result<void> made = make_directories();
  for (const auto& worker : workers_) {
    const Result<void> started = made ? worker->start(services, when_ended) : made;
    if (started) {
      parts_.log.debug(concat("rank ", worker->rank(), " (local rank ", worker->local_rank(),
                              ") runs as pid ", worker->pid()));
      continue;
    }
    not_started_.push_back({.kind = EndKind::kNotStarted,
                            .code = started.error().sys_errno,
                            .local_rank = worker->local_rank(),
                            .message = started.error().message()});
  }
  oom_kills_before_ = oom_kills_of_machine();
  if (not_started_.empty()) return;
  asio::post(parts_.io, [this] { events_.ended({std::exchange(not_started_, {})}); });
}

// Returns <log root>/attempt_N. If an earlier generation of the same attempt has left its logs
// there, they are kept and the result is attempt_N.gG.
std::string NodeWorkers::attempt_directory(const Assignment& assignment) {
  if (config_.log_root.empty()) return "";
  const int attempt = assignment.restart_count;
  const std::string path = concat(config_.log_root, "/attempt_", attempt);
  return attempts_.insert(attempt).second ? path : concat(path, ".g", assignment.generation);
}

// Creates the log directories. A disk that does not answer does not keep workers from starting,
// because the log writer creates their files later.
Result<void> NodeWorkers::make_directories() {
  std::vector<std::string> directories;
  for (const auto& worker : workers_) {
    if (!worker->directory().empty()) directories.push_back(worker->directory());
  }
  if (directories.empty()) return {};
  Result<void> made = with_files<void>("make the log directories in " + attempt_directory_,
                                       [directories] { return make_log_directories(directories); });
  if (made || made.error().kind != ErrorKind::kTimeout) return made;
  parts_.log.warning(made.error().message() + "; the workers start without them");
  return {};
}

template <class T>
Result<T> NodeWorkers::with_files(const std::string& doing, std::function<Result<T>()> body) {
  return config_.scratch_directory.empty() ? parts_.files.run(doing, std::move(body)) : body();
}

void NodeWorkers::let_go() {
  save_flights();
  workers_.clear();
  rank_table_.clear();
  newly_ended_.clear();
  signalled_.clear();
}

void NodeWorkers::signal_tree(int signal) {
  signal_ = signal;
  signalled_.clear();
  signal_descendants(signal, signalled_);
  parts_.log.debug(
      concat("sent ", signal_name(signal), " to ", signalled_.size(), " processes of the job"));
}

void NodeWorkers::kill_tree() {
  kill_cgroup(config_.cgroup);
  signal_tree(SIGKILL);
}

void NodeWorkers::signal(int signal, std::optional<LocalRank> rank) {
  for (const auto& worker : workers_) {
    if (rank && worker->local_rank() != *rank) continue;
    // A worker that has ended but is not reaped keeps its pid until then.
    if (worker->is_open()) kill(worker->pid(), signal);
  }
}

// Reports workers that ended at the same instant together, because their order means nothing.
// Ends that are ready now are already queued before the function that is posted here.
void NodeWorkers::ended(std::shared_ptr<Worker> worker) {
  newly_ended_.push_back(std::move(worker));
  if (newly_ended_.size() > 1) return;
  asio::post(parts_.io, [this] {
    WorkersEnded event;
    std::vector<OwnWords> words = last_words_of(newly_ended_);
    for (const auto& one : std::exchange(newly_ended_, {})) {
      event.workers.push_back(one->describe_end(std::move(words[event.workers.size()])));
      if (pages_) {
        event.workers.back().step = pages_->step_of(one->local_rank().value);
        event.workers.back().finished = pages_->has_finished(one->local_rank().value);
      }
      look_for_want_of_memory(event.workers.back());
    }
    if (!event.workers.empty()) events_.ended(event);
  });
}

std::vector<OwnWords> NodeWorkers::last_words_of(
    const std::vector<std::shared_ptr<Worker>>& ended) {
  std::vector<std::string> paths;
  for (const auto& worker : ended) paths.push_back(worker->error_file());
  using AllWords = std::vector<OwnWords>;
  if (std::ranges::all_of(paths, &std::string::empty)) return AllWords(paths.size());
  Result<AllWords> read = with_files<AllWords>(
      "read the error files in " + attempt_directory_, [paths]() -> Result<AllWords> {
        AllWords words;
        for (const std::string& path : paths) {
          words.push_back(path.empty() ? OwnWords() : read_error_file(path));
        }
        return words;
      });
  if (read) return std::move(*read);
  parts_.log.warning(read.error().message() + "; the report does not show their contents");
  return AllWords(paths.size());
}

// Marks a SIGKILL that ddprun did not send as a likely lack of memory, unless the control group
// has already told the cause.
void NodeWorkers::look_for_want_of_memory(WorkerEnd& end) const {
  const bool may_be = end.kind == EndKind::kSignaled && end.code == SIGKILL &&
                      end.out_of_memory == OutOfMemory::kNo && events_.is_running();
  if (may_be && oom_kills_of_machine() > oom_kills_before_) {
    end.out_of_memory = OutOfMemory::kLikely;
  }
}

// The WorkerProcess collects its worker's own end. While such a worker waits to be collected,
// waitid() shows no child that comes after it. But that worker's end leads to another call of
// this function.
void NodeWorkers::reap_orphans() {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const bool is_worker = std::ranges::any_of(workers_, [&](const auto& worker) {
      return worker->is_open() && worker->pid() == info.si_pid;
    });
    if (is_worker) return;
    waitpid(info.si_pid, nullptr, 0);
    info = {};
  }
}

bool NodeWorkers::are_gone() {
  reap_orphans();
  if (!signalled_.empty()) signal_new_children(signal_, signalled_);
  // The tree counts as empty only when every end has been reported, also of workers that never
  // started.
  if (has_children() || !newly_ended_.empty() || !not_started_.empty()) return false;
  if (count_open() > 0) return false;
  for (const auto& worker : workers_) worker->finish_output();
  return true;
}

void NodeWorkers::resume_outputs() {
  for (const auto& worker : workers_) worker->resume_output();
}

void NodeWorkers::resize_terminals(ScreenSize size) {
  if (!config_.options.pty) return;
  for (const auto& worker : workers_) worker->resize_terminal(size);
}

void NodeWorkers::type(std::string_view bytes) {
  for (const auto& worker : workers_) worker->type(bytes);
}

bool NodeWorkers::has_open(Rank rank) const {
  return std::ranges::any_of(
      workers_, [&](const auto& worker) { return worker->is_open() && worker->rank() == rank; });
}

int NodeWorkers::count_open() const {
  return static_cast<int>(
      std::ranges::count_if(workers_, [](const auto& worker) { return worker->is_open(); }));
}

std::vector<WorkerView> NodeWorkers::views() const {
  std::vector<WorkerView> views;
  for (const auto& worker : workers_) {
    views.push_back(worker->view());
    if (pages_) views.back().step = pages_->step_of(worker->local_rank().value);
  }
  return views;
}

const std::vector<RankRow>& NodeWorkers::ranks() {
  const TimePoint now = BootClock::now();
  if (const std::vector<RankRow>* recent = rank_table_.recent(now)) return *recent;
  const std::vector<GpuUse> gpus = gpu_table_.use(now);
  std::vector<RankTable::Source> sources;
  for (const auto& worker : workers_) {
    const auto i = static_cast<std::size_t>(worker->local_rank().value);
    sources.push_back({.worker = worker->view(),
                       .page = pages_ ? &(*pages_)[worker->local_rank().value] : nullptr,
                       .lives = worker->is_open(),
                       .gpu = i < gpus.size() ? gpus[i] : GpuUse()});
  }
  return rank_table_.sample(sources, now);
}

std::vector<std::optional<PageSample>> NodeWorkers::samples() const {
  std::vector<std::optional<PageSample>> samples;
  for (const auto& worker : workers_) {
    const bool reports = pages_ && worker->is_open();
    samples.push_back(reports ? std::optional(pages_->sample_of(worker->local_rank().value))
                              : std::nullopt);
  }
  return samples;
}

std::vector<std::vector<StepEntry>> NodeWorkers::marks() const {
  std::vector<std::vector<StepEntry>> marks(workers_.size());
  for (const auto& worker : workers_) {
    const int rank = worker->local_rank().value;
    if (pages_ && worker->is_open()) marks[static_cast<std::size_t>(rank)] = pages_->marks_of(rank);
  }
  return marks;
}

std::vector<RankShares> NodeWorkers::step_shares() const {
  std::vector<RankShares> all;
  for (const auto& worker : workers_) {
    if (!pages_ || !worker->is_open() || all.size() == kMaxReportedWorkers) continue;
    const LocalRank rank = worker->local_rank();
    if (const auto shares = read_step_shares((*pages_)[rank.value])) all.push_back({rank, *shares});
  }
  return all;
}

std::vector<WorkerSnapshot> NodeWorkers::snapshots() const {
  std::vector<WorkerSnapshot> seen;
  for (const auto& worker : workers_) {
    if (!worker->is_open()) continue;
    const LocalRank rank = worker->local_rank();
    seen.push_back(snapshot_of(rank, pages_ ? &(*pages_)[rank.value] : nullptr, BootClock::now()));
    seen.back().pid = worker->pid();
    seen.back().stderr_tail = worker->stderr_tail();
  }
  return seen;
}

std::vector<RankFlight> NodeWorkers::flights(std::optional<Rank> rank) const {
  std::vector<RankFlight> flights;
  const std::size_t most = FlightFile::kMaxCalls / std::max<std::size_t>(workers_.size(), 1);
  for (const auto& worker : workers_) {
    if (rank && worker->rank() != *rank) continue;
    const WorkerView view = worker->view();
    RankFlight flight{.rank = view.rank,
                      .local_rank = view.local_rank,
                      .host = host_name(),
                      .pid = view.pid,
                      .lives = worker->is_open(),
                      .state = view.state,
                      .generation = generation_.value};
    complete_flight(pages_ ? &(*pages_)[view.local_rank.value] : nullptr, most,
                    flight.lives ? working_process(view.pid) : 0, flight);
    flights.push_back(std::move(flight));
  }
  return flights;
}

void NodeWorkers::save_flights() {
  // Without --log-dir the log directory is removed at the end, so nothing is saved there.
  const bool is_kept = !attempt_directory_.empty() && config_.scratch_directory.empty();
  const bool ended_well =
      std::ranges::all_of(workers_, [](const auto& worker) { return worker->ended_well(); });
  if (!is_kept || ended_well) return;
  std::vector<RankFlight> flights = this->flights(std::nullopt);
  const bool has_calls =
      std::ranges::any_of(flights, [](const RankFlight& flight) { return flight.call_count > 0; });
  if (!has_calls) return;
  parts_.log.info("the last calls of this node's ranks: ddprun flight " + attempt_directory_ + "/" +
                  FlightFile::kName);
  log_failure(flight_file_.save(attempt_directory_, std::move(flights)));
}

void NodeWorkers::finish_flight_file() { log_failure(flight_file_.finish()); }

void NodeWorkers::log_failure(const Result<void>& written) const {
  if (!written) parts_.log.warning("cannot save a flight record: " + written.error().message());
}

std::optional<std::int64_t> NodeWorkers::highest_step() const {
  return pages_ ? pages_->highest_step() : std::nullopt;
}

WorkTimes NodeWorkers::times() const {
  return pages_ ? pages_->times(BootClock::now()) : WorkTimes();
}

}  // namespace ddprun
