// `ddprun doctor [options] [program]`: looks at this host and at the way to the others for what makes
// jobs hang or crawl, and says what to do. docs/doctor.md. For the main thread of the program.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// arguments: without the word doctor. Returns what main() shall return: 0, ExitCode::kUnwell where
// there is a problem, kUsage where the arguments cannot be meant.
int run_doctor(const std::vector<std::string>& arguments);

}  // namespace ddprun
