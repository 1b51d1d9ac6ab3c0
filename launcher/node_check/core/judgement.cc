#include "launcher/node_check/core/judgement.h"

#include <algorithm>
#include <cmath>

#include "base/concat.h"
#include "launcher/node_check/core/speed_text.h"

namespace ddprun {
namespace {

bool is_slow(const LinkMeasurement& link, const NodeLimits& limits) {
  return !link.error.empty() || link.bytes_per_s < limits.link;
}

}  // namespace

std::string fault_of(const NodeMeasurements& measured, const NodeLimits& limits) {
  if (measured.digest != kKnownDigest) {
    return concat("core: a known computation gave ", measured.digest, " instead of ", kKnownDigest);
  }
  // Before the speeds, which it explains.
  if (measured.throttled > limits.throttled) {
    return concat("core: a CPU quota (cpu.max) stopped it for ",
                  std::llround(measured.throttled * 100), " % of the time (limit ",
                  std::llround(limits.throttled * 100), " %)");
  }
  if (measured.core > limits.core) {
    return concat("core: ", measured.core, " of CPU time for a known computation (limit ",
                  limits.core, ")");
  }
  if (measured.memory < limits.memory) return too_slow("memory", measured.memory, limits.memory);
  if (!measured.disk_error.empty()) return "disk: " + measured.disk_error;
  if (!measured.loopback_error.empty()) return "loopback: " + measured.loopback_error;
  if (measured.loopback < limits.loopback) {
    return too_slow("loopback", measured.loopback, limits.loopback);
  }
  return "";
}

std::string fault_of(const std::vector<LinkMeasurement>& links, NodeRank own, int node_count,
                     const NodeLimits& limits) {
  const auto slow = [&](const LinkMeasurement& link) { return is_slow(link, limits); };
  if (links.empty() || !std::ranges::all_of(links, slow)) return "";
  const LinkMeasurement& first = links.front();
  const bool is_one = std::ranges::all_of(
      links, [&](const LinkMeasurement& link) { return link.node == first.node; });
  if (is_one && (node_count > 2 || own < first.node)) return "";
  const std::string with = concat(" with node ", first.node, " (", first.host, ")");
  std::string fault = first.error.empty()
                          ? concat("link", with, ": ", speed_text(first.bytes_per_s))
                          : concat("link", with, ": ", first.error);
  fault += concat(" (limit ", speed_text(limits.link), ")");
  fault += is_one
               ? "; which end is slow is not known, and the higher node rank gives way"
               : concat("; slow with node ", links.back().node, " (", links.back().host, "), too");
  return fault;
}

}  // namespace ddprun
