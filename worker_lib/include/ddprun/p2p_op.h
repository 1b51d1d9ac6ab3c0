// P2POp: one message of a batch, for ProcessGroup::batch_isend_irecv().
#pragma once

#include <torch/types.h>

namespace ddprun {

// The source of a receive that accepts the next message of its tag from any rank.
inline constexpr int kAnySource = -1;

struct P2POp {
  enum class Kind { kSend, kRecv };
  Kind kind = Kind::kSend;
  torch::Tensor tensor;
  int peer = 0;  // destination or source
  int tag = 0;
};

}  // namespace ddprun
