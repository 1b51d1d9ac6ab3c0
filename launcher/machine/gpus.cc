#include "launcher/machine/gpus.h"

#include "base/worker_env.h"
#include "launcher/machine/nvml.h"

namespace ddprun {

std::vector<PresentGpu> present_gpus() {
  const Result<Nvml> nvml = Nvml::open();
  return nvml ? nvml->gpus() : std::vector<PresentGpu>();
}

std::vector<VisibleGpu> visible_gpus_here() {
  return visible_gpus(environment_variable("CUDA_VISIBLE_DEVICES"), present_gpus());
}

}  // namespace ddprun
