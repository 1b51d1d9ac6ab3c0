// LateChecks: what a device computes about a pass, for the host to look at when it has long been there.
//
// add() copies the values to the host behind what the current stream does, and does not wait. settle() looks at all
// of them: it waits for the device only as far as these copies. On the CPU the values are there at once.
//
// Any thread; a check's function runs in settle().
#pragma once

#include <c10/core/Event.h>
#include <torch/types.h>

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace ddprun::detail {

class LateChecks {
 public:
  // on_host: the values, on the CPU. It throws what is wrong with them.
  using Look = std::function<void(const torch::Tensor& on_host)>;

  void add(const torch::Tensor& values, Look look);
  // Throws what the first check throws; then the others are forgotten.
  void settle();

 private:
  struct Check {
    torch::Tensor on_host;
    std::optional<c10::Event> copied;  // empty: it is there
    Look look;
  };

  std::mutex mutex_;
  std::vector<Check> checks_;
};

}  // namespace ddprun::detail
