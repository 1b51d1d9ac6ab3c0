#include "ddprun/metrics.h"

#include <limits>

#include "base/concat.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {

void MetricAccumulator::add(const std::string& name, double sum, double count) {
  if (!(count >= 0))
    refuse(concat("MetricAccumulator: '", name, "' over ", std::to_string(count),
                  " samples; a count is at least 0"));
  Total& total = totals_[name];
  total.sum += sum;
  total.count += count;
}

MetricAccumulator MetricAccumulator::merged(ProcessGroup& group,
                                            std::optional<Timeout> timeout) const {
  nlohmann::json mine = nlohmann::json::object();
  for (const auto& [name, total] : totals_) mine[name] = {total.sum, total.count};
  MetricAccumulator all;
  for (const nlohmann::json& of_rank : group.all_gather_object(mine, timeout))
    for (const auto& [name, total] : of_rank.items())
      all.add(name, total.at(0).get<double>(), total.at(1).get<double>());
  return all;
}

double MetricAccumulator::mean(const std::string& name) const {
  const Total& of_name = total(name);
  return of_name.count > 0 ? of_name.sum / of_name.count : std::numeric_limits<double>::quiet_NaN();
}

const MetricAccumulator::Total& MetricAccumulator::total(const std::string& name) const {
  const auto found = totals_.find(name);
  if (found == totals_.end()) refuse("MetricAccumulator: nothing was added as '" + name + "'");
  return found->second;
}

}  // namespace ddprun
