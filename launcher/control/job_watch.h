// JobWatch: asks for the status of one job again and again, for the commands that show it live. A
// job is asked for at its agents on this host, or at a rendezvous service.
//
// Every function blocks; every wait has a deadline. One thread at a time.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "base/result.h"
#include "launcher/control/local_jobs.h"
#include "launcher/control/options.h"
#include "rendezvous/client/service_call.h"

namespace ddprun {

struct JobPicture {
  nlohmann::json json;  // as status_text() takes it
  std::string trouble;  // why there is none; empty: there is one
  // The exit code of a command that ends because of the trouble. kNoJob: the job, or its ddprun, is
  // gone.
  ExitCode code = ExitCode::kSuccess;
};

// Asks each of these agents of one job for its status.
JobPicture picture_of(const std::vector<LocalAgent>& agents, const UserRequest& request);

// Returns how long to wait for stacks: they come when the debuggers have ended.
Duration stacks_patience();

// Plans how the service of the options is asked, and finds the one that a job has elected. The key
// of the job is taken out of the environment. Errors: those of plan_call() and find_elected().
Result<ServiceCall> plan_service_call(const ControlOptions& options);
// Returns the exit code of a command that ends with such an error.
ExitCode code_of_no_call(const Error& error);
// Returns the exit code of a command that ends with this error of call_service().
ExitCode code_of_call(const Error& error);

class JobWatch {
 public:
  explicit JobWatch(ControlOptions options) : options_(std::move(options)) {}

  // Finds the job. Returns 0. Otherwise prints the reason, and returns the exit code of the
  // command.
  int find();
  // REQUIRES: find() has returned 0.
  JobPicture picture();
  // Sends another request of the job. `part` receives what agents send, as lines of JSON; it
  // returns false if the caller wants no more. Returns the last Answer. If none could be asked, it
  // is not done, and its text says why. Several threads may call it at a time, but not while
  // picture() runs. REQUIRES: find() has returned 0.
  Answer ask(const UserRequest& request, const std::function<bool(const Answer&)>& part) const;

 private:
  bool is_of_service() const { return !options_.service.rdzv_endpoint.empty(); }
  JobPicture picture_of_service();

  ControlOptions options_;
  std::vector<LocalAgent> agents_;
  ServiceCall call_;
};

}  // namespace ddprun
