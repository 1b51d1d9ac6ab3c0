// NodeWorkers: the workers of the present generation on this node, and whatever they have started.
//
// It owns the workers, makes one report of those that end together, and knows which processes below
// the agent have been told of a signal, so that latecomers are told, too. When somebody is started
// or stopped is the supervisor's to say.
//
// Owner: Agent, on its one thread, like the functions it is given. The agent is a child subreaper.
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
#include "launcher/control/protocol.h"
#include "launcher/flight/core/record.h"
#include "launcher/flight/file.h"
#include "launcher/hang/worker_pages.h"
#include "launcher/process/file_work.h"
#include "launcher/supervisor/core/supervisor.h"
#include "launcher/worker/files.h"
#include "launcher/worker/worker.h"

namespace ddprun {

struct AgentConfig;

// Parts of the agent that workers use; all of them outlive NodeWorkers.
struct NodeWorkersParts {
  boost::asio::io_context& io;
  Logger& log;
  ConsoleWriter& console;
  LogWriter& logs;
  InterruptTracebacks& interrupts;
  JsonLines& json;
  FileWork& files;
  std::optional<rlimit> descriptor_limit;  // what workers get
};

struct NodeWorkersEvents {
  // From the io_context. Also those that could not be started.
  std::function<void(const WorkersEnded&)> ended;
  // Whether nobody has told the workers to end.
  std::function<bool()> is_running;
};

class NodeWorkers {
 public:
  // REQUIRES: config outlives it.
  NodeWorkers(const AgentConfig& config, const NodeWorkersParts& parts, NodeWorkersEvents events);

  // Starts those of a generation. instance: Welcome's. control: that keeps their last output.
  // REQUIRES: none is left of an earlier one.
  void start(const Assignment& assignment, const std::string& instance, ControlServer& control);
  // Their processes have ended, or cannot be ended. Nothing of them is reported any more. Where they have
  // recorded calls, and one of them has not ended well, their flight records go to a file beside their logs.
  void let_go();
  // What is being written of that is waited for, not for long.
  void finish_flight_file();

  // To every descendant of the agent.
  void signal_tree(int signal);
  void kill_tree();
  // To the workers alone, not what they have started; or to the one of this rank.
  void signal(int signal, std::optional<LocalRank> rank);

  // Reaps adopted orphans: a child of the agent has ended.
  void reap_orphans();
  // While all are to end: tells latecomers of the last signal. Returns whether no process is left
  // and every end has been reported; then all of their output has been taken.
  bool are_gone();

  // The console or a log file has room again.
  void resume_outputs();
  // --pty: the terminal has another size.
  void resize_terminals(ScreenSize size);
  // What was typed, for the worker that gets it; empty: its end.
  void type(std::string_view bytes);

  bool has_open(Rank rank) const;
  int count_open() const;
  std::vector<WorkerView> views() const;

  // What the pages say: by local rank, nullopt for those that have ended; of those that live; the
  // highest step that any has reported.
  std::vector<std::optional<PageSample>> samples() const;
  std::vector<WorkerSnapshot> snapshots() const;
  std::optional<std::int64_t> highest_step() const;
  // The newest calls of each, or of the one of `rank`, also of those that have ended;
  // FlightFile::kMaxCalls in all.
  std::vector<RankFlight> flights(std::optional<Rank> rank) const;

 private:
  Result<void> start(Worker& worker, const Assignment& assignment, ControlServer& control);
  void ended(std::shared_ptr<Worker> worker);
  std::string attempt_directory(const Assignment& assignment);
  Result<void> make_directories();
  std::vector<OwnWords> last_words_of(const std::vector<std::shared_ptr<Worker>>& ended);
  // As FileWork::run() for the user's --log-dir; calls `body` at once for the temporary directory.
  template <class T>
  Result<T> with_files(const std::string& doing, std::function<Result<T>()> body);
  void look_for_want_of_memory(WorkerEnd& end) const;
  void save_flights();
  void say_trouble(const Result<void>& written) const;

  const AgentConfig& config_;
  NodeWorkersParts parts_;
  NodeWorkersEvents events_;
  std::optional<WorkerPages> pages_;  // nullopt: none can be had
  std::string attempt_directory_;     // of the log files; empty: there is none
  std::set<int> attempts_;            // that have had a directory
  FlightFile flight_file_;
  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::shared_ptr<Worker>> newly_ended_;  // not reported yet
  std::vector<WorkerEnd> not_started_;                // not reported yet
  std::set<pid_t> told_;  // what was below this agent when told_signal_ was sent, and latecomers
  int told_signal_ = 0;
  long oom_kills_before_ = 0;  // of this machine, when this generation was started
};

}  // namespace ddprun
