// PassCheck: this rank's part of a synchronised backward pass, with which it judges the words of
// all ranks (core/pass_words.h).
//
// A Reducer makes it at the end of the pass. The group must outlive it. One thread at a time.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/ddp/core/pass_words.h"

namespace ddprun {

inline constexpr const char* kBackwardPass = "backward pass of DistributedDataParallel";

// Throws a DistError about a backward pass.
[[noreturn]] void refuse_pass(const std::string& what,
                              DistError::Kind kind = DistError::Kind::kInvalidArgument,
                              int peer_rank = -1);

// kAlone: without a collective, because the other ranks are elsewhere. Its messages name less.
enum class Looking { kTogether, kAlone };

struct PassCheck {
  ProcessGroup& group;
  std::optional<Timeout> timeout = {};
  bool is_static_graph = false;
  std::vector<std::string> missing = {};  // parameters without a gradient
  bool is_nested = false;                 // within another backward pass
  ChosenEpochs epochs = {};
  std::vector<Work> works = {};  // of the pass
  double scale = 1;              // factor that makes the words sums

  // Returns the sums of the words. Throws unless the pass was reduced and is complete on all
  // ranks. words: on the host.
  PassWords look_at(const torch::Tensor& words, Looking how) const;
};

}  // namespace ddprun
