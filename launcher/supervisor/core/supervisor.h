// Supervisor: the state machine of one node. Its input is the service's directives, the ends of
// workers and the user's signals. From these it decides when to start, stop and kill workers,
// and what to report to the service.
//
// Owner: Agent (launcher/agent/agent.h), on its one thread. Pure: no process, no clock, no
// socket. The agent turns each occurrence into one Event and performs the Actions in order.
//
// A waiting node remembers the newest generation that it has been told of, even if it has no
// part in it. That generation may still run elsewhere. A service that has lost its state must
// not begin another one meanwhile.
//
// States:
//   kIdle       no process of any generation is left; waits for a directive
//   kChecking   --node-check: the node is checked before it starts workers. For the service it runs
//   kRunning    workers run
//   kStopping   workers were told to end, or killed; waits until no descendant is left
//   kFinished   every worker has reached its end and nothing is left; waits for the job's verdict
//   kExited     the Exit action was returned; only LeaveAtOnce may follow
//
//   event              kIdle         kRunning            kStopping           kFinished
//   Assignment g new   -> kRunning,  -                   -                   -
//                      or kChecking
//   Stop g             confirm       stop -> kStopping   run again, if all   confirm -> kIdle
//                                                        workers succeeded
//   Stop older than g  confirm       -                   -                   -
//   Stop g at once     as Stop g     kill -> kStopping   kill                as Stop g
//   Stop g with look   as Stop g     look, then stop     -                   as Stop g
//   workers hang       -             look, then report   -                   -
//   ForwardSignal of g -             forward; the        -                   -
//                                    checkpoint signal
//                                    to all: see below
//   End                exit          stop, then exit     remember, exit      exit
//   worker failed      -             stop -> kStopping   note as a victim    -
//   last one ended 0,  -             clean up, then      note                -
//    or after its end                -> kFinished
//   tree is empty      -             (not before the     -> kIdle, or exit   -
//                                    last worker ended)
//   user's signal      leave, exit   forward, leave      leave; a second     leave, exit
//                                    -> kStopping        SIGINT kills
//   service lost       -             kill -> kStopping   kill                -
//    for good, refused exit          kill -> kStopping   kill, then exit     exit
//   guardian lost      leave, exit   kill -> kStopping   kill, then exit     leave, exit
//   checkpoint         -             report, at most     -                   -
//   announced                        once in each
//                                    kCheckpointPause
//   grace is over      -             -                   kill                -
//   kill had no effect -             -                   leave, exit         -
//   SIGTSTP, SIGCONT   -             suspend, resume     -                   -
//   SIGTERM, if it     leave, exit   checkpoint signal   leave; remember if  remember; leave,
//    asks for a save                 to the workers;     all workers         exit after the
//                                    SIGTERM late in     succeeded           grace
//                                    the grace, SIGKILL
//                                    after it
//   SIGUSR1, SIGUSR2   -             to the workers      -                   -
//   checkpoint signal  leave, exit   to the workers;     leave, exit         remember
//                                    once
//
// kChecking ends with NodeChecked: a fit node goes to kRunning. One that is not fit goes to kIdle,
// reports why, and is never given workers again. Every other event has there the effect that it has
// in kIdle. But Wait, Assignment and a Stop of an older generation have none. A checkpoint signal
// is remembered until the check has ended. A lost service ends the check.
//
// "Look" means to inspect the workers (LookAtWorkers). "For good" means that the agent will not
// wait for the service. "Refused" means that the service does not accept this node.
//
// Workers that are being stopped also get the user's first signal, unless it is SIGTERM, which
// they got already.
//
// --checkpoint-signal asks the workers to save and to leave. If all of them then end with 0,
// the exit code of every node says that the job must be started again. Until then the run is an
// ordinary one, and a failure in it counts as a failure. Workers of a later generation are
// asked as soon as they are started. A worker that dies of the signal itself has no handler for
// it; the node then leaves.
//
// Priorities: the loss of the guardian or the service overrides the grace. The first signal of
// the user and the first verdict decide the exit code; later ones never replace them.
//
// One action of a user may deliver the same signal in two ways. `killall -INT ddprun` and
// systemd signal guardian and agent, and the guardian forwards its copy. So a SIGINT counts as
// the second one, which kills, only in two cases. Either an earlier SIGINT came the same way, or
// another signal came before it. No clock is needed.
//
// A worker that dies of SIGTERM, SIGINT, SIGHUP or SIGQUIT may have got the signal together
// with its agent: Slurm signals a whole job at once. The report of such a death waits for
// kSignalHoldBack. If the agent gets a signal in that time, the death was an order and not a
// failure.
//
// Invariants:
// - There is no StartWorkers while a process of an earlier generation may live.
// - Generations only grow.
// - There is at most one Exit.
// - kStopping always has a deadline. kRunning has one only while the report of a death or of a
//   checkpoint waits, or after a SIGTERM that asks for a save. After that every state has one.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/client/core/agent_link.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// --- events --------------------------------------------------------------------------------------

