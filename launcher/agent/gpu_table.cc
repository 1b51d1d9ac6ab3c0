#include "launcher/agent/gpu_table.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/background_thread.h"

namespace ddprun {

struct GpuTable::Shared {
  std::vector<std::optional<std::string>> devices;
  std::mutex mutex;
  std::condition_variable asked_for;
  // With the mutex:
  bool is_asked = true;
  bool is_over = false;
  std::optional<TimePoint> when;
  std::vector<GpuUse> use;  // by local rank
};

GpuTable::GpuTable(std::vector<std::optional<std::string>> devices)
    : shared_(std::make_shared<Shared>()) {
  shared_->devices = std::move(devices);
}

GpuTable::~GpuTable() {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_over = true;
  shared_->asked_for.notify_all();
}

std::vector<GpuUse> GpuTable::use(TimePoint now) {
  if (!std::exchange(is_started_, true)) {
    // Without a thread there are no figures, as without a driver.
    (void)start_detached_thread("ddprun-gpus", [shared = shared_] { sample_when_asked(*shared); });
    return {};
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->is_asked = true;
  shared_->asked_for.notify_all();
  const bool is_recent = shared_->when && now <= *shared_->when + kLasts;
  return is_recent ? shared_->use : std::vector<GpuUse>();
}

void GpuTable::sample_when_asked(Shared& shared) {
  const Result<Nvml> nvml = Nvml::open();
  if (!nvml) return;
  const std::vector<PresentGpu> present = nvml->gpus();
  std::unique_lock lock(shared.mutex);
  for (;;) {
    shared.asked_for.wait(lock, [&] { return shared.is_asked || shared.is_over; });
    if (shared.is_over) return;
    shared.is_asked = false;
    lock.unlock();
    std::vector<GpuUse> use = use_by_worker(shared.devices, present, nvml->use());
    lock.lock();
    shared.use = std::move(use);
    shared.when = BootClock::now();
  }
}

std::vector<GpuUse> use_by_worker(const std::vector<std::optional<std::string>>& visible,
                                  const std::vector<PresentGpu>& present,
                                  const std::vector<GpuUse>& use) {
  std::vector<GpuUse> by_worker(visible.size());
  for (std::size_t worker = 0; worker < visible.size(); ++worker) {
    const std::vector<VisibleGpu> seen = visible_gpus(visible[worker], present);
    const std::size_t at = seen.size() == 1 ? 0 : worker;
    if (at >= seen.size() || seen[at].bus_id.empty()) continue;
    const auto gpu = std::ranges::find(present, seen[at].bus_id, &PresentGpu::bus_id);
    const auto index = static_cast<std::size_t>(gpu - present.begin());
    if (index < use.size()) by_worker[worker] = use[index];
  }
  return by_worker;
}

}  // namespace ddprun
