// Finds the jobs of this user on this host, by the sockets of their agents, and asks these agents.
// For commands: every function blocks, and every wait has a deadline. Any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/result.h"
#include "launcher/control/client.h"
#include "launcher/control/options.h"

namespace ddprun {

// An agent answers at once, except that it may wait up to 3 s for its service.
inline constexpr Duration kAnswerPatience = std::chrono::seconds(8);

// Returns who asks, for people: "ada on node7".
std::string who_asks();

// Returns the JSON object of this line; an empty one: it is none.
nlohmann::json parsed_object(const std::string& line);

// Prints the reason on one line of stderr. With --json, also prints an object to stdout. Returns
// the exit code.
int end_refused(const ControlOptions& options, const std::string& why, ExitCode code,
                nlohmann::json more = nlohmann::json::object());

// LocalAgent: a ddprun of this user on this host.
struct LocalAgent {
  ControlPlace place;
  nlohmann::json node;  // its own description; {"silent": why} if it does not answer
};

// Choice: the agents of the selected job. If none was selected, the exit code; the reason and a
// list of the jobs were printed.
struct Choice {
  std::vector<LocalAgent> agents;
  int exit_code = 0;
};
Choice choose(const ControlOptions& options);

struct Asked {
  ControlClient client;
  nlohmann::json answer;
};
Result<Asked> ask(const LocalAgent& agent, const UserRequest& request);
// Returns the exit code of a command that ends with this error of ask().
ExitCode code_of(const Error& error);

}  // namespace ddprun
