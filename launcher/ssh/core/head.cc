#include "launcher/ssh/core/head.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/concat.h"
#include "base/counted.h"
#include "base/exit_codes.h"
#include "base/host_port.h"
#include "launcher/ssh/core/host_list.h"

namespace ddprun {
namespace {

constexpr int kNotFound = 127;   // of a shell that does not find the program
constexpr int kSshFailed = 255;  // of ssh itself

// Returns whether other hosts may reach this address.
bool is_reachable(const std::string& address) {
  return !address.empty() && !is_loopback_host(address) && !is_link_local(address);
}

std::string with_reason(std::string text, const std::string& reason) {
  return reason.empty() ? text : text + ": " + reason;
}

}  // namespace

Head::Head(HeadOptions options) : options_(std::move(options)), hosts_(options_.hosts.size()) {}

std::vector<HeadAction> Head::start(TimePoint now) {
  now_ = started_ = now;
  connect_more();
  return std::exchange(actions_, {});
}

std::vector<HeadAction> Head::step(TimePoint now, const HeadEvent& event) {
  if (is_finished_) return {};
  now_ = now;
  std::visit([this](const auto& one) { on(one); }, event);
  if (!is_ending_) connect_more();
  if (!is_ending_) send_plans();
  finish_if_all_ended();
  return std::exchange(actions_, {});
}

std::optional<TimePoint> Head::deadline() const {
  std::optional<TimePoint> first = end_by_;
  for (const Host& host : hosts_) {
    if (is_ending_ || (host.phase != kConnecting && host.phase != kPlanned)) continue;
    if (!first || host.due < *first) first = host.due;
  }
  return first;
}

void Head::postpone(Duration time) {
  if (end_by_) *end_by_ += time;
  for (Host& host : hosts_) host.due += time;
}

void Head::connect_more() {
  auto connecting = std::ranges::count(hosts_, kConnecting, &Host::phase);
  for (int i = 0; i < count() && connecting < options_.at_once; ++i) {
    if (at(i).phase != kWaiting) continue;
    at(i).phase = kConnecting;
    at(i).due = now_ + options_.connect_timeout;
    actions_.push_back(Connect{i});
    ++connecting;
  }
}

void Head::send_plans() {
  if (at(0).phase == kGreeted) {
    if (count() == 1 || is_reachable(at(0).address)) {
      send_plan(0, "", "");
    } else {
      // Node 0 is the host of this head: its address is that on the route to another host.
      for (int i = 1; i < count(); ++i) {
        if (at(i).phase != kGreeted) continue;
        const std::string& address = at(i).address;
        send_plan(0, "", is_reachable(address) ? address : std::string(without_user(name_of(i))));
        break;
      }
    }
  }
  if (endpoint_.empty()) return;
  for (int i = 1; i < count(); ++i) {
    if (at(i).phase == kGreeted) send_plan(i, endpoint_, "");
  }
}

void Head::send_plan(int host, const std::string& endpoint, const std::string& peer) {
  at(host).phase = kPlanned;
  at(host).due = now_ + kReadyPatience;
  actions_.push_back(SendPlan{host, endpoint, peer});
}

void Head::on(const Greeted& event) {
  Host& host = at(event.host);
  if (host.phase != kConnecting || is_ending_) return;
  if (event.version != options_.version) {
    return fail(event.host,
                concat("has ddprun ", event.version, " (", event.program, "), but this is ddprun ",
                       options_.version, ": install the same version on all hosts"),
                to_int(ExitCode::kCannotStart));
  }
  // Two agents of one host would give their workers the same local ranks and GPUs.
  const auto same = std::ranges::find(hosts_, event.machine, &Host::machine);
  if (!event.machine.empty() && same != hosts_.end()) {
    const std::string& other = name_of(static_cast<int>(same - hosts_.begin()));
    return fail(event.host,
                concat("it is the host ", other, " again: give it once, with all its slots"),
                to_int(ExitCode::kUsage));
  }
  host.phase = kGreeted;
  host.address = event.address;
  host.machine = event.machine;
}

void Head::on(const Ready& event) {
  Host& host = at(event.host);
  if (host.phase != kPlanned) return;
  host.phase = kRunning;
  options_.grace = std::max(options_.grace, event.grace);
  if (event.host == 0) endpoint_ = event.endpoint;
  if (is_ending_ || std::ranges::count(hosts_, kRunning, &Host::phase) < count()) return;
  std::string text = concat(counted(count(), "agent"), " started over ssh in ", now_ - started_);
  if (!endpoint_.empty()) text += ", rendezvous at " + endpoint_;
  actions_.push_back(Report{false, text});
}

void Head::on(const PlanRefused& event) { fail(event.host, event.why, event.exit_code); }

void Head::on(const AgentEnded& event) {
  at(event.host).exit_code = event.exit_code;
  if (event.exit_code != 0 && !exit_code_) exit_code_ = event.exit_code;
  // The others end with it, unless they wait for a node that does not come back.
  if (!end_by_) end_by_ = now_ + patience();
}

Duration Head::patience() {
  const bool node_0_runs = !at(0).exit_code;
  return options_.grace + kEndPatience + (node_0_runs ? options_.end_commands : Duration());
}

void Head::on(const SshEnded& event) {
  Host& host = at(event.host);
  const Phase before = std::exchange(host.phase, kEnded);
  if (host.exit_code || host.is_disconnected) return;
  if (before == kPlanned || before == kRunning) {
    const ExitCode code = event.host == 0 ? ExitCode::kServiceLost : ExitCode::kNodeLost;
    return fail(event.host, with_reason("the ssh connection was lost", event.last_line),
                to_int(code));
  }
  std::string why;
  if (before == kGreeted && event.exit_code == kSshFailed) {
    why = with_reason("the ssh connection was lost", event.last_line);
  } else if (event.exit_code == kSshFailed) {
    why = with_reason("ssh cannot connect", event.last_line);
  } else if (event.exit_code == kNotFound) {
    why = concat("has no ddprun: neither ", options_.program,
                 " nor one in the PATH of its ssh sessions; install it there");
  } else {
    why = with_reason(concat("ddprun did not start there (exit code ", event.exit_code, ")"),
                      event.last_line);
  }
  fail(event.host, why, to_int(ExitCode::kCannotStart));
}

void Head::on(const Signalled& event) {
  if (!event.ends) {
    for (int i = 0; i < count(); ++i) {
      // A far end that starts its agent must know, too, that a head which is stopped says nothing.
      const bool gets_it =
          at(i).phase == kRunning ||
          (at(i).phase == kPlanned && (event.number == SIGTSTP || event.number == SIGCONT));
      if (gets_it) actions_.push_back(PassSignal{i, event.number});
    }
    return;
  }
  const bool has_agents = std::ranges::any_of(
      hosts_, [](const Host& host) { return host.phase == kPlanned || host.phase == kRunning; });
  if (!has_agents && !exit_code_) exit_code_ = exit_code_of_signal(event.number);
  // Agents end at once with the second Ctrl-C. The third one is for hosts that do not answer.
  if (event.number == SIGINT && ++interrupts_ > 2) return disconnect_all(forces_ > 0);
  end_all(event.number);
}

void Head::on(const TimePassed&) {
  if (!is_ending_) {
    // All hosts that are late are named, so that one look is enough.
    bool has_failed = false;
    for (int i = 0; i < count(); ++i) {
      const Phase phase = at(i).phase;
      if (now_ < at(i).due || (phase != kConnecting && phase != kPlanned)) continue;
      has_failed = true;
      report(i,
             phase == kPlanned ? concat("did not start its agent within ", kReadyPatience)
                               : concat("no answer over ssh within ", options_.connect_timeout,
                                        " (is the host up? --connect-timeout allows more)"),
             to_int(ExitCode::kCannotStart));
    }
    if (has_failed) return end_all(SIGTERM);
  }
  if (!end_by_ || now_ < *end_by_) return;
  if (!is_ending_) return end_all(SIGTERM);
  disconnect_all(forces_ > 0);
}

void Head::report(int host, const std::string& why, int exit_code) {
  // An agent that lost its head ends itself as at SIGTERM, and the job with it. Its code may come
  // before the end of its ssh.
  const bool is_consequence = !is_ending_ && exit_code_ == exit_code_of_signal(SIGTERM);
  if (!exit_code_ || is_consequence) exit_code_ = exit_code;
  // Later failures follow from the signal, or from the first failure.
  if (!is_ending_) actions_.push_back(Report{true, concat("host ", name_of(host), ": ", why)});
  at(host).exit_code = exit_code;
  if (at(host).phase == kEnded || at(host).is_disconnected) return;
  at(host).is_disconnected = true;
  actions_.push_back(Disconnect{host, false});
}

void Head::fail(int host, const std::string& why, int exit_code) {
  report(host, why, exit_code);
  if (!is_ending_) end_all(SIGTERM);
}

void Head::end_all(int signal) {
  // Only the first signal begins the time.
  const bool is_first = !std::exchange(is_ending_, true);
  bool has_agents = false;
  for (int i = 0; i < count(); ++i) {
    Host& host = at(i);
    if (host.is_disconnected || host.phase == kEnded) continue;
    if (host.phase == kWaiting) {
      host.phase = kEnded;
    } else if (host.phase == kPlanned || host.phase == kRunning) {
      has_agents = true;
      actions_.push_back(PassSignal{i, signal});
    } else {
      host.is_disconnected = true;
      actions_.push_back(Disconnect{i, false});
    }
  }
  if (is_first) end_by_ = now_ + (has_agents ? patience() : kSshPatience);
}

void Head::disconnect_all(bool by_force) {
  is_ending_ = true;
  ++forces_;
  end_by_ = now_ + kSshPatience;
  for (int i = 0; i < count(); ++i) {
    if (at(i).phase == kEnded) continue;
    if (!at(i).exit_code && !at(i).is_disconnected)
      actions_.push_back(Report{true, concat("host ", name_of(i),
                                             ": its agent has not ended in time; "
                                             "the ssh connection is closed")});
    const bool was_asked = std::exchange(at(i).is_disconnected, true);
    actions_.push_back(Disconnect{i, by_force || was_asked});
  }
  if (!exit_code_) exit_code_ = to_int(ExitCode::kNodeLost);
}

void Head::finish_if_all_ended() {
  if (std::ranges::count(hosts_, kEnded, &Host::phase) < count()) return;
  is_finished_ = true;
  end_by_.reset();
  actions_.push_back(Finish{exit_code_.value_or(0)});
}

}  // namespace ddprun
