// requeue_in_slurm(): returns a job of Slurm to its queue. Any thread.
#pragma once

#include "base/log.h"
#include "launcher/cluster/core/requeue.h"

namespace ddprun {

// Puts the job back into Slurm's queue, if decide_requeue() allows it, and logs what was done or
// why not. job: Slurm's number of it. life: without the comment, which this asks Slurm for. Waits
// for Slurm for at most half a minute. Slurm then ends all that runs in the job.
void requeue_in_slurm(const std::string& job, JobLife life, Logger& log);

}  // namespace ddprun
