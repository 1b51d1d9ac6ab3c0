#include "launcher/cluster/slurm_requeue.h"

#include <cctype>
#include <optional>
#include <string_view>

#include "base/concat.h"
#include "launcher/cluster/slurm_command.h"
#include "launcher/cluster/slurm_time_limit.h"
#include "launcher/process/command_output.h"

namespace ddprun {
namespace {

// scontrol itself tries for about a minute to reach a controller that is busy or down.
constexpr Duration kRequeuePatience = std::chrono::seconds(60);
constexpr std::string_view kRunning = "RUNNING";

// What Slurm knows about the job.
struct SlurmJob {
  std::string state;  // kRunning, or "COMPLETING" and others
  std::string comment;
};

// Returns nullopt if Slurm does not answer.
std::optional<SlurmJob> job_in_slurm(const std::string& job) {
  const CommandOutput output =
      output_of(slurm_command({"squeue", "--noheader", "--jobs=" + job, "--format=%T|%k"}),
                Deadline(kSlurmPatience));
  const std::size_t end = output.text.find('|');
  if (output.exit_code != 0 || end == output.text.npos) return std::nullopt;
  SlurmJob found{.state = output.text.substr(0, end), .comment = output.text.substr(end + 1)};
  while (!found.comment.empty() && std::isspace(static_cast<unsigned char>(found.comment.back())))
    found.comment.pop_back();
  if (found.comment == "(null)") found.comment.clear();
  return found;
}

// Stores the comment that decide_requeue() reads in the job's next life.
void set_comment(const std::string& job, const std::string& comment) {
  output_of(slurm_command({"scontrol", "update", "JobId=" + job, "Comment=" + comment}),
            Deadline(kSlurmPatience));
}

enum class Requeue { kDone, kRefused, kNoAnswer, kEnding };

struct RequeueAnswer {
  Requeue requeue;
  std::string text;  // kRefused: scontrol's first line; kEnding: the state of the job
};

// Asks Slurm to requeue the job. Slurm ends this step at the requeue, and with it scontrol,
// sometimes before its answer. Then the job is ending (kEnding), as it also is after scancel.
RequeueAnswer ask_to_requeue(const std::string& job) {
  const CommandOutput done = output_of(slurm_command({"scontrol", "requeue", job}),
                                       Deadline(kRequeuePatience), Stderr::kRead);
  if (done.exit_code == 0) return {Requeue::kDone, ""};
  const std::string cause = done.text.substr(0, done.text.find('\n'));
  if (!cause.empty()) return {Requeue::kRefused, cause};
  const std::optional<SlurmJob> now = job_in_slurm(job);
  if (now && now->state != kRunning) return {Requeue::kEnding, now->state};
  return {Requeue::kNoAnswer, ""};
}

}  // namespace

bool requeue_in_slurm(const std::string& job, JobLife life, SlurmEnd end, Logger& log) {
  const std::optional<SlurmJob> found = job_in_slurm(job);
  const bool is_ending = found ? found->state != kRunning : end == SlurmEnd::kBegun;
  if (is_ending) {
    log.info(concat("Slurm job ", job, " is not requeued by ddprun: Slurm is ending it (",
                    found ? found->state : "SIGTERM came", ")"));
    return false;
  }

  if (found) life.comment = found->comment;
  const RequeueDecision decision = decide_requeue(life);
  if (found && decision.comment != life.comment) set_comment(job, decision.comment);
  if (!decision.why_not.empty()) {
    log.warning(concat("Slurm job ", job, " is not requeued: ", decision.why_not));
    return false;
  }

  const std::string requeued = concat("Slurm job ", job, " is requeued (", life.requeues + 1,
                                      " of --requeue=", life.most, ")");
  const auto log_failure = [&](std::string_view cause) {
    log.error(concat("scontrol requeue ", job, ": ", cause,
                     "; the job was saved: start it again by hand"));
  };
  const RequeueAnswer answer = ask_to_requeue(job);
  switch (answer.requeue) {
    case Requeue::kDone: log.info(requeued); return true;
    case Requeue::kEnding:
      log.info(concat(requeued, ", or Slurm ends it (", answer.text, ")"));
      return true;
    case Requeue::kNoAnswer: log_failure("no answer; the job may be in the queue"); return true;
    case Requeue::kRefused: log_failure(answer.text); return false;
  }
  return false;
}

}  // namespace ddprun
