#include "launcher/cluster/slurm_requeue.h"

#include <string_view>

#include "base/concat.h"
#include "launcher/cluster/slurm_time_limit.h"
#include "launcher/process/command_output.h"

namespace ddprun {
namespace {

std::string answer_to(const std::vector<std::string>& command) {
  std::string text = output_of(command, Deadline(kSlurmPatience), Stderr::kRead).text;
  while (text.ends_with('\n') || text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace

void requeue_in_slurm(const std::string& job, JobLife life, Logger& log) {
  life.comment = answer_to({"squeue", "--noheader", "--jobs=" + job, "--format=%k"});
  if (life.comment == "(null)" || life.comment == "N/A") life.comment.clear();
  const RequeueDecision decision = decide_requeue(life);
  if (decision.comment != life.comment)
    answer_to({"scontrol", "update", "JobId=" + job, "Comment=" + decision.comment});
  if (!decision.why_not.empty()) {
    return log.warning(concat("Slurm job ", job, " is not requeued: ", decision.why_not));
  }
  const CommandOutput done =
      output_of({"scontrol", "requeue", job}, Deadline(kSlurmPatience), Stderr::kRead);
  if (done.exit_code == 0) {
    return log.info(concat("Slurm job ", job, " is requeued (", life.requeues + 1,
                           " of --requeue=", life.most, ")"));
  }
  const std::string_view cause = std::string_view(done.text).substr(0, done.text.find('\n'));
  log.error(concat("scontrol requeue ", job, ": ", cause.empty() ? "no answer from Slurm" : cause,
                   "; the job was saved: start it again by hand"));
}

}  // namespace ddprun
