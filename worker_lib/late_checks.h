// HostCopy: a copy of a device's values to the host that nothing waits for until it is wanted.
//
// LateChecks: what a device computes about a pass, for the host to look at when it has long been
// there. add() copies the values to the host behind what the current stream does, and does not
// wait. settle() looks at all of them: it waits for the device only as far as these copies. On the
// CPU the values are there at once.
//
// LateChecksOfGroup: the LateChecks of what trains with a group, so that a checkpoint settles them
// first.
//
// Any thread; a check's function runs in settle().
#pragma once

#include <c10/core/Event.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace ddprun::detail {

// An uninitialized tensor on the host. A copy between it and the device waits for no stream.
torch::Tensor host_tensor_for(const torch::Tensor& on_device);

class HostCopy {
 public:
  // Copies behind what the current stream does. On the CPU: at once.
  explicit HostCopy(const torch::Tensor& values);
  // Returns the values, on the CPU, when they have come.
  const torch::Tensor& wait() const;

 private:
  torch::Tensor on_device_;  // kept until the copy has been waited for
  torch::Tensor on_host_;
  std::optional<c10::Event> copied_;  // empty: it is there
};

class LateChecks {
 public:
  // on_host: the values, on the CPU. It throws what is wrong with them.
  using Look = std::function<void(const torch::Tensor& on_host)>;

  void add(const torch::Tensor& values, Look look);
  // Throws what the first check throws; then the others are forgotten.
  void settle();

 private:
  struct Check {
    HostCopy values;
    Look look;
  };

  std::mutex mutex_;
  std::vector<Check> checks_;
};

class LateChecksOfGroup {
 public:
  void add(const std::shared_ptr<LateChecks>& checks);
  // Settles those that still exist, in the order in which they were added.
  void settle();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<LateChecks>> all_;
};

}  // namespace ddprun::detail
