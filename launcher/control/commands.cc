#include "launcher/control/commands.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "base/pidfd.h"
#include "base/poll_until.h"
#include "launcher/control/client.h"
#include "launcher/control/job_watch.h"
#include "launcher/control/local_jobs.h"
#include "launcher/control/logs.h"
#include "launcher/control/protocol.h"
#include "launcher/control/stacks.h"
#include "launcher/control/text.h"
#include "launcher/flight/process_flights.h"
#include "launcher/flight/show.h"
#include "rendezvous/client/service_call.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;
using What = UserRequest::What;

// Time that ending a job may take beyond the grace: SIGKILL, the other nodes, the service.
constexpr Duration kBeyondGrace = std::chrono::seconds(60);

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }
void notice(const std::string& text) { std::fprintf(stderr, "ddprun: %s\n", text.c_str()); }
void print_json(const Json& json) { print(text_of(json) + "\n"); }

// --- asking a service ----------------------------------------------------------------------------

// Prints an object: with --json as it is, else as `text` makes it.
int show(const ControlOptions& options, const Json& json, std::string (*text)(const Json&)) {
  if (options.json) {
    print_json(json);
  } else {
    print(text(json));
  }
  return 0;
}

int show_page(const ControlOptions& options, const Json& page) {
  if (options.job.empty()) return show(options, page, service_list_text);
  return show(options, {{"job", page.value("jobs", Json::array()).at(0)}}, status_text);
}

std::string outcome_text(const Json& outcome) {
  std::string text = outcome.value("text", "") + "\n";
  if (outcome.contains("exit_code")) {
    const std::string words = outcome.value("outcome", "");
    text += "ended with exit code " + std::to_string(outcome.value("exit_code", 0)) +
            (words.empty() ? "" : ": " + words) + "\n";
  }
  return text;
}

int print_outcome(const ControlOptions& options, const Json& outcome) {
  return show(options, outcome, outcome_text);
}

// Returns false if the output can no longer be written.
bool print_output(LogPrinter& printer, const Answer& answer) {
  for (std::string_view page = answer.page; !page.empty();) {
    const std::size_t end = std::min(page.find('\n'), page.size() - 1);
    if (!printer.take(page.substr(0, end + 1))) return false;
    page.remove_prefix(end + 1);
  }
  if (!answer.text.empty()) printer.notice({{"notice", answer.text}}, answer.text);
  return true;
}

// Reports how a request for output ended. Returns the exit code.
int end_output(const ControlOptions& options, const LogPrinter& printer,
               const ServiceReply& reply) {
  if (reply.broke_off) return end_refused(options, reply.broke_off->message(), ExitCode::kNoAnswer);
  if (reply.verdict) {
    const std::string code = std::to_string(reply.verdict->exit_code);
    printer.notice({{"ended", true},
                    {"exit_code", reply.verdict->exit_code},
                    {"text", reply.verdict->headline}},
                   "the job has ended with exit code " + code);
  } else if (!reply.answer.done) {
    return end_refused(options, reply.answer.text, ExitCode::kNoAnswer);
  }
  return 0;
}

FlightShowOptions show_options(const ControlOptions& options) {
  return {.json = options.json,
          .rank = options.rank,
          .last = options.last,
          .only_compares = options.only_compares,
          .trace_file = options.trace_file,
          .trace_option = options.is_trace ? "-o" : "--chrome-trace"};
}

int end_flight(const ControlOptions& options, const FlightShow& show) {
  const Result<void> shown = show.print();
  return shown ? 0 : end_refused(options, shown.error().message(), ExitCode::kFiles);
}

// Prints the stacks, and on stderr what is missing. why_not: why some of them did not come; empty:
// all agents have answered. Returns the exit code.
int end_stacks(const ControlOptions& options, const StackShow& stacks, const std::string& why_not) {
  if (!stacks.has_any()) {
    const std::string reason = !stacks.missing().empty() ? stacks.missing().front()
                               : !why_not.empty()        ? why_not
                                                         : "the job has no workers now";
    return end_refused(options, reason, ExitCode::kNoAnswer);
  }
  if (options.json) {
    print_json(stacks.as_json());
  } else {
    print(stacks.as_text());
  }
  for (const std::string& missing : stacks.missing()) notice(missing);
  if (stacks.has_interpreter()) {
    notice(
        "Python programs are shown as their interpreter sees them: py-spy shows their own "
        "functions (pip install py-spy)");
  }
  if (why_not.empty()) return 0;
  notice("error: " + why_not);
  return to_int(ExitCode::kNoAnswer);
}

