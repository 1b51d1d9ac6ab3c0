// The words of an error that a restart would meet again. If the first failure of a generation says
// them (in its error file or the last lines of its stderr), ddprun does not restart.
#pragma once

#include <string_view>

namespace ddprun {

inline constexpr std::string_view kFinalError = "a restart would fail in the same way";

}  // namespace ddprun