// Workers ended, with or without success. Ends that are seen at the same instant come in one
// event, because their order has no meaning. The agent fills in what it can observe. The
// supervisor adds rank and node, and whether the worker was being stopped.
struct WorkersEnded {
  std::vector<WorkerEnd> workers;
};
struct TreeEmpty {};  // the agent has no descendant left
struct UserSignal {
  // How the signal came. kGuardian: the guardian forwarded it. kDirect: it was sent to the
  // agent. kManager: Slurm sent it to every process of the step, so the workers got it already.
  enum class Way { kGuardian = 0, kDirect = 1, kManager = 2 };
  // kStop: a person has asked ddprun to stop the job here; nothing is saved.
  enum class Meaning { kSignal, kStop };
  int signal = 0;
  Way way = Way::kGuardian;
  Meaning meaning = Meaning::kSignal;
};
struct GuardianLost {};
// The result of CheckNode.
struct NodeChecked {
  Generation generation{0};
  std::string fault;  // what is wrong with the node, in one line; empty: it is fit
};
// A worker has announced a complete checkpoint in the store of this generation, which this node
// serves.
struct CheckpointAnnounced {
  Generation generation{0};
};
// A worker has shown no activity for longer than --hang-timeout. May be repeated.
struct WorkersHang {};
// The result of LookAtWorkers. The supervisor adds node and rank to each snapshot.
struct WorkersSeen {
  Generation generation{0};
  std::vector<WorkerSnapshot> snapshots;
};
struct Tick {};
using SupervisorEvent =
    std::variant<Wait, Assignment, Stop, End, ForwardSignal, WorkersEnded, TreeEmpty, UserSignal,
                 ServiceLost, ServiceRefused, GuardianLost, NodeChecked, CheckpointAnnounced,
                 WorkersHang, WorkersSeen, Tick>;

// --- actions -------------------------------------------------------------------------------------

// Asks for a check of this node. The agent answers with NodeChecked within seconds. Only
// ReleaseGeneration drops the check.
struct CheckNode {
  Assignment assignment;
};
struct StartWorkers {
  Assignment assignment;
};
struct SignalTree {  // every descendant of the agent
  int signal = 0;
};
struct KillTree {};
struct SuspendTree {};  // SIGSTOP, until ResumeTree or the next SignalTree
struct ResumeTree {};
// Signals only the workers, not the processes that they started. With `rank`, only that worker.
struct SignalWorkers {
  int signal = 0;
  std::optional<LocalRank> rank = {};
};
// Asks for an inspection of the workers. The agent answers with WorkersSeen within seconds.
struct LookAtWorkers {};
struct ReleaseGeneration {};  // nothing of it is left: close its store, prepare for the next one
struct SendStatus {};         // Supervisor::status()
struct SendLeave {
  Leave leave;
};
struct Say {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string text;
};
struct ReportRestart {  // the previous generation failed
  Verdict failed;
};
struct Exit {
  int code = 0;
  std::optional<Verdict> verdict;  // to report: the service's, or what this node knows without it
};
struct LeaveAtOnce {};  // after Exit: a service in this process waits for no other node any more
using SupervisorAction = std::variant<CheckNode, StartWorkers, SignalTree, KillTree, SuspendTree,
                                      ResumeTree, SignalWorkers, LookAtWorkers, ReleaseGeneration,
                                      SendStatus, SendLeave, Say, ReportRestart, Exit, LeaveAtOnce>;
using SupervisorActions = std::vector<SupervisorAction>;

struct SupervisorOptions {
  std::string host;
  int slots = 1;
  Duration grace{};           // from the first signal to SIGKILL
  Duration kill_timeout{};    // from SIGKILL until it gives up on a process
  int checkpoint_signal = 0;  // --checkpoint-signal; 0: none
  // SIGTERM asks the workers to save and to leave within the grace. REQUIRES: a checkpoint_signal.
  bool saves_on_term = false;
  int max_restarts = 0;      // for reports
  bool checks_node = false;  // before each generation
};

class Supervisor {
 public:
  enum class State { kIdle, kChecking, kRunning, kStopping, kFinished, kExited };
  using enum State;
  static constexpr Duration kSignalHoldBack = std::chrono::milliseconds(200);
  static constexpr Duration kCheckpointPause = std::chrono::seconds(1);

  explicit Supervisor(SupervisorOptions options);

