// ArgumentCheck: what ProcessGroup demands of the arguments of a call, before anything is sent.
//
// One is made per call; it holds who asks and, once it has seen a tensor, the call's device. Every
// check throws DistError kInvalidArgument that names the call, the argument, the rule and what was
// given. Caller's thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ddprun/reduce_op.h"

namespace ddprun {

class Backend;

// The types of devices whose tensors a group takes.
class DeviceTypes {
 public:
  explicit DeviceTypes(const Backend& backend);

  bool holds(torch::DeviceType type) const { return (types_ >> static_cast<int>(type) & 1) != 0; }
  // "cpu, the group's device", "cpu or cuda, the group's devices".
  std::string to_text() const;

 private:
  std::uint64_t types_ = 0;  // a bit for each
};

class ArgumentCheck {
 public:
  // call: "all_reduce". The strings are kept by pointer, and so are the devices.
  ArgumentCheck(const char* call, const DeviceTypes& devices, int rank, int size)
      : call_(call), devices_(devices), rank_(rank), size_(size) {}

  const char* call() const { return call_; }

  // Defined, dense, contiguous, on a device of the group's, of a dtype that collectives know. All
  // tensors of a call are on one device.
  void tensor(const char* name, const torch::Tensor& tensor);

  // One tensor per rank, each sound by itself and of the shape and dtype of `like`.
  void one_per_rank(const char* name, const std::vector<torch::Tensor>& list, const char* like_name,
                    const torch::Tensor& like);

  // At least one tensor, each sound by itself.
  void list(const char* name, const std::vector<torch::Tensor>& list);
  // The same, all of one dtype.
  void list_of_one_dtype(const char* name, const std::vector<torch::Tensor>& list);
  // One tensor per rank, each sound by itself and of the dtype of like[0], whatever its shape.
  void one_dtype_per_rank(const char* name, const std::vector<torch::Tensor>& list,
                          const char* like_name, const std::vector<torch::Tensor>& like);
  void same_dtype(const char* name, const torch::Tensor& tensor, const char* like_name,
                  const torch::Tensor& like) const;
  // `whole`, sound by itself, holds a part like `part` for each rank, in any shape.
  void parts_of_all(const std::string& name, const torch::Tensor& whole,
                    const std::string& part_name, const torch::Tensor& part);
  // The same of each one of two lists, which are equally long.
  void parts_of_each(const char* name, const std::vector<torch::Tensor>& wholes,
                     const char* part_name, const std::vector<torch::Tensor>& parts);
  // Lengths of each rank's share of the first dimension: what was given, else equal ones.
  std::vector<std::int64_t> splits(const char* name, const std::vector<std::int64_t>& given,
                                   const char* tensor_name, const torch::Tensor& tensor) const;

  // The list that only the root passes: as one_per_rank there, empty elsewhere.
  void roots_list(const char* name, const std::vector<torch::Tensor>& list, const char* like_name,
                  const torch::Tensor& like, int root);

  // Values that only the root passes, one per rank.
  void roots_values(const char* name, std::size_t given, int root) const;

  // No two tensors that are written share memory.
  void written_apart(const char* name, const std::vector<torch::Tensor>& list) const;

  // `tensor` shares no memory with the list, or is exactly list[own rank].
  void apart_or_own(const char* name, const torch::Tensor& tensor, const char* list_name,
                    const std::vector<torch::Tensor>& list) const;

  // No tensor that is written shares memory with one that is read, but where it is exactly this rank's
  // share of the one in the same place.
  void apart_or_own_share(const char* name, const std::vector<torch::Tensor>& written,
                          const char* list_name, const std::vector<torch::Tensor>& read) const;

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
  void source(const char* name, int source) const;

  void tag(int tag) const;

  // The timeout of the call: what was asked for, else the group's; more than zero, and no longer than
  // a backend can compute with (kLongestTimeout).
  Duration timeout(std::optional<Duration> asked, Duration of_group) const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  bool on_device(const torch::Tensor& tensor) const;
  bool on_calls_device(const torch::Tensor& tensor);
  bool is_sound(const torch::Tensor& tensor);
  void must_be_rank(const char* name, int rank) const;
  void must_be_one_per_rank(const char* name, const std::vector<torch::Tensor>& list) const;
  [[noreturn]] void explain(const std::string& name, const torch::Tensor& tensor) const;

  const char* call_;
  const DeviceTypes& devices_;
  std::optional<torch::Device> device_;  // of the call's first tensor
  int rank_;
  int size_;
};

}  // namespace ddprun
