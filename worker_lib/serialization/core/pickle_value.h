// The contents of a pickle of torch.save, as a tree of plain values. No Python object is ever
// made of it.
//
// The nodes are in one vector and refer to each other by number, so that a tree of any depth is
// destroyed without recursion. A node that the pickle refers to more than once exists once. So a
// PickleTree is a graph without cycles. It is at most kMaxPickleDepth deep, and has at most
// max_pickle_nodes() nodes even if every shared node is counted each time that it is met. So a
// recursive walk is safe.
//
// Plain values; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

inline constexpr std::size_t kMaxPickleDepth = 100;
inline constexpr std::size_t kMaxPickleNodes = std::size_t{1} << 22;  // of a small pickle
// A byte of a pickle makes at most 3 nodes and items, unless it copies earlier ones.
inline constexpr std::size_t kPickleNodesPerByte = 4;

// Returns the bound for a pickle of this size. It grows with the size, so that everything that
// can be written can be read, up to the range of PickleNodeId.
constexpr std::size_t max_pickle_nodes(std::size_t bytes) {
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (bytes > kMost / kPickleNodesPerByte) return kMost;
  return std::max(kMaxPickleNodes, bytes * kPickleNodesPerByte);
}

// A dtype of PyTorch: its name ("float32") and the size of an element.
struct PickleDtype {
  std::string_view name;
  std::int64_t bytes = 0;
  bool operator==(const PickleDtype&) const = default;
};

// Before _rebuild_tensor_v3 the class of the storage determined the dtype.
struct StorageClass {
  std::string_view name;   // "MODULE NAME"
  std::string_view dtype;  // empty: untyped bytes; the tensor has its dtype
};
inline constexpr std::array kStorageClasses = std::to_array<StorageClass>({
    {"torch FloatStorage", "float32"},
    {"torch DoubleStorage", "float64"},
    {"torch HalfStorage", "float16"},
    {"torch BFloat16Storage", "bfloat16"},
    {"torch LongStorage", "int64"},
    {"torch IntStorage", "int32"},
    {"torch ShortStorage", "int16"},
    {"torch CharStorage", "int8"},
    {"torch ByteStorage", "uint8"},
    {"torch BoolStorage", "bool"},
    {"torch ComplexFloatStorage", "complex64"},
    {"torch ComplexDoubleStorage", "complex128"},
    {"torch.storage UntypedStorage", ""},
    {"torch UntypedStorage", ""},
});

// A storage, which is a record of the archive: "data/KEY".
struct PickleStorage {
  std::string key = {};
  std::int64_t bytes = 0;
  // These are of an archive, not of a pickle alone: the record's bytes, and its number. Tensors
  // with the same number share a storage.
  std::string_view contents = {};
  std::size_t record = 0;
};

// A tensor as a view of its storage. Every element lies within the storage's bytes. Sizes and
// their product are in the range of int64.
struct PickleTensor {
  PickleStorage storage;
  PickleDtype dtype;
  std::int64_t offset = 0;  // in elements, like the strides
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  bool requires_grad = false;
};

enum class PickleKind {
  kNone,
  kBool,        // integer: 0 or 1
  kInteger,     // integer
  kBigInteger,  // text: two's complement, little-endian; too large for 64 bits
  kDouble,      // real
  kString,      // text, in UTF-8
  kBytes,       // text
  kList,        // items
  kTuple,       // items; a torch.Size is one too
  kSet,         // items
  kDict,    // items: key, value, key, value, ... in the order of insertion; an OrderedDict is one
  kTensor,  // integer: index into PickleTree::tensors; a Parameter is one
  kDtype,   // text: "float32"
  kDevice,  // text: "cuda:0"
};

// Returns "a list" and the like, for messages.
std::string_view to_text(PickleKind kind);

using PickleNodeId = std::uint32_t;

struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<PickleNodeId> items;
};

// An entry of a dict.
struct PickleEntry {
  PickleNodeId key, value;
};

// Returns the entries of a dict, in order.
std::vector<PickleEntry> entries_of(const PickleNode& dict);

struct PickleTree {
  std::vector<PickleNode> nodes;
  std::vector<PickleTensor> tensors;
  PickleNodeId top = 0;

  const PickleNode& operator[](PickleNodeId id) const { return nodes[id]; }
  // Returns the value of a dict under a string; nullptr if there is none, or if the node is no
  // dict.
  const PickleNode* find(const PickleNode& dict, std::string_view key) const;
};

}  // namespace ddprun