  // Handles one event. Returns the actions, which the agent must perform in order.
  SupervisorActions step(const SupervisorEvent& event, TimePoint now);

  // Returns when a Tick is due; nullopt: none is due before another event.
  std::optional<TimePoint> deadline() const;

  // Returns the status for the service. The agent fills in the store's port.
  AgentStatus status(TimePoint now) const;

  // Returns the last assignment; nullopt: none yet.
  const std::optional<Assignment>& assignment() const { return assignment_; }

  State state() const { return state_; }

  // Returns whether a check has found that this node must not run workers.
  bool is_unfit() const { return !unfit_.empty(); }

 private:
  using enum Say::Level;

  void act(SupervisorAction action) { out_.push_back(std::move(action)); }
  void say(Say::Level level, std::string text) { act(Say{level, std::move(text)}); }

  void miss(Generation generation);
  void on(const Wait& wait);
  void on(const Assignment& assignment);
  void on(const Stop& stop);
  void on(const End& end);
  void on(const ForwardSignal& forward_signal);
  void on(const WorkersEnded& ended);
  void on(const TreeEmpty&);
  void on(const UserSignal& signal);
  void on(const ServiceLost& lost);
  void on(const ServiceRefused& refused);
  void on(const GuardianLost&);
  void on(const NodeChecked& checked);
  void on(const CheckpointAnnounced& announced);
  void on(const WorkersHang&);
  void on(const WorkersSeen& seen);
  void on(const Tick&);

  void end_check();
  void start_workers();
  void signal_workers(int signal, std::optional<LocalRank> rank);
  void relay(const UserSignal& signal);
  void ask_to_save(const UserSignal& signal);
  bool insists(const UserSignal& signal);
  void leave(const UserSignal& signal);
  void signal_to_save(const UserSignal& signal);
  bool may_still_save() const;
  void save_on_term(const UserSignal& signal);
  void give_up_saving();
  bool died_of(int signal) const;
  bool died_of_being_asked() const;
  std::optional<Verdict> own_verdict(std::string headline) const;
  bool has_workers() const { return state_ == kRunning || state_ == kStopping; }
  void look();
  void take_down_who_left();
  void add_who_left(AgentStatus& status, TimePoint now) const;
  void take_down(const WorkersEnded& ended);
  void declare_failure();
  // kYes: the workers got the signal from another sender.
  enum class Known { kNo, kYes };
  void begin_stop(int signal, Known known = Known::kNo);
  void kill();
  // Exits at once if no process is left. Else kills and exits when none is left.
  void exit_killing(int code);
  void finish_exit();

  SupervisorOptions options_;
  TimePoint now_;          // of the event that is being handled
  SupervisorActions out_;  // what it has led to so far
  State state_ = kIdle;
  Generation generation_{-1};
  std::optional<Assignment> assignment_;
  std::string unfit_;        // why a check found this node unfit; empty: none has
  int alive_ = 0;            // workers of this generation that have not ended
  bool stop_asked_ = false;  // workers that end from now on are victims
  bool all_well_ = false;    // every worker ended with 0; what they left running is being removed
  bool killed_ = false;
  std::vector<DatedEnd> ends_;
  // Workers that exited with 0, or crashed after the end of their program, before the stop.
  std::vector<DatedEnd> left_;
  std::set<std::pair<int, int>> asked_for_;  // signals sent on request, and to which local rank
  std::int64_t checkpoints_ = 0;             // number announced in this generation
  TimePoint checkpoint_reported_;            // when one was last reported to the service
  bool checkpoint_due_ = false;              // one was announced after that
  bool looking_ = false;                     // LookAtWorkers has no answer yet
  std::optional<Stop> stop_then_;            // a Stop with `look`, to be handled after the answer
  std::vector<WorkerSnapshot> snapshots_;
  std::optional<TimePoint> hold_back_until_;
  std::optional<TimePoint> stop_deadline_;  // grace, then kill timeout
  int leaving_ = 0;                         // the user's first signal; 0: none
  bool suspended_ = false;
  bool asked_to_save_ = false;
  // The request to save that SIGTERM is: its way, when SIGTERM goes to workers that still run, and
  // when they are killed.
  struct SaveOnTerm {
    UserSignal::Way way;
    TimePoint terminate;
    TimePoint kill;
  };
  std::optional<SaveOnTerm> save_on_term_;
  std::array<bool, 3> interrupted_{};  // by UserSignal::Way: a SIGINT came this way
  std::optional<int> exit_code_;       // decided; returned when no process is left
  std::optional<Verdict> verdict_;
  std::string leave_reason_;  // what the service is told if this node leaves without a signal
  std::string last_wait_;
};

}  // namespace ddprun
