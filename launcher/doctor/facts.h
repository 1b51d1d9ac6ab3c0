// Collects what `ddprun doctor` judges: each look has a deadline, and what waits for others runs side
// by side, so that all of it takes some ten seconds at the very worst. Nothing is changed, nothing
// left behind. For the main thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/doctor/core/facts.h"
#include "launcher/doctor/endpoint.h"
#include "launcher/options/core/launch_options.h"

namespace ddprun {

struct DoctorWish {
  LaunchOptions options;  // of the job; its program may be empty
  std::optional<EndpointWish> endpoint;
  bool several_nodes = false;
  std::string libtorch;  // where it is; empty: where it is looked for
};

DoctorFacts collect_facts(const DoctorWish& command);

}  // namespace ddprun
