#include "base/step_shares.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "base/worker_page.h"

namespace ddprun {
namespace {

constexpr std::uint32_t kWhole = 10'000;

void write_share(std::atomic<std::uint32_t>& share, double percent) {
  const double hundredths = std::round(std::clamp(percent, 0.0, 100.0) * 100);
  share.store(static_cast<std::uint32_t>(hundredths) + 1, std::memory_order_relaxed);
}

std::optional<double> read_share(const std::atomic<std::uint32_t>& share) {
  const std::uint32_t value = share.load(std::memory_order_relaxed);
  if (value == 0 || value > kWhole + 1) return std::nullopt;
  return (value - 1) / 100.0;
}

}  // namespace

void write_step_shares(const StepShares& shares, WorkerPage& page) {
  if (shares.data) write_share(page.data_share, *shares.data);
  write_share(page.forward_share, shares.forward);
  write_share(page.backward_share, shares.backward);
  write_share(page.communication_share, shares.communication);
  write_share(page.checkpoint_share, shares.checkpoint);
}

std::optional<StepShares> read_step_shares(const WorkerPage& page) {
  const std::optional<double> forward = read_share(page.forward_share);
  const std::optional<double> backward = read_share(page.backward_share);
  const std::optional<double> communication = read_share(page.communication_share);
  const std::optional<double> checkpoint = read_share(page.checkpoint_share);
  if (!forward || !backward || !communication || !checkpoint) return std::nullopt;
  return StepShares{.data = read_share(page.data_share),
                    .forward = *forward,
                    .backward = *backward,
                    .communication = *communication,
                    .checkpoint = *checkpoint};
}

}  // namespace ddprun
