#include "launcher/agent/report_file.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/exit_codes.h"
#include "base/small_file.h"
#include "base/version.h"
#include "launcher/process/replace_file.h"
#include "rendezvous/protocol/verdict_json.h"

namespace ddprun {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFailuresKept = 256;  // the newest, of a job that restarts for months

// Returns the worker end that the job's exit code comes from; nullptr if there is none.
const WorkerEnd* decisive(const JobOutcome& outcome) {
  if (!outcome.verdict || outcome.verdict->ends.empty()) return nullptr;
  const WorkerEnd& first = outcome.verdict->ends.front();
  return exit_code_of(first) == outcome.exit_code ? &first : nullptr;
}

// Returns the source of the exit code. Without it a worker's 2 would look like ddprun's own 2.
const char* source_of(const JobOutcome& outcome) {
  if (outcome.exit_code == 0) return "job";
  if (const WorkerEnd* end = decisive(outcome)) {
    return is_of_process(*end) ? "worker" : "ddprun";
  }
  return outcome.exit_code > exit_code_of_signal(0) ? "signal" : "ddprun";
}

// Returns the kind of the whole job's end.
const char* kind_of(const JobOutcome& outcome) {
  if (outcome.exit_code == 0) return "success";
  if (outcome.exit_code == to_int(ExitCode::kSaved)) return "saved";
  if (const WorkerEnd* end = decisive(outcome)) return kind_word(*end);
  if (outcome.no_program) return "start_failure";
  return outcome.exit_code > exit_code_of_signal(0) ? "stop_on_request" : "ddprun";
}

}  // namespace

ReportFile::ReportFile(std::string path, std::string job_id, std::string host)
    : path_(std::move(path)), job_id_(std::move(job_id)), host_(std::move(host)) {}

Result<void> ReportFile::write_running() const { return write(text(nullptr)); }

void ReportFile::add_failure(const Verdict& generation) {
  failures_.push_back(generation);
  if (failures_.size() > kFailuresKept) failures_.erase(failures_.begin());
}

Result<void> ReportFile::end(const JobOutcome& outcome) const { return write(text(&outcome)); }

bool ReportFile::is_anothers(bool rank_0_is_lost) const {
  const Json there = Json::parse(text_of(path_), nullptr, false);
  if (!there.is_object()) return false;
  if (there.value("state", "") == "ended") return true;
  return !rank_0_is_lost && there.value("host", "") != host_;
}

std::string ReportFile::text(const JobOutcome* outcome) const {
  Json json{{"version", 1}, {"ddprun", kVersion}, {"job", job_id_}, {"host", host_}};
  json["state"] = outcome ? "ended" : "running";
  std::vector<Verdict> failed = failures_;
  if (outcome) {
    json["exit_code"] = outcome->exit_code;
    json["exit_code_of"] = source_of(*outcome);
    json["kind"] = kind_of(*outcome);
    json["what"] = outcome->headline;
    if (const std::optional<Verdict>& verdict = outcome->verdict) {
      json["restarts_used"] = verdict->restarts_used;
      json["max_restarts"] = verdict->max_restarts;
      if (verdict->times) json["times"] = times_json(*verdict->times);
      if (!verdict->success && verdict->cause == VerdictCause::kFailure) failed.push_back(*verdict);
    }
  }
  Json& failures = json["failed_generations"] = Json::array();
  for (const Verdict& one : failed) failures.push_back(verdict_json(one));
  // Output of workers may be invalid UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<void> ReportFile::write(const std::string& text) const {
  if (path_.empty()) return {};
  const std::string doing = "--report-file: write " + path_;
  struct stat there {};
  if (lstat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) {
    // rename() would replace a device, even /dev/null, by a regular file.
    return invalid_argument("not a regular file; give a regular file or a new name").within(doing);
  }
  return replace_file(path_, path_ + "." + host_ + ".new", text, doing);
}

}  // namespace ddprun
