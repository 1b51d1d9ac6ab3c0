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

// What Slurm knows about the job.
struct SlurmJob {
  std::string state;  // "RUNNING"
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

}  // namespace

bool requeue_in_slurm(const std::string& job, JobLife life, bool is_ending, Logger& log) {
  const std::optional<SlurmJob> found = job_in_slurm(job);
  if (found ? found->state != "RUNNING" : is_ending) {
    log.info(concat("Slurm job ", job, " is not requeued by ddprun: Slurm is ending it (",
                    found ? found->state : "SIGTERM came", ")"));
    return false;
  }
  if (found) life.comment = found->comment;
  const RequeueDecision decision = decide_requeue(life);
  if (found && decision.comment != life.comment) {
    output_of(slurm_command({"scontrol", "update", "JobId=" + job, "Comment=" + decision.comment}),
              Deadline(kSlurmPatience));
  }
  if (!decision.why_not.empty()) {
    log.warning(concat("Slurm job ", job, " is not requeued: ", decision.why_not));
    return false;
  }
  const CommandOutput done = output_of(slurm_command({"scontrol", "requeue", job}),
                                       Deadline(kRequeuePatience), Stderr::kRead);
  const std::string times = concat(" (", life.requeues + 1, " of --requeue=", life.most, ")");
  if (done.exit_code == 0) {
    log.info(concat("Slurm job ", job, " is requeued", times));
    return true;
  }
  if (done.text.empty()) {
    // Slurm ends this step at the requeue, and with it scontrol, sometimes before its answer. Then
    // the job is ending, as it also is after scancel.
    const std::optional<SlurmJob> now = job_in_slurm(job);
    if (now && now->state != "RUNNING") {
      log.info(concat("Slurm job ", job, " is requeued", times, ", or Slurm ends it (", now->state,
                      ")"));
      return true;
    }
  }
  const std::string_view cause = std::string_view(done.text).substr(0, done.text.find('\n'));
  log.error(concat("scontrol requeue ", job, ": ",
                   cause.empty() ? "no answer; the job may be in the queue" : cause,
                   "; the job was saved: start it again by hand"));
  return cause.empty();
}

}  // namespace ddprun
