// Head: the state machine of `ddprun --hosts`. It decides when ssh is started for each host and
// when each far end gets its plan. It also decides who gets signals, what is reported, and when the
// job is over.
//
//   host         event        goes to
//   kWaiting     its turn     kConnecting: ssh runs
//   kConnecting  Greeted      kGreeted: the far end has said its version
//   kGreeted     (endpoint)   kPlanned: it has its plan. Node 0 gets it first, and then tells the
//                             endpoint for the others
//   kPlanned     Ready        kRunning: its agent starts
//   any          SshEnded     kEnded
//
// The job fails with the first host that fails. The other agents then get SIGTERM. A host without
// an agent is disconnected. Pure: the time is an argument. One owner thread.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace ddprun {

struct HeadOptions {
  std::vector<std::string> hosts;  // as the user gave them, by node rank
  std::string version;             // of this ddprun; all others must have it
  std::string program;             // its path, for messages
  Duration connect_timeout{};      // from the start of ssh to the far end's greeting
  Duration grace{};                // from the signal to the end of an agent, before Ready
  // How long the commands that node 0 runs at the end of the job may take.
  Duration end_commands{};
  int at_once = 64;  // how many hosts may connect at a time
};

// --- events -------------------------------------------------------------------------------------

// The far end said hello. address: that by which ssh reached it; empty: not known. machine: unlike
// that of any other host; empty: not known.
struct Greeted {
  int host = 0;
  std::string version;
  std::string program;
  std::string address;
  std::string machine = {};
};
// The far end has accepted its plan. endpoint: of the rendezvous, from node 0 only.
// grace: what its agent allows its workers, by all options and variables of that host.
struct Ready {
  int host = 0;
  std::string endpoint;
  Duration grace{};
};
// The far end cannot start an agent.
struct PlanRefused {
  int host = 0;
  std::string why;
  int exit_code = 0;
};
// The agent has ended. report: what node 0 wrote to --report-file; empty: nothing.
struct AgentEnded {
  int host = 0;
  int exit_code = 0;
  std::string report = {};
};
// The ssh of a host has ended. last_line: what it, or the far end, last wrote to stderr.
struct SshEnded {
  int host = 0;
  int exit_code = 0;
  std::string last_line;
};
// This process got a signal. ends: the signal ends a job.
struct Signalled {
  int number = 0;
  bool ends = false;
};
// A deadline has passed.
struct TimePassed {};
using HeadEvent =
    std::variant<Greeted, Ready, PlanRefused, AgentEnded, SshEnded, Signalled, TimePassed>;

// --- actions ------------------------------------------------------------------------------------

struct Connect {
  int host = 0;
};
// endpoint: empty for node 0. peer: another host, towards which node 0 looks for its own address;
// empty: node 0 uses the address by which ssh reached it.
struct SendPlan {
  int host = 0;
  std::string endpoint;
  std::string peer;
};
struct PassSignal {
  int host = 0;
  int number = 0;
};
// Ends the ssh of a host, at once if `by_force`.
struct Disconnect {
  int host = 0;
  bool by_force = false;
};
struct Report {
  bool is_error = false;
  std::string text;
};
struct Finish {
  int exit_code = 0;
};
using HeadAction = std::variant<Connect, SendPlan, PassSignal, Disconnect, Report, Finish>;

class Head {
 public:
  // How long a far end may take to accept its plan: files are written, the program is looked up.
  static constexpr Duration kReadyPatience = std::chrono::minutes(2);
  // How much longer than the grace an agent may take to end.
  static constexpr Duration kEndPatience = std::chrono::seconds(15);
  // How long an ssh may take to end after Disconnect.
  static constexpr Duration kSshPatience = std::chrono::seconds(2);

  explicit Head(HeadOptions options);

  // Returns the first actions.
  std::vector<HeadAction> start(TimePoint now);
  // Takes an event and returns what to do. After Finish, events have no effect.
  std::vector<HeadAction> step(TimePoint now, const HeadEvent& event);
  // Returns when TimePassed is due. nullopt: not before another event.
  std::optional<TimePoint> deadline() const;
  // Moves all deadlines: for so long no event could be taken.
  void postpone(Duration time);

 private:
  enum class Phase { kWaiting, kConnecting, kGreeted, kPlanned, kRunning, kEnded };
  using enum Phase;
  struct Host {
    Phase phase = kWaiting;
    TimePoint due{};               // of the greeting, or of Ready
    std::string address;           // by which ssh reached it; empty: not known
    std::string machine;           // empty: not known
    std::optional<int> exit_code;  // of its agent
    bool is_disconnected = false;  // by this head
  };

  void on(const Greeted& event);
  void on(const Ready& event);
  void on(const PlanRefused& event);
  void on(const AgentEnded& event);
  void on(const SshEnded& event);
  void on(const Signalled& event);
  void on(const TimePassed&);

  // Starts ssh for as many hosts as may connect at a time.
  void connect_more();
  // Sends the plans that can be sent now.
  void send_plans();
  void send_plan(int host, const std::string& endpoint, const std::string& peer);
  // Reports that a host failed, and disconnects it. The first failure decides the exit code.
  void report(int host, const std::string& why, int exit_code);
  // Reports as report() does, and ends the job.
  void fail(int host, const std::string& why, int exit_code);
  // Sends the signal to all agents, and disconnects hosts that have none.
  void end_all(int signal);
  void disconnect_all(bool by_force);
  void finish_if_all_ended();
  // Returns how long agents may take from now on until the last one has ended.
  Duration patience();
  std::string name_of(int host) const { return options_.hosts[static_cast<std::size_t>(host)]; }
  Host& at(int host) { return hosts_[static_cast<std::size_t>(host)]; }
  int count() const { return static_cast<int>(hosts_.size()); }

  HeadOptions options_;
  std::vector<Host> hosts_;
  std::vector<HeadAction> actions_;  // of this step
  TimePoint now_{};
  TimePoint started_{};
  std::string endpoint_;          // of the rendezvous; empty: not known yet
  std::optional<int> exit_code_;  // of the first failure
  bool is_ending_ = false;        // all agents were told to end
  bool is_finished_ = false;
  int interrupts_ = 0;               // how often Ctrl-C was pressed
  int forces_ = 0;                   // how often all were disconnected
  std::optional<TimePoint> end_by_;  // when agents that still run are told to end, or disconnected
};

}  // namespace ddprun
