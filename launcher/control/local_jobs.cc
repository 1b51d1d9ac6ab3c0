#include "launcher/control/local_jobs.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/parse_number.h"
#include "launcher/control/protocol.h"
#include "launcher/control/text.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {

using Json = nlohmann::json;

std::string who_asks() {
  for (const char* name : {"USER", "LOGNAME"}) {
    const char* user = std::getenv(name);
    if (user && *user && why_no_name(user).empty()) return std::string(user) + " on " + host_name();
  }
  return "user " + std::to_string(getuid()) + " on " + host_name();
}

int end_refused(const ControlOptions& options, const std::string& why, ExitCode code, Json more) {
  if (options.json) {
    more.update({{"ok", false}, {"error", why}});
    std::fputs((text_of(more) + "\n").c_str(), stdout);
  }
  std::fprintf(stderr, "ddprun: error: %s\n", why.c_str());
  return to_int(code);
}

Json parsed_object(const std::string& line) {
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

namespace {

constexpr Duration kWhoPatience = std::chrono::seconds(2);

std::vector<LocalAgent> find_agents() {
  const std::string who = who_request_line(who_asks());
  std::vector<std::pair<ControlPlace, Result<ControlClient>>> asked;
  for (const ControlPlace& place : find_control_sockets()) {
    asked.emplace_back(place, ControlClient::ask(place, who));
  }
  const TimePoint deadline = BootClock::now() + kWhoPatience;
  std::vector<LocalAgent> agents;
  for (auto& [place, client] : asked) {
    const bool is_gone = !client && client.error().kind == ErrorKind::kNotFound;
    if (is_gone) continue;
    Result<std::string> line = client ? client->line(deadline) : client.error();
    // The agent ended after it had accepted the connection.
    if (!line && line.error().kind == ErrorKind::kConnection && client) continue;
    Json node = line ? parsed_object(*line).value("node", Json::object()) : Json::object();
    if (!node.contains("pid")) {
      const std::string name = place.path.substr(place.path.rfind('/') + 1);
      node = {{"job", name.substr(0, name.rfind('.'))},
              {"pid", place.pid},
              {"silent", "does not answer"}};
    }
    agents.push_back({place, std::move(node)});
  }
  return agents;
}

// Returns a key of the agent's job. Agents of one job have the same id and endpoint.
std::string job_of(const LocalAgent& agent) {
  const std::string meets = agent.node.value("meets", "");
  return agent.node.value("job", "") + "\n" +
         (meets.empty() ? std::to_string(agent.place.pid) : meets);
}

bool is_meant(const LocalAgent& agent, const std::string& job) {
  return job.empty() || agent.node.value("job", "") == job ||
         parse_number<pid_t>(job) == agent.place.pid;
}

}  // namespace

Choice choose(const ControlOptions& options) {
  Choice choice;
  const std::vector<LocalAgent> all = find_agents();
  for (const LocalAgent& agent : all) {
    if (is_meant(agent, options.job)) choice.agents.push_back(agent);
  }
  Json nodes = Json::array();
  for (const LocalAgent& agent : all) nodes.push_back(agent.node);
  const std::string here = "of user " + std::to_string(geteuid()) + " runs on this host";
  if (choice.agents.empty()) {
    const std::string what = options.job.empty() ? "no job " : "no job '" + options.job + "' ";
    choice.exit_code = end_refused(options, what + here, ExitCode::kNoJob, {{"agents", nodes}});
  } else {
    const std::string first = job_of(choice.agents.front());
    for (const LocalAgent& agent : choice.agents) {
      if (job_of(agent) == first) continue;
      choice.exit_code = end_refused(
          options,
          options.job.empty()
              ? "several jobs run here: give the id or process id of one"
              : "several jobs have the id '" + options.job + "': give the process id of one",
          ExitCode::kUsage, {{"agents", nodes}});
      break;
    }
  }
  if (choice.exit_code == 0 || all.empty()) return choice;
  std::fputs(list_text(nodes.get<std::vector<Json>>()).c_str(), stderr);
  return choice;
}

Result<Asked> ask(const LocalAgent& agent, const UserRequest& request) {
  Result<ControlClient> client = ControlClient::ask(agent.place, request_line(request));
  if (!client) return client.error();
  Result<std::string> line = client->line(BootClock::now() + kAnswerPatience);
  if (!line) return line.error();
  Json answer = parsed_object(*line);
  if (!answer.contains("ok")) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "ask " + agent.place.path,
                 .cause = "the answer is from another version of ddprun"};
  }
  return Asked{std::move(*client), std::move(answer)};
}

ExitCode code_of(const Error& error) {
  return error.kind == ErrorKind::kNotFound ? ExitCode::kNoJob : ExitCode::kNoAnswer;
}

}  // namespace ddprun
