// Supervisor: the state machine of one node. It turns the service's directives, the ends of workers
// and the user's signals into starting, stopping and killing workers, and into what the service is
// told.
//
// Owner: Agent (launcher/agent/agent.h), on its one thread. Pure: no process, no clock, no socket. The
// agent turns each happening into one Event and performs the Actions in order.
//
// A node that waits remembers the newest generation it has been told of: after one in which it had no
// part a service that has forgotten all must not begin another one while that may still run elsewhere.
//
// States
//   kIdle       no process of any generation is left; a directive is awaited
//   kRunning    workers run
//   kStopping   workers were told to end (or killed); waiting until no descendant is left
//   kFinished   every worker has reached its end and nothing is left; the job's verdict is awaited
//   kExited     the Exit action was given out; nothing happens any more
//
//   event              kIdle         kRunning            kStopping           kFinished
//   Assignment g new   -> kRunning   -                   -                   -
//   Stop g             confirm       stop -> kStopping   run again, if well  confirm -> kIdle
//   Stop older than g  confirm       -                   -                   -
//   Stop g at once     as Stop g     kill -> kStopping   kill                as Stop g
//   Stop g and look    as Stop g     look, then stop     -                   as Stop g
//   workers hang       -             look, then tell     -                   -
//   ForwardSignal of g        -             pass on; the        -                   -
//                                    checkpoint signal
//                                    to all: as below
//   End                exit          stop, then exit     remember, exit      exit
//   worker ended badly -             stop -> kStopping   note as a victim    -
//   last one ended 0,  -             clean up, then      note                -
//    or past its end                 -> kFinished
//   tree is empty      -             (only after the     -> kIdle, or exit   -
//                                    last worker)
//   user's signal      leave, exit   pass on, leave      leave; a 2nd        leave, exit
//                                    -> kStopping        SIGINT kills
//   service lost       -             kill -> kStopping   kill                -
//    for good, refused exit          kill -> kStopping   kill, then exit     exit
//   guardian lost      leave, exit   kill -> kStopping   kill, then exit     leave, exit
//   checkpoint         -             tell, at most each  -                   -
//   announced                        kCheckpointPause
//   grace is over      -             -                   kill                -
//   kill had no effect -             -                   leave, exit         -
//   SIGTSTP, SIGCONT   -             stop all, go on     -                   -
//   SIGUSR1, SIGUSR2   -             to the workers      -                   -
//   checkpoint signal  leave, exit   to the workers;     leave, exit         leave, exit
//                                    once
//
// Workers that are being stopped get the user's first signal, too, unless it is SIGTERM, which they
// have had. "For good": the agent will not wait for the service; "refused": the service will not
// have this node.
//
// --checkpoint-signal asks the workers to save and to leave. When all of them then end with 0, the exit
// code of every node says that the job is to be started again; until then it is an ordinary run, whose
// failure is one, and the workers that follow are asked as soon as they are started. A worker that dies of the signal itself did not know it: the node leaves.
//
// Priorities: a lost guardian or service beats grace; the first user's signal and the first verdict
// decide the exit code and are never replaced by later ones.
//
// One action of a user may bring the same signal on two ways: `killall -INT ddprun` and systemd
// signal guardian and agent, and the guardian passes its copy on. So a SIGINT is the second one,
// which kills, when it comes on the way of an earlier one, or after another signal; no clock needed.
//
// A worker that dies of SIGTERM, SIGINT, SIGHUP or SIGQUIT may have got it together with its agent
// (Slurm signals a whole job at once). Such a death is held back for kSignalHoldBack; if the agent
// gets the signal in that time, the death was an order, not a failure.
//
// Invariants: no Start while a process of an earlier generation may live; generations only grow; at
// most one Exit; kStopping always has a deadline, kRunning only while a death is held
// back or a checkpoint is to be told.
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

