// Weights: the tensors of a model in the files of another tool. Free functions; failures throw
// Failed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker_lib/serialization/core/pickle_value.h"

namespace ddprun {

// Bytes of a file.
struct Run {
  std::size_t file = 0;  // index into Weights::paths
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> crc = {};  // if it is known
};

struct Weight {
  std::string name;
  PickleTensor tensor;            // with the size of its storage
  std::vector<Run> runs;          // its storage, in order
  std::vector<Run> records = {};  // with CRCs, of which the runs are parts
};

struct Weights {
  std::vector<std::string> paths;
  std::vector<Weight> weights;
  std::vector<std::string> left_out;  // names of other values
};

// Reads the header of a file of safetensors, which is compared with the file's size.
Weights read_safetensors(const std::string& path);

// Reads what a directory in the layout of PyTorch's distributed checkpoints has under "model"; all
// tensors, if there is no such entry. Shards of a tensor are put together.
Weights read_dcp(const std::string& path);

}  // namespace ddprun
