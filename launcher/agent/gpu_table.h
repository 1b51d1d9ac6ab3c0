// GpuTable: how much the GPU of each worker is in use, by NVML.
//
// NVML's calls may block for seconds, or for ever if a GPU has failed. So one thread makes them,
// which is started when the first person asks and is never waited for. It loads NVML and keeps it
// until the table is destroyed. It takes a sample only when one is asked for.
//
// Owner: NodeWorkers, on the agent's one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launcher/machine/nvml.h"

namespace ddprun {

class GpuTable {
 public:
  // A sample that is older is not shown.
  static constexpr Duration kLasts = std::chrono::seconds(5);

  // devices: CUDA_VISIBLE_DEVICES of each worker, by local rank; nullopt: it is not set. A worker's
  // GPU is the one that it sees, or the one with the number of its local rank if it sees more.
  explicit GpuTable(std::vector<std::optional<std::string>> devices);
  ~GpuTable();
  GpuTable(const GpuTable&) = delete;
  GpuTable& operator=(const GpuTable&) = delete;

  // Returns the last sample, by local rank, and asks for another one. Empty: there is none yet, the
  // last one is too old, or this host has no driver. Never blocks.
  std::vector<GpuUse> use(TimePoint now);

 private:
  struct Shared;
  static void sample_when_asked(Shared& shared);

  std::shared_ptr<Shared> shared_;  // with the thread
  bool is_started_ = false;
};

// Returns the use of each worker's GPU. visible: as of GpuTable. use: of `present`, in its order.
std::vector<GpuUse> use_by_worker(const std::vector<std::optional<std::string>>& visible,
                                  const std::vector<PresentGpu>& present,
                                  const std::vector<GpuUse>& use);

}  // namespace ddprun
