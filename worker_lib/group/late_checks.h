// HostCopy: an asynchronous copy of device values to the host. Only wait() blocks.
//
// LateChecks: what a device computes about a pass, for the host to look at when it has long been
// there. add() copies the values to the host behind what the current stream does, and does not
// wait. settle() looks at all of them: it waits for the device only as far as these copies. On the
// CPU the values are there at once.
//
// LateChecksOfGroup: the LateChecks of what trains with the groups of one Context, so that a
// checkpoint settles them first. A look may be collective over the ranks of its own group. Where
// some of these do not take part, each rank looks alone, and the check stays for the next settle().
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

  // alone: the same without the other ranks; empty: `look` does not need them.
  void add(const torch::Tensor& values, Look look, Look alone = {});
  // Looks at all, and removes them. Then throws the first exception of a look.
  void settle();
  // Looks at all without the other ranks, and keeps them. Throws as settle() does.
  void look_alone();
  // Removes all without a look.
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
  // ranks: of the world, those that look at the checks together.
  void add(const std::shared_ptr<LateChecks>& checks, std::vector<int> ranks);
  // Settles the checks that still exist, in the order in which they were added: together where
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
