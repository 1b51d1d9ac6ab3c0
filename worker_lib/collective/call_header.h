// CallHeader: what a rank says about the collective it is in, so that ranks that disagree find out.
//
// It lies in shared memory and travels between nodes as it is (both are machines of one kind). Pure
// value and functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>

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

// The most bytes of a note that a rank wants known of itself (CpuGroup::write_note).
inline constexpr std::size_t kMaxNoteBytes = 2048;

// Collectives that move bytes without looking at them say what these are all the same; kU8 and a
// number of bytes where the caller did not say it, or the tensors are of several types.
struct CallHeader {
  std::uint64_t sequence = 0;  // of the group's collectives, from 1
  std::uint64_t count = 0;     // of all tensors together
  std::int32_t root = -1;      // -1: there is none
  CallKind kind = CallKind::kBarrier;
  ElementType type = ElementType::kU8;
  ReduceOp op = ReduceOp::kSum;  // that the program asked for
  std::uint8_t leg = 0;       // of a collective that is made of several rounds
  std::uint32_t digest = 0;   // of the tensors' sizes, where there are several, and of their types, where these differ
  std::uint16_t tensors = 1;  // that are carried as one; 65535: or more
  std::uint16_t padding = 0;
  // What the rank knows that makes a shorter way possible. Ranks may differ; then all take the longer one.
  // all_reduce: 1: its tensor lies where the others reach it. all_to_all: 1 and the bytes of each of its
  // pairs, if all are of one size. With the highest bit: it can pull (cpu_calls/cma_collective.h). Else 0.
  std::uint64_t shortcut = 0;

  // Whether the ranks do the same.
  friend bool operator==(const CallHeader& left, const CallHeader& right) {
    const auto what = [](const CallHeader& call) {
      return std::tie(call.sequence, call.count, call.root, call.kind, call.type, call.op, call.leg,
                      call.tensors, call.digest);
    };
    return what(left) == what(right);
  }
};
static_assert(sizeof(CallHeader) == 40 && std::has_unique_object_representations_v<CallHeader>,
              "the bytes travel: none of them is left to chance");

// A rank's header as it lies in the segment and travels between nodes, and with it the bytes of a call that
// has few of them (cpu_calls/inline_collectives.h). A line in all.
struct Arrival {
  CallHeader call;
  char bytes[kCacheLineBytes - sizeof(CallHeader)] = {};
};
static_assert(sizeof(Arrival) == kCacheLineBytes);

// Of the sizes of several tensors: lists that differ have the same one by chance of 1 in 4 billion.
std::uint32_t digest_of(std::span<const std::size_t> sizes);

// "all_reduce #12 of 1048576 f32 (sum)", "broadcast #3 of 400 B in 7 tensors from rank 0".
std::string describe(const CallHeader& call);

// "the ranks disagree: rank 0 called barrier #3; ranks 1 and 2 called all_reduce #3 of 4 f32
// (sum)". ranks: who called what; ascending, one for each call.
std::string disagreement(std::span<const CallHeader> calls, std::span<const int> ranks);

// kInvalidArgument with a table of who called what if the ranks' headers differ. `mine`: for the
// first words of the error.
Result<void> check_agreement(const CallHeader& mine, std::span<const CallHeader> by_rank);

}  // namespace ddprun
