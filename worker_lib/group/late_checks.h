// HostCopy: an asynchronous copy of device values to the host. Only wait() blocks.
//
// LateChecks: values that a device computes about a pass. The host checks them later, when they
// have long been computed. add() enqueues a copy of the values to the host on the current stream
// and does not wait. settle() checks all of them. It waits for the device only until these copies
// are done. On the CPU the values are there at once.
//
// LateChecksOfGroup: the LateChecks of all objects that train with the groups of one Context, so
// that a checkpoint settles them first. A look (the function of a check) may be collective over
// the ranks of its own group. If some of these ranks do not take part, each rank looks alone,
// and the check stays for the next settle().
//
// Any thread. A check's function runs in settle().
#pragma once

#include <c10/core/Event.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace ddprun::detail {

// Returns an uninitialized tensor on the host. A copy between it and the device waits for no
// stream.
torch::Tensor host_tensor_for(const torch::Tensor& on_device);

class HostCopy {
 public:
  // Enqueues the copy on the current stream. On the CPU: copies at once.
  explicit HostCopy(const torch::Tensor& values);
  // Waits for the copy and returns the values, on the CPU.
  const torch::Tensor& wait() const;

 private:
  torch::Tensor on_device_;  // kept until the copy has been waited for
  torch::Tensor on_host_;
  std::optional<c10::Event> copied_;  // empty: the copy is done
};

class LateChecks {
 public:
  // Throws if the values are wrong. on_host: the values, on the CPU.
  using Look = std::function<void(const torch::Tensor& on_host)>;

  // Adds a check. alone: the same look without the other ranks; empty: `look` does not need
  // them.
  void add(const torch::Tensor& values, Look look, Look alone = {});
  // Runs all looks and removes the checks. Then throws the first exception of a look.
  void settle();
  // Runs all looks without the other ranks, and keeps the checks. Throws as settle() does.
  void look_alone();
  // Removes all checks without a look.
  void forget();

 private:
  struct Check {
    HostCopy values;
    Look look;
    Look alone;
  };
  using Checks = std::vector<std::shared_ptr<const Check>>;

  std::mutex mutex_;
  Checks checks_;
};

class LateChecksOfGroup {
 public:
  // ranks: the world ranks that run these looks together.
  void add(const std::shared_ptr<LateChecks>& checks, std::vector<int> ranks);
  // Settles the checks that still exist, in the order in which they were added: together if
  // `present` holds all their ranks, else alone. Then throws the first exception of a look.
  void settle(const std::vector<int>& present);
  // Removes the checks whose ranks are all in `present`, without a look.
  void forget(const std::vector<int>& present);

 private:
  struct Member {
    std::weak_ptr<LateChecks> checks;
    std::vector<int> ranks;
    bool is_among(const std::vector<int>& present) const;
  };
  std::vector<Member> members();

  std::mutex mutex_;
  std::vector<Member> members_;
};

}  // namespace ddprun::detail
