// The layout of PyTorch's distributed checkpoints (torch.distributed.checkpoint): a directory with
// a data file and `.metadata`, a pickle that says where each value is. Each value is a file of
// torch.save within the data file.
//
// The classes in the pickle have been the same since PyTorch 2.1. Fields that later versions add
// have defaults, and are left out. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "worker_lib/serialization/core/pickle_value.h"

namespace ddprun {

inline constexpr const char* kDcpDataName = "__0_0.distcp";
inline constexpr const char* kDcpMetadataName = ".metadata";

// A value that is saved by itself. The layout has one level: "model.0.weight".
struct DcpLeaf {
  std::string name;
  std::vector<std::variant<std::string, std::int64_t>> path;  // keys of dicts, places in lists
  const PickleTensor* tensor = nullptr;                       // null: another value
  PickleNodeId value = 0;
};

// Returns the values as PyTorch 2.4 and newer divide a state dict: dicts, and lists with tensors or
// dicts, are taken apart. Empty dicts in dicts vanish. kUnsupported: the layout cannot have a key.
Result<std::vector<DcpLeaf>> dcp_leaves(const PickleTree& tree);

struct DcpItem {
  const DcpLeaf* leaf = nullptr;
  std::uint64_t at = 0, bytes = 0;  // in the data file
};

// Returns the bytes of `.metadata`.
std::string dcp_metadata(const std::vector<DcpItem>& items);

}  // namespace ddprun
