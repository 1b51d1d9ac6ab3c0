// Gives the result of statistics() PyTorch's names.
#include <nlohmann/json.hpp>

#include "ddprun/data_parallel.h"

namespace ddprun {
namespace {

template <class Values, class ToText>
std::string joined(const Values& values, const char* separator, ToText to_text) {
  std::string text;
  for (const auto& value : values) {
    if (!text.empty()) text += separator;
    text += to_text(value);
  }
  return text;
}

std::string index_text(std::size_t index) { return std::to_string(index); }

std::string sizes_of(const std::vector<BucketContents>& buckets) {
  return joined(buckets, ", ",
                [](const BucketContents& bucket) { return std::to_string(bucket.bytes); });
}

std::string parameters_of(const std::vector<BucketContents>& buckets) {
  return joined(buckets, ", ", [](const BucketContents& bucket) {
    return joined(bucket.parameters, " ", index_text);
  });
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
      {"prev_iteration_grad_ready_order_indices", joined(of.ready_order, ", ", index_text)},
      {"num_parameter_tensors", of.parameters.size()},
      {"total_parameter_size_bytes", of.parameter_bytes},
      {"unused_parameter_size", of.unused_bytes},
      {"dtypes", joined(of.dtypes, ", ", [](const std::string& dtype) { return dtype; })},
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
