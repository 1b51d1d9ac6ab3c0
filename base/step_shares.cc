#include "base/step_shares.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/worker_page.h"

namespace ddprun {
namespace {

// Numbers of WorkerPage::spare: hundredths of a percent plus 1; 0: not known. docs/how-to/hangs.md
// describes them.
enum Place : std::size_t { kData, kForward, kBackward, kCommunication, kCheckpoint };

constexpr std::uint32_t kWhole = 10'000;

void write_share(WorkerPage& page, Place place, double percent) {
  const double hundredths = std::round(std::clamp(percent, 0.0, 100.0) * 100);
  std::atomic_ref(page.spare[place])
      .store(static_cast<std::uint32_t>(hundredths) + 1, std::memory_order_relaxed);
}

std::optional<double> read_share(const WorkerPage& page, Place place) {
  const std::uint32_t value = __atomic_load_n(&page.spare[place], __ATOMIC_RELAXED);
  if (value == 0 || value > kWhole + 1) return std::nullopt;
  return (value - 1) / 100.0;
}

}  // namespace

void write_step_shares(const StepShares& shares, WorkerPage& page) {
  if (shares.data) write_share(page, kData, *shares.data);
  write_share(page, kForward, shares.forward);
  write_share(page, kBackward, shares.backward);
  write_share(page, kCommunication, shares.communication);
  write_share(page, kCheckpoint, shares.checkpoint);
}

std::optional<StepShares> read_step_shares(const WorkerPage& page) {
  const std::optional<double> forward = read_share(page, kForward);
  const std::optional<double> backward = read_share(page, kBackward);
  const std::optional<double> communication = read_share(page, kCommunication);
  const std::optional<double> checkpoint = read_share(page, kCheckpoint);
  if (!forward || !backward || !communication || !checkpoint) return std::nullopt;
  return StepShares{.data = read_share(page, kData),
                    .forward = *forward,
                    .backward = *backward,
                    .communication = *communication,
                    .checkpoint = *checkpoint};
}

}  // namespace ddprun
