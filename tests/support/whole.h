// Says whether a test tries everything, or a sample of each kind. CI has time for the sample. The
// ctests of the label long set DDPRUN_TEST_WHOLE.
#pragma once

#include <cstdlib>

namespace ddprun::testing_support {

inline bool is_whole() { return std::getenv("DDPRUN_TEST_WHOLE") != nullptr; }

}  // namespace ddprun::testing_support
