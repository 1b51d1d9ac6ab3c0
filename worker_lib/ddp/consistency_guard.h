// ConsistencyGuard: checks from time to time that all ranks still hold the same bits.
//
// A check has two halves. begin() hashes this rank's state and sends one number for all of it,
// asynchronously. settle() compares the numbers of the ranks a pass later, when they have long
// arrived. Only if they differ, the ranks exchange the hashes of the single tensors, to name
// them in the error.
//
// Both halves are collective. All ranks call them in the same order because the number of
// synchronised backward passes, which they share, determines it. A check begins between passes k
// and k+1. It is settled between passes k+1 and k+2, in the first forward there.
//
// The thread that trains owns it. The group must outlive it.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/collective/core/divergence.h"

namespace ddprun {

// Returns the hash of a value of an optimizer's state dict: tensors, numbers, strings, and
// tuples, lists and dicts of them.
std::uint64_t hash_of_value(const c10::IValue& value);

// Returns one number for a whole table.
std::int64_t combined(const std::vector<NamedHash>& table);

// Convert a table for an exchange of objects, and back.
nlohmann::json to_json(const HashTable& table);
HashTable table_of(const nlohmann::json& value);

// Returns hashes of an optimizer's content: options by parameter group, and state by parameter.
// State that is sharded over the ranks is left out. names: of the parameters that count; one
// without a name is left out. Throws kUnsupported for an optimizer whose state checkpoints
// cannot hold.
std::vector<NamedHash> hashes_of(const torch::optim::Optimizer& optimizer,
                                 const std::map<const void*, std::string>& names);

class ConsistencyGuard {
 public:
  // every: passes between checks; 0: no checks.
  ConsistencyGuard(ProcessGroup& group, std::int64_t every, std::optional<Timeout> timeout)
      : group_(group), every_(every), timeout_(timeout) {}

  // Returns whether a check should begin after this number of passes.
  bool is_due(std::int64_t passes) const {
    return every_ > 0 && group_.size() > 1 && passes - last_begun_ >= every_;
  }

  // Begins a check. own: nullopt if this rank only takes part in the collectives.
  void begin(std::int64_t passes, HashTable own);

  // Compares the numbers of the pending check, if there is one and a pass has come since. If
  // ranks differ, throws kCorrupt on every rank and drops the check.
  void settle(std::int64_t passes);

 private:
  struct Check {
    std::int64_t passes = 0;
    HashTable own;
    torch::Tensor all;  // for each rank: whether it takes part, and its hash
    Work work;
  };

  [[noreturn]] void report(const Check& check);

  ProcessGroup& group_;
  const std::int64_t every_;
  const std::optional<Timeout> timeout_;
  std::int64_t last_begun_ = 0;
  std::int64_t last_equal_ = 0;
  std::optional<Check> check_;
};

}  // namespace ddprun
