// requeue_in_slurm(): returns a job of Slurm to its queue. Any thread.
#pragma once

#include "base/log.h"
#include "launcher/cluster/core/requeue.h"

namespace ddprun {

// Whether Slurm has begun to end the job, as far as ddprun knows. Counts only if Slurm does not
// answer.
enum class SlurmEnd { kNotKnown, kBegun };

// Puts the job back into Slurm's queue and logs what was done. Slurm then ends all that runs in
// the job. Waits for Slurm for at most 90 s. Returns whether the job is requeued, or may be.
//
// Returns false, and logs why, if Slurm is ending the job already, if decide_requeue() refuses, or
// if scontrol refuses.
//
// job: as Slurm's commands take it. life: without the comment, which Slurm has.
bool requeue_in_slurm(const std::string& job, JobLife life, SlurmEnd end, Logger& log);

}  // namespace ddprun
