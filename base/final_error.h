// The text of an error that a restart would meet again. If the first failure of a generation
// has this text, ddprun does not restart. The text may be in its error file or in the last
// lines of its stderr.
//
// It is a text because most programs catch the exception and print it, so that there is no
// error file. It names ddprun, so that an exception of a user's program does not contain it by
// chance.
#pragma once

#include <string_view>

namespace ddprun {

inline constexpr std::string_view kFinalError =
    "ddprun does not restart this job, because a restart would fail in the same way";

}  // namespace ddprun
