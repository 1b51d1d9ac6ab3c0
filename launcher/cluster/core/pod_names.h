// Names of pods. The name of a pod resolves only some time after the pod was started. Then the
// headless Service of its subdomain and the cluster's DNS know its address.
//
// Pure; any thread.
#pragma once

#include <string_view>

#include "base/error.h"
#include "base/worker_env.h"

namespace ddprun {

// Returns whether this process is in a pod of Kubernetes.
bool is_in_pod(const EnvLookup& lookup);

// Returns whether `name` is the name of this host. Both may have a domain or a part of it:
// "train-0.train" is a name of "train-0" and of "train-0.train.default.svc.cluster.local".
bool is_name_of(std::string_view name, std::string_view host);

// Adds to the error of a look-up what a name needs in order to resolve in a pod.
Error within_pod(Error error);

}  // namespace ddprun
