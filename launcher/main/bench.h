// ddprun bench: a job whose worker is ddprun-bench (worker_lib/bench), one on each node.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// Returns the arguments of ddprun for such a job. arguments: the options of the job, then what
// ddprun-bench gets after "--". program: the path of ddprun-bench. A pure function; any thread.
std::vector<std::string> bench_job(const std::vector<std::string>& arguments,
                                   const std::string& program);

// Executes ddprun with these arguments instead of this process. ddprun-bench is in the folder of
// ddprun. Returns only if that fails: the exit code, after the reason on stderr.
int run_bench(const std::vector<std::string>& arguments);

}  // namespace ddprun
