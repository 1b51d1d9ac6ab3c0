// NodeWorkers: the workers of the current generation on this node, and all processes that they
// started.
//
// It owns the workers and merges the ends of workers that end together into one report. It knows
// which processes below the agent have got a signal, so that processes that appear later get it
// too. The supervisor decides when workers are started and stopped.
//
// Owner: Agent, on its one thread; the functions it is given run there too. The agent is a child
// subreaper.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "launcher/agent/gpu_table.h"
#include "launcher/agent/rank_table.h"
#include "launcher/control/protocol.h"
#include "launcher/flight/core/record.h"
#include "launcher/flight/file.h"
#include "launcher/hang/worker_pages.h"
#include "launcher/process/file_work.h"
#include "launcher/supervisor/core/supervisor.h"
#include "launcher/worker/files.h"
#include "launcher/worker/worker.h"
#include "rendezvous/protocol/core/step_report.h"

namespace ddprun {

struct AgentConfig;

// Parts of the agent that workers use. All of them outlive NodeWorkers.
struct NodeWorkersParts {
  boost::asio::io_context& io;
  Logger& log;
  ConsoleWriter& console;
  LogWriter& logs;
  InterruptTracebacks& interrupts;
  JsonLines& json;
  FileWork& files;
  std::optional<rlimit> descriptor_limit;  // which workers get back
};

struct NodeWorkersEvents {
  // Called from the io_context when workers have ended or could not be started.
  std::function<void(const WorkersEnded&)> ended;
  // Returns whether the workers run and have not been told to end.
  std::function<bool()> is_running;
};

class NodeWorkers {
 public:
  // REQUIRES: config outlives it.
  NodeWorkers(const AgentConfig& config, const NodeWorkersParts& parts, NodeWorkersEvents events);

  // Starts the workers of a generation. instance: the job's, from Welcome. control: keeps the
  // last output of each worker. REQUIRES: no worker of an earlier generation is left.
  void start(const Assignment& assignment, const std::string& instance, ControlServer& control);
  // Drops the workers. Their processes have ended or cannot be ended. Nothing is reported about
  // them any more. Their flight records are written to a file in their log directory if they
  // recorded calls and one of them did not end successfully.
  void let_go();
  // Waits briefly (FlightFile::kPatience) until that file is written.
  void finish_flight_file();

  // Sends the signal to every descendant of the agent.
  void signal_tree(int signal);
  void kill_tree();
  // Sends the signal to the workers only, not to processes that they started. With `rank`, sends
  // it to that worker only.
  void signal(int signal, std::optional<LocalRank> rank);

  // Reaps orphans that this process has adopted. Call when a child of the agent has ended.
  void reap_orphans();
  // Sends the last signal to processes that appeared since, while all are to end. Returns
  // whether no process is left and every end has been reported. If so, all output has been taken
  // over.
  bool are_gone();

  // Resumes reading output. Call when the console or a log file has room again.
  void resume_outputs();
  // Passes the terminal's new size to the workers' terminals (--pty).
  void resize_terminals(ScreenSize size);
  // Passes typed bytes to the worker that reads them. Empty: end of the input.
  void type(std::string_view bytes);

  bool has_open(Rank rank) const;
  int count_open() const;
  std::vector<WorkerView> views() const;
  // Returns what people are told about each rank. The sample is at most RankTable::kPause old.
  const std::vector<RankRow>& ranks();

  // Return what the worker pages say. samples(): by local rank; nullopt for a worker that has
  // ended. snapshots(): of the workers that live. highest_step(): the highest step that any
  // worker has reported.
  std::vector<std::optional<PageSample>> samples() const;
  std::vector<WorkerSnapshot> snapshots() const;
  std::optional<std::int64_t> highest_step() const;
  std::vector<std::vector<StepEntry>> marks() const;  // of the newest steps, by local rank
  std::vector<RankShares> step_shares() const;        // of the live workers that report them
  WorkTimes times() const;                            // without WorkTimes::stopped
  // Returns the newest calls of each worker, or only of `rank`, also of workers that have ended.
  // At most FlightFile::kMaxCalls calls on this node; each worker gets an equal share.
  std::vector<RankFlight> flights(std::optional<Rank> rank) const;

 private:
  void ended(std::shared_ptr<Worker> worker);
  std::string attempt_directory(const Assignment& assignment);
  Result<void> make_directories();
  std::vector<OwnWords> last_words_of(const std::vector<std::shared_ptr<Worker>>& ended);
  // Runs `body` by FileWork::run() if the files are in the user's --log-dir. Calls it directly
  // if they are in the temporary directory.
  template <class T>
  Result<T> with_files(const std::string& doing, std::function<Result<T>()> body);
  void look_for_want_of_memory(WorkerEnd& end) const;
  void save_flights();
  void log_failure(const Result<void>& written) const;

  const AgentConfig& config_;
  NodeWorkersParts parts_;
  NodeWorkersEvents events_;
  std::optional<WorkerPages> pages_;  // nullopt: could not be created
  std::string attempt_directory_;     // of the log files; empty: no log files
  Generation generation_{0};
  std::set<int> attempts_;  // that have had a log directory
  FlightFile flight_file_;
  RankTable rank_table_;
  GpuTable gpu_table_;
  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::shared_ptr<Worker>> newly_ended_;  // not reported yet
  std::vector<WorkerEnd> not_started_;                // not reported yet
  std::set<pid_t> signalled_;  // descendants that got signal_, later ones included
  int signal_ = 0;
  long oom_kills_before_ = 0;  // of the machine, when this generation started
};

}  // namespace ddprun
