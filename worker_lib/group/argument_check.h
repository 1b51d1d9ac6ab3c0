// ArgumentCheck: checks the arguments of a ProcessGroup call, before anything is sent.
//
// One object is made per call. It holds the caller's name and, from the first tensor on, the
// call's device. Every check throws DistError kInvalidArgument that names the call, the
// argument, the rule and the given value. Caller's thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/deadline.h"
#include "ddprun/backend.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {

// DeviceTypes: the types of devices whose tensors a group accepts.
class DeviceTypes {
 public:
  explicit DeviceTypes(const Backend& backend);

  bool holds(torch::DeviceType type) const { return (types_ >> static_cast<int>(type) & 1) != 0; }
  // Returns "cpu, the group's device" or "cpu or cuda, the group's devices".
  std::string to_text() const;

 private:
  std::uint64_t types_ = 0;  // one bit for each type
};

// Returns the rest of a timeout that covers several collectives, never zero. If the deadline has
// passed, the next collective reports it, with the ranks that are missing.
inline Duration left(const Deadline& deadline) {
  return std::max<Duration>(deadline.remaining(), std::chrono::milliseconds(1));
}

class ArgumentCheck {
 public:
  // call: "all_reduce". The strings and the devices are kept by pointer.
  ArgumentCheck(const char* call, const DeviceTypes& devices, int rank, int size)
      : call_(call), devices_(devices), rank_(rank), size_(size) {}

  const char* call() const { return call_; }

  // Expects that the tensor is defined, dense, contiguous, on a device of the group, and of a dtype
  // that collectives support. All tensors of a call are on one device.
  void tensor(const char* name, const torch::Tensor& tensor);

  // Expects one tensor per rank, each valid by itself and of the shape and dtype of `like`.
  void one_per_rank(const char* name, TensorList list, const char* like_name,
                    const torch::Tensor& like);

  // Expects at least one tensor, each valid by itself.
  void list(const char* name, TensorList list);
  // Expects a list as in list(), all of one dtype.
  void list_of_one_dtype(const char* name, TensorList list);
  // Expects one tensor per rank, each valid by itself and of the dtype of like[0]; shapes may
  // differ.
  void one_dtype_per_rank(const char* name, TensorList list, const char* like_name,
                          TensorList like);
  void same_dtype(const char* name, const torch::Tensor& tensor, const char* like_name,
                  const torch::Tensor& like) const;
  // Expects that `whole` is valid by itself and holds a part like `part` for each rank, in any
  // shape.
  void parts_of_all(const std::string& name, const torch::Tensor& whole,
                    const std::string& part_name, const torch::Tensor& part);
  // Expects two lists of the same length.
  void as_many(const char* name, TensorList list, const char* like_name, TensorList like) const;
  // Expects the same of each pair of two lists, which must be equally long.
  void parts_of_each(const char* name, TensorList wholes, const char* part_name, TensorList parts);
  // Returns the length of each rank's share of the first dimension: the given lengths, else
  // equal ones.
  std::vector<std::int64_t> splits(const char* name, const std::vector<std::int64_t>& given,
                                   const char* tensor_name, const torch::Tensor& tensor) const;

  // Expects a list as in one_per_rank() on the root, and an empty one elsewhere.
  void roots_list(const char* name, TensorList list, const char* like_name,
                  const torch::Tensor& like, int root);

  // Expects that only the root passes values, one per rank.
  void roots_values(const char* name, std::size_t given, int root) const;

  // Expects that no two tensors that are written share memory.
  void written_apart(const char* name, TensorList list) const;

  // Checks that `tensor` shares no memory with the list, or is exactly list[own rank].
  void apart_or_own(const char* name, const torch::Tensor& tensor, const char* list_name,
                    TensorList list) const;

  // Checks that no tensor that is written shares memory with one that is read. Exception: it may be
  // exactly this rank's share of the tensor at the same index.
  void apart_or_own_share(const char* name, TensorList written, const char* list_name,
                          TensorList read) const;

  // Checks that no tensor that is written shares memory with one that is read.
  void apart(const char* name, TensorList written, const char* list_name, TensorList read) const;
  // Checks that `tensor` shares no memory with the list.
  void apart(const char* name, const torch::Tensor& tensor, const char* list_name,
             TensorList list) const;

  // Checks that the reduction is defined for the dtype, and that the factor is 1 if the reduction
  // does not use it.
  void op(ReduceOp op, double factor, const torch::Tensor& tensor) const;

  // Checks that `root` is a rank of the group.
  void root(int root) const { must_be_rank("root", root); }

  // Checks that `peer` is another rank of the group. name: "destination" or "source".
  void peer(const char* name, int peer) const;

  // Checks that `source` is another rank of the group, or kAnySource if the group supports it.
  void source(const char* name, int source) const;

  void tag(int tag) const;

  // Returns the timeout of the call: the requested one, else the group's. It must be above zero,
  // and at most the longest that a backend can compute with (kLongestTimeout).
  Duration timeout(std::optional<Duration> asked, Duration of_group) const;

  // Throws; the parts say why, see concat().
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    ddprun::refuse(concat(call_, ": ", parts...));
  }

 private:
  bool on_device(const torch::Tensor& tensor) const;
  bool on_calls_device(const torch::Tensor& tensor);
  bool is_sound(const torch::Tensor& tensor);
  void must_be_rank(const char* name, int rank) const;
  void must_be_one_per_rank(const char* name, TensorList list) const;
  [[noreturn]] void explain(const std::string& name, const torch::Tensor& tensor) const;

  const char* call_;
  const DeviceTypes& devices_;
  std::optional<torch::Device> device_;  // of the call's first tensor
  int rank_;
  int size_;
};

}  // namespace ddprun
