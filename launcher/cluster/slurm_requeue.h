// requeue_in_slurm(): returns a job of Slurm to its queue. Any thread.
#pragma once

#include "base/log.h"
#include "launcher/cluster/core/requeue.h"

namespace ddprun {

// Puts the job back into Slurm's queue, and logs what was done. Does not requeue a job that Slurm
// is ending already, or if decide_requeue() refuses; logs why. job: as Slurm's commands take it.
// life: without the comment, which Slurm has. is_ending: whether Slurm may be ending the job;
// counts if Slurm does not answer. Waits for Slurm for at most 80 s. Slurm then ends all that runs
// in the job. Returns whether the job is requeued, or may be.
bool requeue_in_slurm(const std::string& job, JobLife life, bool is_ending, Logger& log);

}  // namespace ddprun
