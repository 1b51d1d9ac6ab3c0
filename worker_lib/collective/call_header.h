// CallHeader: a rank's description of the collective it is in. With it, ranks detect that their
// calls differ.
//
// It lies in shared memory and travels between nodes byte by byte; the machines are of one kind.
// Pure value and functions; thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/cache_line.h"
#include "base/result.h"
#include "ddprun/reduce_op.h"
#include "worker_lib/collective/element_type.h"

namespace ddprun {

enum class CallKind : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kMonitoredBarrier,
};

// Returns "all_reduce", for example.
const char* to_text(CallKind kind);

// Maximum size of a rank's note (CpuGroup::write_note).
inline constexpr std::size_t kMaxNoteBytes = 2048;

// Collectives that only move bytes also set `type`. It is kU8, with a number of bytes, if the
// caller gave no type or the tensors have several types.
struct CallHeader {
  std::uint64_t sequence = 0;  // number of the collective in its group, from 1
  std::uint64_t count = 0;     // of all tensors together
  std::int32_t root = -1;      // -1: there is none
  CallKind kind = CallKind::kBarrier;
  ElementType type = ElementType::kU8;
  ReduceOp op = ReduceOp::kSum;  // the operation that the program called
  std::uint8_t phase = 0;        // number of the phase, in a collective of several rounds
  // The digest of the tensors' sizes if there are several, and of their types if these differ.
  std::uint32_t digest = 0;
  std::uint16_t tensors = 1;  // number of tensors carried as one; 65535: or more
  std::uint16_t padding = 0;
  // The rank's facts that allow a faster algorithm; 0: none. If ranks differ, all take the slower
  // one. all_reduce: 1: its tensor lies where the others reach it. all_to_all: 1 plus the bytes of
  // each of its pairs, if all have one size. The highest bit: it can pull
  // (cpu_calls/cma_collective.h).
  std::uint64_t shortcut = 0;

  // Sets the type and counts its elements; for a collective that only moves bytes. Adds the digest
  // of the types if there are several.
  void set_moved_type(ElementType of_bytes, std::uint32_t types) {
    type = of_bytes;
    count /= size_of(of_bytes);
    digest ^= types;
  }

  // Returns whether the ranks make the same call.
  friend bool operator==(const CallHeader& left, const CallHeader& right) {
    const auto what = [](const CallHeader& call) {
      return std::tie(call.sequence, call.count, call.root, call.kind, call.type, call.op,
                      call.phase, call.tensors, call.digest);
    };
    return what(left) == what(right);
  }
};
static_assert(sizeof(CallHeader) == 40 && std::has_unique_object_representations_v<CallHeader>,
              "the bytes travel: none of them is left to chance");

// Arrival: a rank's header as it lies in the segment and travels between nodes, with the bytes
// of a call that has few of them (cpu_calls/inline_collectives.h). It fills one cache line.
struct Arrival {
  CallHeader call;
  char bytes[kCacheLineBytes - sizeof(CallHeader)] = {};
};
static_assert(sizeof(Arrival) == kCacheLineBytes);

// Returns a digest of the sizes of several tensors. Different lists have the same digest with a
// probability of 1 in 4 billion.
std::uint32_t digest_of(std::span<const std::size_t> sizes);

// Returns the header of a collective on these tensors, with the fields that follow from their
// sizes. bytes_of(tensor): its size.
template <class Tensors, class BytesOf>
CallHeader header_of(const Tensors& tensors, BytesOf bytes_of) {
  CallHeader header{.tensors =
                        static_cast<std::uint16_t>(std::min<std::size_t>(tensors.size(), 65535))};
  for (const auto& tensor : tensors) header.count += bytes_of(tensor);
  if (tensors.size() > 1) {
    std::vector<std::size_t> sizes;
    for (const auto& tensor : tensors) sizes.push_back(bytes_of(tensor));
    header.digest = digest_of(sizes);
  }
  return header;
}

// Returns "all_reduce #12 of 1048576 f32 (sum)",
// "broadcast #3 of 400 B in 7 tensors from rank 0".
std::string describe(const CallHeader& call);

// Returns "the ranks disagree: rank 0 called barrier #3; ranks 1 and 2 called all_reduce #3 of 4
// f32 (sum)". ranks: the ranks of `calls`, in ascending order.
std::string disagreement(std::span<const CallHeader> calls, std::span<const int> ranks);

// Returns kInvalidArgument with a table of all calls if the ranks' headers differ. `mine` begins
// the error.
Result<void> check_agreement(const CallHeader& mine, std::span<const CallHeader> by_rank);

}  // namespace ddprun
