// Fuzzes the reading of files of torch.save. The input is taken as a file, and also as the
// pickle of one, and as the metadata of a distributed checkpoint. The file's CRCs are not checked,
// because a fuzzer would not guess them. The result is walked recursively, as its readers do.
// Every tensor is checked against its storage again.
//
//   scripts/build fuzz state_archive_fuzz
//   build/fuzz/bin/state_archive_fuzz -max_total_time=60 tests/fuzz/corpus/state_archive
//
// Every build replays the corpus through the same function (corpus_test.cc).
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "worker_lib/serialization/core/state_archive.h"
#include "worker_lib/serialization/core/unpickler.h"

namespace ddprun {
namespace {

// Returns the number of nodes from `node` on, and checks them. bound: max_pickle_nodes() of the
// pickle.
std::size_t walk(const PickleTree& tree, const PickleNode& node, std::size_t depth,
                 std::size_t bound) {
  DDPRUN_ASSERT(depth <= kMaxPickleDepth, "a tree is no deeper than it promises");
  DDPRUN_ASSERT(!to_text(node.kind).starts_with("a name"), "names are in no finished tree");
  DDPRUN_ASSERT(node.kind != PickleKind::kTensor ||
                    static_cast<std::size_t>(node.integer) < tree.tensors.size(),
                "a tensor is described");
  std::size_t count = 1;
  for (const PickleNodeId item : node.items) count += walk(tree, tree[item], depth + 1, bound);
  DDPRUN_ASSERT(count <= bound, "a tree is no larger than it promises");
  return count;
}

// Checks that the tensor lies within its storage, by another computation than the unpickler's.
void check_extent(const PickleTensor& tensor) {
  DDPRUN_ASSERT(tensor.offset >= 0 && tensor.sizes.size() == tensor.strides.size(),
                "it has a place");
  __int128 last = tensor.offset;
  bool empty = false;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    DDPRUN_ASSERT(tensor.sizes[i] >= 0 && tensor.strides[i] >= 0, "nothing is negative");
    empty = empty || tensor.sizes[i] == 0;
    last += static_cast<__int128>(tensor.sizes[i] - 1) * tensor.strides[i];
  }
  DDPRUN_ASSERT(empty || (last + 1) * tensor.dtype.bytes <= tensor.storage.bytes,
                "a tensor lies within its storage");
}

void check(const PickleTree& tree, std::string_view pickle) {
  (void)walk(tree, tree[tree.top], 0, max_pickle_nodes(pickle.size()));
  for (const PickleTensor& tensor : tree.tensors) check_extent(tensor);
}

}  // namespace
}  // namespace ddprun

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  for (const PickleNames names : {PickleNames::kTorch, PickleNames::kDcp})
    if (const Result<PickleTree> tree = unpickle(input, names)) check(*tree, input);
  if (const Result<StateArchive> archive = read_state_archive(input, RecordCrcs::kTrust)) {
    const auto pickle =
        std::ranges::find(archive->records, archive->prefix + "data.pkl", &ZipRecord::name);
    DDPRUN_ASSERT(pickle != archive->records.end(), "the tree is that of a record");
    check(archive->tree, pickle->bytes);
    for (const PickleTensor& tensor : archive->tree.tensors)
      DDPRUN_ASSERT(
          tensor.storage.contents.size() == static_cast<std::uint64_t>(tensor.storage.bytes),
          "a storage has the bytes that its tensors count on");
    for (const ZipRecord& record : archive->records) (void)has_right_crc(record);
  }
  return 0;
}