// Workers ended, also well; those seen at the same instant come in one event, because their order
// says nothing. Of each what can be seen of it: its rank, its node, and whether it was stopped, the
// supervisor adds.
struct WorkersEnded {
  std::vector<WorkerEnd> workers;
};
struct TreeEmpty {};  // the agent has no descendant left
struct UserSignal {
  // Passed on by the guardian; sent to the agent; sent by Slurm to every process of the step, so that
  // the workers have it already.
  enum class Way { kGuardian = 0, kDirect = 1, kManager = 2 };
  int signal = 0;
  Way way = Way::kGuardian;
};
struct GuardianLost {};
// A worker has said in the store of this generation, which lives here, that a checkpoint is whole.
struct CheckpointAnnounced {
  Generation generation{0};
};
// A worker has done nothing for longer than --hang-timeout. May be told again.
struct WorkersHang {};
// What LookAtWorkers has seen; of each what can be seen of it: its node and rank the supervisor adds.
struct WorkersSeen {
  Generation generation{0};
  std::vector<WorkerSnapshot> snapshots;
};
struct Tick {};
using SupervisorEvent = std::variant<Wait, Assignment, Stop, End, ForwardSignal, WorkersEnded, TreeEmpty,
                                     UserSignal, ServiceLost, ServiceRefused, GuardianLost,
                                     CheckpointAnnounced, WorkersHang, WorkersSeen, Tick>;

// --- actions -------------------------------------------------------------------------------------

struct StartWorkers {
  Assignment assignment;
};
struct SignalTree {  // every descendant of the agent
  int signal = 0;
};
struct KillTree {};
struct SuspendTree {};  // SIGSTOP, until ResumeTree or the next SignalTree
struct ResumeTree {};
// The workers alone, not what they have started; or the one of this rank.
struct SignalWorkers {
  int signal = 0;
  std::optional<LocalRank> rank = {};
};
// To be answered by WorkersSeen, within seconds.
struct LookAtWorkers {};
struct ReleaseGeneration {};  // nothing is left of it: close its store, make ready for the next
struct SendStatus {};         // Supervisor::status()
struct SendLeave {
  Leave leave;
};
struct Say {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string text;
};
struct ReportRestart {  // of the generation before, which failed
  Verdict failed;
};
struct Exit {
  int code = 0;
  std::optional<Verdict> verdict;  // to be reported: the service's, or what is known without it
};
using SupervisorAction =
    std::variant<StartWorkers, SignalTree, KillTree, SuspendTree, ResumeTree, SignalWorkers,
                 LookAtWorkers, ReleaseGeneration, SendStatus, SendLeave, Say, ReportRestart, Exit>;
using SupervisorActions = std::vector<SupervisorAction>;

struct SupervisorOptions {
  std::string host;
  int slots = 1;
  Duration grace{};           // between the first signal and SIGKILL
  Duration kill_timeout{};    // between SIGKILL and giving up on a process
  int checkpoint_signal = 0;  // --checkpoint-signal; 0: none
  int max_restarts = 0;       // for reports
};

class Supervisor {
 public:
  enum class State { kIdle, kRunning, kStopping, kFinished, kExited };
  static constexpr Duration kSignalHoldBack = std::chrono::milliseconds(200);
  static constexpr Duration kCheckpointPause = std::chrono::seconds(1);

  explicit Supervisor(SupervisorOptions options);

  SupervisorActions step(const SupervisorEvent& event, TimePoint now);

  // When a Tick is due; nullopt: not before another event.
  std::optional<TimePoint> deadline() const;

  // What the service is to know. The store's port is the agent's to fill in.
  AgentStatus status(TimePoint now) const;

  // The last assignment it was given; nullopt: none yet.
  std::optional<Assignment> assignment() const {
    return assignment_.generation < Generation(0) ? std::nullopt : std::optional(assignment_);
  }

  State state() const { return state_; }