int ask_service(const ControlOptions& options) {
  Result<ServiceCall> planned = plan_service_call(options);
  if (!planned)
    return end_refused(options, planned.error().message(), code_of_no_call(planned.error()));
  ServiceCall& call = *planned;
  call.to_end = options.timeout.value_or(kDefaultGrace + kBeyondGrace);
  LogPrinter printer({.json = options.json, .rank = options.rank});
  FlightShow flights(show_options(options));
  StackShow stacks;
  const bool is_flight = options.what == What::kFlight;
  const bool is_stacks = options.what == What::kStacks;
  if (is_stacks) call.to_more = stacks_patience();
  bool was_accepted = false;
  call.on_output = [&](const Answer& answer) {
    was_accepted = true;
    if (!is_flight && !is_stacks) return print_output(printer, answer);
    if (is_flight) flights.take_page(answer.page);
    if (is_stacks) stacks.take_page(answer.page);
    if (!answer.text.empty()) notice(answer.text);
    return true;
  };
  UserRequest request = options;
  request.number = 1;
  const Result<ServiceReply> reply = call_service(call, request);
  if (!reply) {
    return end_refused(options, reply.error().message(), code_of_call(reply.error()));
  }
  if (was_accepted && is_stacks) {
    const std::string why_not = reply->broke_off      ? reply->broke_off->message()
                                : !reply->answer.done ? reply->answer.text
                                                      : "";
    return end_stacks(options, stacks, why_not);
  }
  if (was_accepted) {
    const int code = end_output(options, printer, *reply);
    if (code != 0 || !is_flight) return code;
    if (options.is_trace) {
      call.on_output = nullptr;
      const auto state = call_service(call, {.number = 2, .job = options.job, .by = options.by});
      const Json page = parsed_object(state ? state->answer.page : "");
      for (const Json& job : page.value("jobs", Json::array())) flights.take_job(job);
    }
    return end_flight(options, flights);
  }
  const Answer& answer = reply->answer;
  if (options.what == What::kStatus && answer.done) {
    const Json page = parsed_object(answer.page);
    const bool is_there = options.job.empty() || !page.value("jobs", Json::array()).empty();
    if (is_there) return show_page(options, page);
  }
  if (!answer.done) {
    return end_refused(options, to_text(reply->address) + ": " + answer.text, ExitCode::kNoJob);
  }
  Json outcome{{"ok", true}, {"text", answer.text}};
  if (reply->verdict) {
    outcome["ended"] = true;
    outcome["exit_code"] = reply->verdict->exit_code;
    outcome["outcome"] = reply->verdict->headline;
  }
  return print_outcome(options, outcome);
}

// --- commands ------------------------------------------------------------------------------------

int status_here(const ControlOptions& options, const std::vector<LocalAgent>& agents) {
  const JobPicture picture = picture_of(agents, options);
  if (!picture.trouble.empty()) return end_refused(options, picture.trouble, picture.code);
  return show(options, picture.json, status_text);
}

// Waits until the process has ended. Returns false at the deadline.
bool wait_for_process(const UniqueFd& process, TimePoint deadline) {
  if (!process.valid()) return true;
  pollfd fd{process.get(), POLLIN, 0};
  return poll_until({&fd, 1}, deadline);
}

int wait_for_end(const ControlOptions& options, const LocalAgent& agent, Asked asked,
                 const std::vector<UniqueFd>& processes) {
  const auto grace = std::chrono::milliseconds(agent.node.value("grace_ms", std::int64_t{0}));
  const Duration allowed = options.timeout.value_or(grace + kBeyondGrace);
  const TimePoint deadline = BootClock::now() + allowed;
  Json outcome{{"ok", true}, {"text", asked.answer.value("text", "")}};
  const Result<std::string> last = asked.client.line(deadline);
  if (last) {
    const Json ended = parsed_object(*last);
    outcome["ended"] = true;
    outcome["exit_code"] = ended.value("exit_code", 0);
    outcome["outcome"] = ended.value("text", "");
  }
  bool all = true;
  for (const UniqueFd& process : processes) all = wait_for_process(process, deadline) && all;
  if (!all) {
    return end_refused(options,
                       outcome.value("text", "") + "; it did not end within " + to_text(allowed),
                       ExitCode::kNoAnswer);
  }
  return print_outcome(options, outcome);
}

// Sends a request that concerns the whole job. The first agent that answers is enough.
int order_here(const ControlOptions& options, const std::vector<LocalAgent>& agents) {
  std::vector<UniqueFd> processes;  // opened before any of them can end
  for (const LocalAgent& agent : agents) processes.push_back(pidfd_of(agent.place.pid));
  std::optional<Error> trouble;
  for (const LocalAgent& agent : agents) {
    Result<Asked> asked = ask(agent, options);
    if (!asked) {
      if (!trouble) trouble = asked.error();
      continue;
    }
    if (!asked->answer.value("ok", false)) {
      return end_refused(options, asked->answer.value("text", ""), ExitCode::kNoAnswer);
    }
    if (options.what == What::kStop) {
      return wait_for_end(options, agent, std::move(*asked), processes);
    }
    return print_outcome(options, {{"ok", true}, {"text", asked->answer.value("text", "")}});
  }
  return end_refused(options, trouble->message(), code_of(*trouble));
}

