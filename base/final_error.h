// The words of an error that a restart would meet again. If the first failure of a generation says
// them (in its error file or the last lines of its stderr), ddprun does not restart.
//
// Text, because most programs catch the exception and print it, so that there is no error file. The
// words name ddprun, so that an exception of a user's program does not hold them by chance.
#pragma once

#include <string_view>

namespace ddprun {

inline constexpr std::string_view kFinalError =
    "ddprun does not restart this job, because a restart would fail in the same way";

}  // namespace ddprun
