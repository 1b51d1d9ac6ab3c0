// Converts the status of a job, as agents and services send it, to what `ddprun top` shows. Pure;
// any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "launcher/top/core/job_view.h"

namespace ddprun {

// Ignores unknown fields, and leaves out missing ones, because the sender may be of another
// version. picture: as status_text() takes it (launcher/control/text.h).
JobView view_of(const nlohmann::json& picture);

}  // namespace ddprun
