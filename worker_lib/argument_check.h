// ArgumentCheck: what ProcessGroup demands of the arguments of a call, before anything is sent.
//
// One is made per call; it holds nothing but who asks. Every check throws DistError
// kInvalidArgument that names the call, the argument, the rule and what was given. Caller's thread.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ddprun/reduce_op.h"

namespace ddprun {

class ArgumentCheck {
 public:
  // call: "all_reduce". The strings are kept by pointer.
  ArgumentCheck(const char* call, torch::Device device, int rank, int size)
      : call_(call), device_(device), rank_(rank), size_(size) {}

  // Defined, dense, contiguous, on the group's device, of a dtype that collectives know.
  void tensor(const char* name, const torch::Tensor& tensor) const;

  // One tensor per rank, each sound by itself and of the shape and dtype of `like`.
  void one_per_rank(const char* name, const std::vector<torch::Tensor>& list, const char* like_name,
                    const torch::Tensor& like) const;

  // The list that only the root passes: as one_per_rank there, empty elsewhere.
  void roots_list(const char* name, const std::vector<torch::Tensor>& list, const char* like_name,
                  const torch::Tensor& like, int root) const;

  // No two tensors that are written share memory.
  void written_apart(const char* name, const std::vector<torch::Tensor>& list) const;

  // `tensor` shares no memory with the list, or is exactly list[own rank].
  void apart_or_own(const char* name, const torch::Tensor& tensor, const char* list_name,
                    const std::vector<torch::Tensor>& list) const;

  // `tensor` shares no memory with the list.
  void apart(const char* name, const torch::Tensor& tensor, const char* list_name,
             const std::vector<torch::Tensor>& list) const;

  // The reduction is defined for the dtype.
  void op(ReduceOp op, const torch::Tensor& tensor) const;

  // A rank of the group.
  void root(int root) const;

  // Another rank of the group. name: "destination" or "source".
  void peer(const char* name, int peer) const;

  // Another rank of the group, or kAnySource where there is one.
  void source(int source) const;

  void tag(int tag) const;

  // The timeout of the call: what was asked for, else the group's; more than zero, and no longer than
  // a backend can compute with (kLongestTimeout).
  Duration timeout(std::optional<Duration> asked, Duration of_group) const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  bool on_device(const torch::Tensor& tensor) const;
  bool is_sound(const torch::Tensor& tensor) const;
  void must_be_rank(const char* name, int rank) const;
  [[noreturn]] void explain(const std::string& name, const torch::Tensor& tensor) const;

  const char* call_;
  torch::Device device_;
  int rank_;
  int size_;
};

}  // namespace ddprun
