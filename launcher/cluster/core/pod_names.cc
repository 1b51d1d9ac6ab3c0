#include "launcher/cluster/core/pod_names.h"

namespace ddprun {

// All containers of all pods have the variable. Source: Kubernetes, "Service", "Environment
// variables".
bool is_in_pod(const EnvLookup& lookup) { return lookup("KUBERNETES_SERVICE_HOST").has_value(); }

bool is_name_of(std::string_view name, std::string_view host) {
  if (host.empty() || !name.starts_with(host)) return false;
  name.remove_prefix(host.size());
  return name.empty() || name.front() == '.';
}

// Source: Kubernetes, "DNS for Services and Pods", "Pod's hostname and subdomain fields".
Error within_pod(Error error) {
  error.cause +=
      " (in a pod: name a Service, or a pod as POD.SERVICE, whose headless Service has "
      "publishNotReadyAddresses: true)";
  return error;
}

}  // namespace ddprun
