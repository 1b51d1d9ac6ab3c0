// CallHeader: what a rank says about the collective it is in, so that ranks that disagree find out.
//
// It lies in shared memory and travels between nodes as it is (both are machines of one kind). Pure
// value and functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "base/result.h"
#include "ddprun/reduce_op.h"
#include "worker_lib/cpu/element_type.h"

namespace ddprun {

enum class CallKind : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kBarrier,
};

// Collectives that move bytes without looking at them have type kU8 and count bytes.
struct CallHeader {
  std::uint64_t sequence = 0;  // of the group's collectives, from 1
  std::uint64_t count = 0;
  std::int32_t root = -1;  // -1: there is none
  CallKind kind = CallKind::kBarrier;
  ElementType type = ElementType::kU8;
  std::uint16_t padding = 0;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t more_padding = 0;

  friend bool operator==(const CallHeader&, const CallHeader&) = default;
};
static_assert(sizeof(CallHeader) == 32 && std::has_unique_object_representations_v<CallHeader>,
              "the bytes travel: none of them is left to chance");

// "all_reduce #12 of 1048576 f32 (sum)", "broadcast #3 of 400 B from rank 0".
std::string describe(const CallHeader& call);

// kInvalidArgument with a table of who called what if the ranks' headers differ. `mine`: for the
// first words of the error.
Result<void> check_agreement(const CallHeader& mine, std::span<const CallHeader> by_rank);

}  // namespace ddprun
