// Gives the result of statistics() PyTorch's names.
#include <nlohmann/json.hpp>

#include "base/joined.h"
#include "ddprun/data_parallel.h"

namespace ddprun {
namespace {

std::string indices_of(const std::vector<std::size_t>& indices, const char* between) {
  std::vector<std::string> texts;
  for (const std::size_t index : indices) texts.push_back(std::to_string(index));
  return joined(texts, between);
}

std::string sizes_of(const std::vector<BucketContents>& buckets) {
  std::vector<std::string> texts;
  for (const BucketContents& bucket : buckets) texts.push_back(std::to_string(bucket.bytes));
  return joined(texts);
}

std::string parameters_of(const std::vector<BucketContents>& buckets) {
  std::vector<std::string> texts;
  for (const BucketContents& bucket : buckets) texts.push_back(indices_of(bucket.parameters, " "));
  return joined(texts);
}

}  // namespace

nlohmann::json logging_data(const DataParallelStatistics& of) {
  nlohmann::json data{
      {"world_size", of.world_size},
      {"rank", of.rank},
      {"module_name", of.module},
      {"backend_name", of.backend},
      {"bucket_cap_bytes", of.bucket_bytes},
      {"bucket_sizes", sizes_of(of.first_buckets)},
      {"has_rebuilt_buckets", static_cast<int>(of.has_rebuilt_buckets)},
      {"prev_iteration_grad_ready_order_indices", indices_of(of.ready_order, ", ")},
      {"num_parameter_tensors", of.parameters.size()},
      {"total_parameter_size_bytes", of.parameter_bytes},
      {"unused_parameter_size", of.unused_bytes},
      {"dtypes", joined(of.dtypes)},
      {"iteration", of.passes},
      {"num_buckets_reduced", of.last ? of.last->buckets.size() : 0},
      {"find_unused_parameters", static_cast<int>(of.find_unused_parameters)},
      {"gradient_as_bucket_view", static_cast<int>(of.gradient_as_bucket_view)},
      {"broadcast_buffers", static_cast<int>(of.broadcast_buffers)},
      {"static_graph", static_cast<int>(of.static_graph)},
      {"comm_hook", of.comm_hook},
  };
  if (of.has_rebuilt_buckets) {
    data["rebuilt_bucket_sizes"] = sizes_of(of.buckets);
    data["rebuilt_per_bucket_param_indices"] = parameters_of(of.buckets);
  }
  if (!of.last) return data;
  const auto add = [&data](const std::string& name, Timeout last, Timeout mean) {
    data[name] = last.count();
    data["avg_" + name] = mean.count();
  };
  add("forward_compute_time", of.last->forward, of.recent.forward.mean);
  add("backward_compute_time", of.last->compute, of.recent.compute.mean);
  add("backward_comm_time", of.last->communication, of.recent.communication.mean);
  add("backward_compute_comm_overlap_time", of.last->overlap, of.recent.overlap.mean);
  return data;
}

}  // namespace ddprun