 private:
  void on(const Wait& wait, TimePoint now, SupervisorActions& out);
  void on(const Assignment& assignment, TimePoint now, SupervisorActions& out);
  void on(const Stop& stop, TimePoint now, SupervisorActions& out);
  void on(const End& end, TimePoint now, SupervisorActions& out);
  void on(const ForwardSignal& forward_signal, TimePoint now, SupervisorActions& out);
  void on(const WorkersEnded& ended, TimePoint now, SupervisorActions& out);
  void on(const TreeEmpty&, TimePoint now, SupervisorActions& out);
  void on(const UserSignal& signal, TimePoint now, SupervisorActions& out);
  void on(const ServiceLost& lost, TimePoint now, SupervisorActions& out);
  void on(const ServiceRefused& refused, TimePoint now, SupervisorActions& out);
  void on(const GuardianLost&, TimePoint now, SupervisorActions& out);
  void on(const CheckpointAnnounced& announced, TimePoint now, SupervisorActions& out);
  void on(const WorkersHang&, TimePoint now, SupervisorActions& out);
  void on(const WorkersSeen& seen, TimePoint now, SupervisorActions& out);
  void on(const Tick&, TimePoint now, SupervisorActions& out);

  void signal_workers(int signal, std::optional<LocalRank> rank, SupervisorActions& out);
  void relay(const UserSignal& signal, SupervisorActions& out);
  void ask_to_save(const UserSignal& signal, SupervisorActions& out);
  void tell_to_save(const UserSignal& signal, SupervisorActions& out) const;
  bool died_of_being_asked() const;
  std::optional<Verdict> own_verdict(std::string headline, TimePoint now) const;
  bool has_workers() const { return state_ == State::kRunning || state_ == State::kStopping; }
  void look(SupervisorActions& out);
  void take_down_who_left();
  void tell_who_left(AgentStatus& status, TimePoint now) const;
  void take_down(const WorkersEnded& ended, TimePoint now, SupervisorActions& out);
  void declare_failure(TimePoint now, SupervisorActions& out);
  // known: the workers have the signal from somebody else.
  enum class Known { kNo, kYes };
  void begin_stop(int signal, TimePoint now, SupervisorActions& out, Known known = Known::kNo);
  void kill(TimePoint now, SupervisorActions& out);
  // Exits at once where nothing runs, else kills and exits when nothing is left.
  void exit_killing(int code, TimePoint now, SupervisorActions& out);
  void finish_exit(SupervisorActions& out);

  SupervisorOptions options_;
  State state_ = State::kIdle;
  Generation generation_{-1};
  Assignment assignment_{.generation = Generation(-1)};
  int alive_ = 0;            // workers of this generation that have not ended
  bool stop_asked_ = false;  // ends from now on are victims
  bool all_well_ = false;    // every worker ended with 0; leftovers are being removed
  bool killed_ = false;
  std::vector<DatedEnd> ends_;
  // Workers that exited with 0, or crashed after their program's end, before the stop.
  std::vector<DatedEnd> left_;
  std::set<std::pair<int, int>> asked_for_;  // signals sent on request, and to which local rank
  std::int64_t checkpoints_ = 0;             // announced in this generation
  TimePoint checkpoint_told_;                // when the service was told of one last
  bool checkpoint_due_ = false;              // one was announced since
  bool looking_ = false;                     // LookAtWorkers is not answered yet
  std::optional<Stop> stop_then_;            // was told with Stop::look, for when it is
  std::vector<WorkerSnapshot> snapshots_;
  std::optional<TimePoint> hold_back_until_;
  std::optional<TimePoint> stop_deadline_;  // grace, then kill timeout
  int leaving_ = 0;                         // the user's signal
  bool suspended_ = false;
  bool asked_to_save_ = false;
  std::array<bool, 3> interrupted_{};  // by UserSignal::Way: a SIGINT has come on it
  std::optional<int> exit_code_;       // decided; given out when nothing is left
  std::optional<Verdict> verdict_;
  std::string leave_reason_;  // what the service is told when no signal made us leave
  std::string last_wait_;
};

}  // namespace ddprun
