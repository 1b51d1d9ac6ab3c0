#include "rendezvous/net/core/backoff.h"

namespace ddprun {

Duration Backoff::next() {
  const Duration nominal = nominal_;
  const auto grown = static_cast<double>(nominal.count()) * options_.factor;
  const auto longest = static_cast<double>(options_.longest.count());
  nominal_ = grown >= longest ? options_.longest : Duration(static_cast<Duration::rep>(grown));

  const auto reach = static_cast<double>(nominal.count()) * options_.spread;
  if (reach < 1) return nominal;
  const std::uint64_t width = 2 * static_cast<std::uint64_t>(reach) + 1;
  return nominal - Duration(static_cast<Duration::rep>(reach)) +
         Duration(static_cast<Duration::rep>(rng_.below(width)));
}

}  // namespace ddprun
