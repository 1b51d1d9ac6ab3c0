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

  // At least one tensor, each sound by itself.
  void list(const char* name, const std::vector<torch::Tensor>& list) const;
  // The same, all of one dtype.
  void list_of_one_dtype(const char* name, const std::vector<torch::Tensor>& list) const;
  // One tensor per rank, each sound by itself and of the dtype of like[0], whatever its shape.
  void one_dtype_per_rank(const char* name, const std::vector<torch::Tensor>& list,
                          const char* like_name, const std::vector<torch::Tensor>& like) const;
  void same_dtype(const char* name, const torch::Tensor& tensor, const char* like_name,
                  const torch::Tensor& like) const;
  // `whole`, sound by itself, holds a part like `part` for each rank, in any shape.
  void parts_of_all(const std::string& name, const torch::Tensor& whole,
                    const std::string& part_name, const torch::Tensor& part) const;
  // The same of each one of two lists, which are equally long.
  void parts_of_each(const char* name, const std::vector<torch::Tensor>& wholes,
                     const char* part_name, const std::vector<torch::Tensor>& parts) const;
  // Lengths of each rank's share of the first dimension: what was given, else equal ones.
  std::vector<std::int64_t> splits(const char* name, const std::vector<std::int64_t>& given,
                                   const char* tensor_name, const torch::Tensor& tensor) const;

  // The list that only the root passes: as one_per_rank there, empty elsewhere.
  void roots_list(const char* name, const std::vector<torch::Tensor>& list, const char* like_name,
                  const torch::Tensor& like, int root) const;

  // Values that only the root passes, one per rank.
  void roots_values(const char* name, std::size_t given, int root) const;

  // No two tensors that are written share memory.
  void written_apart(const char* name, const std::vector<torch::Tensor>& list) const;

  // `tensor` shares no memory with the list, or is exactly list[own rank].
  void apart_or_own(const char* name, const torch::Tensor& tensor, const char* list_name,
                    const std::vector<torch::Tensor>& list) const;

  // No tensor that is written shares memory with one that is read.
  void apart(const char* name, const std::vector<torch::Tensor>& written, const char* list_name,
             const std::vector<torch::Tensor>& read) const;
  // `tensor` shares no memory with the list.
  void apart(const char* name, const torch::Tensor& tensor, const char* list_name,
             const std::vector<torch::Tensor>& list) const;

  // The reduction is defined for the dtype; the factor is 1 where it would not be looked at.
  void op(ReduceOp op, double factor, const torch::Tensor& tensor) const;

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
  void must_be_one_per_rank(const char* name, const std::vector<torch::Tensor>& list) const;
  [[noreturn]] void explain(const std::string& name, const torch::Tensor& tensor) const;

  const char* call_;
  torch::Device device_;
  int rank_;
  int size_;
};

}  // namespace ddprun