// Asks each agent of the job, and passes on the connection to each that carries out the request.
// Returns why the last one of the others does not.
std::string ask_each(const std::vector<LocalAgent>& agents, const UserRequest& request,
                     const std::function<void(ControlClient&&)>& take) {
  std::string why_not;
  for (const LocalAgent& agent : agents) {
    Result<Asked> asked = ask(agent, request);
    if (!asked) {
      why_not = asked.error().message();
    } else if (!asked->answer.value("ok", false)) {
      why_not = asked->answer.value("text", "");
    } else {
      take(std::move(asked->client));
    }
  }
  return why_not;
}

int logs_here(const ControlOptions& options, const std::vector<LocalAgent>& agents) {
  std::vector<ControlClient> clients;
  const std::string why_not = ask_each(
      agents, options, [&](ControlClient&& client) { clients.push_back(std::move(client)); });
  if (clients.empty()) return end_refused(options, why_not, ExitCode::kNoAnswer);
  return show_logs(std::move(clients), {.json = options.json, .rank = options.rank});
}

// Shows the flight records that the job's agents on this host send.
int flight_here(const ControlOptions& options, const std::vector<LocalAgent>& agents) {
  FlightShow flights(show_options(options));
  if (options.is_trace) {
    const Result<Asked> state = ask(agents.front(), {.what = What::kStatus, .by = options.by});
    const Json service = state ? state->answer.value("service", Json::object()) : Json::object();
    for (const Json& job : service.value("jobs", Json::array())) flights.take_job(job);
    if (service.empty()) notice("the trace has no events of the job: its service does not answer");
  }
  const std::string why_not = ask_each(agents, options, [&](ControlClient&& client) {
    const TimePoint deadline = BootClock::now() + kAnswerPatience;
    while (const Result<std::string> line = client.line(deadline)) flights.take(*line);
  });
  if (!flights.has_any()) {
    return end_refused(options,
                       why_not.empty() ? "the job has no workers on this host now" : why_not,
                       ExitCode::kNoAnswer);
  }
  return end_flight(options, flights);
}

// Shows the stacks that the job's agents on this host send.
int stacks_here(const ControlOptions& options, const std::vector<LocalAgent>& agents) {
  StackShow stacks;
  std::vector<ControlClient> clients;
  const std::string why_not = ask_each(
      agents, options, [&](ControlClient&& client) { clients.push_back(std::move(client)); });
  const TimePoint deadline = BootClock::now() + stacks_patience();
  for (ControlClient& client : clients) {
    while (const Result<std::string> line = client.line(deadline)) stacks.take(*line);
  }
  // Only one of several agents has the rank.
  const bool is_whole = options.rank && stacks.has_any();
  return end_stacks(options, stacks, is_whole ? "" : why_not);
}

int flight_of_files(const ControlOptions& options) {
  FlightShow flights(show_options(options));
  for (const std::string& path : options.files) {
    if (const Result<void> read = flights.read(path); !read) {
      return end_refused(options, read.error().message(), ExitCode::kFiles);
    }
  }
  if (options.is_trace && !flights.has_any()) {
    return end_refused(options, "no flight records in " + options.files.front(), ExitCode::kFiles);
  }
  return end_flight(options, flights);
}

int flight_of_processes(const ControlOptions& options) {
  Result<ProcessFlights> found = read_process_flights(options.processes);
  if (!found) return end_refused(options, "--pid: " + found.error().message(), ExitCode::kUsage);
  if (found->flights.empty()) {
    return end_refused(options, "--pid: " + found->missing.front(), ExitCode::kNoJob);
  }
  const std::optional<Rank>& rank = options.rank;
  if (rank && std::ranges::count(found->flights, *rank, &RankFlight::rank) == 0) {
    return end_refused(options, "--rank: none of these processes is rank " + to_text(*rank),
                       ExitCode::kNoAnswer);
  }
  FlightShow flights(show_options(options));
  flights.add(std::move(found->flights));
  for (const std::string& why : found->missing) flights.notice(why);
  return end_flight(options, flights);
}

}  // namespace

int run_control(ControlCommand command, const std::vector<std::string>& arguments) {
  Result<ControlOptions> options = parse_control_options(command, arguments);
  if (!options) {
    ControlOptions refused;
    refused.json = std::ranges::count(arguments, "--json") > 0;
    return end_refused(refused, options.error().message(), ExitCode::kUsage);
  }
  if (options->wants_help) {
    print(control_help(command));
    return 0;
  }
  options->by = who_asks();
  if (!options->files.empty()) return flight_of_files(*options);
  if (!options->processes.empty()) return flight_of_processes(*options);
  if (!options->service.rdzv_endpoint.empty()) return ask_service(*options);
  const Choice choice = choose(*options);
  if (choice.exit_code != 0) return choice.exit_code;
  const What what = options->what;
  if (what == What::kStatus) return status_here(*options, choice.agents);
  if (what == What::kFlight) return flight_here(*options, choice.agents);
  if (what == What::kStacks) return stacks_here(*options, choice.agents);
  if (what == What::kLogs) return logs_here(*options, choice.agents);
  return order_here(*options, choice.agents);
}

}  // namespace ddprun
