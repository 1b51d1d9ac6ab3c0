// program(): finds the programs of this build, for tests that run them.
#pragma once

#include <string>

namespace ddprun::testing_support {

// Returns the path of a program: "ddprun", "ddp-store", ...
inline std::string program(const std::string& name) { return DDPRUN_BIN_DIR "/" + name; }

}  // namespace ddprun::testing_support
