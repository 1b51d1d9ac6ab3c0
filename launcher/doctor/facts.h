// Collects the facts that `ddprun doctor` judges. Each look has a deadline. Looks that may wait
// run in parallel, so all of them take about ten seconds at the very worst. Changes nothing and
// leaves nothing behind. For the main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/host_port.h"
#include "launcher/doctor/core/facts.h"
#include "launcher/doctor/endpoint.h"
#include "launcher/doctor/etcd.h"
#include "launcher/options/core/launch_options.h"

namespace ddprun {

struct DoctorRequest {
  LaunchOptions options;  // of the job; its program may be empty
  std::optional<EndpointRequest> endpoint;
  std::optional<EtcdAsked> etcd;
  std::vector<HostPort> other_services;  // besides the one at `endpoint`
  bool several_nodes = false;
  std::string libtorch;  // given by the user; empty: search for it
};

DoctorFacts collect_facts(const DoctorRequest& request);

}  // namespace ddprun
