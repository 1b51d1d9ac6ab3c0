// MetricAccumulator: merges metrics that each rank counts by itself over all ranks, weighted by
// samples.
//
//   ddprun::MetricAccumulator metrics;
//   for (auto& batch : *loader) metrics.add_mean("loss", loss_of(batch), batch.size());
//   const auto all = metrics.merged(ctx.group());
//   if (ctx.rank() == 0) std::cout << all.mean("loss") << "\n";
//
// The result is also right if ranks have different numbers of samples, as with
// DistributedEvalSampler, or none. One thread owns it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "ddprun/process_group.h"

namespace ddprun {

class MetricAccumulator {
 public:
  struct Total {
    double sum = 0;
    double count = 0;
  };

  // Adds a sum over `count` samples. Throws kInvalidArgument for a negative count.
  void add(const std::string& name, double sum, double count = 1);
  // Adds a mean over `samples` samples, as loss functions give it.
  void add_mean(const std::string& name, double mean, double samples) {
    add(name, mean * samples, samples);
  }

  // Returns the totals of all ranks, with the same bits on each (summed in rank order).
  // Collective. A name that a rank has not counted adds nothing for that rank. Throws as
  // collectives.
  MetricAccumulator merged(ProcessGroup& group, std::optional<Timeout> timeout = {}) const;

  // Return the value of a name; NaN if nothing was counted. Throw kInvalidArgument for a name
  // that was never added.
  double mean(const std::string& name) const;
  double sum(const std::string& name) const { return total(name).sum; }
  double count(const std::string& name) const { return total(name).count; }

  const std::map<std::string, Total>& totals() const { return totals_; }
  void clear() { totals_.clear(); }

 private:
  const Total& total(const std::string& name) const;

  std::map<std::string, Total> totals_;
};

}  // namespace ddprun
