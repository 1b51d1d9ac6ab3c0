// ConsistencyGuard: finds out, now and then, whether all ranks still hold the same bits.
//
// A check has two halves. begin() hashes what this rank holds and sends one number for all of it,
// asynchronously; settle() looks at what the ranks sent, a pass later, when it has long been there.
// Only if it differs are the hashes of the single tensors exchanged, for the error's sake.
//
// Both halves are collective. That ranks call them in the same order as everything else follows from
// the number of synchronised backward passes, which they share: a check begins between passes k and
// k+1, and is settled between passes k+1 and k+2, in whichever forward comes first there.
//
// The thread that trains owns it; the group must outlive it.
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

// Of what an optimizer's state dict is made of: tensors, numbers, texts, and tuples, lists and
// dicts of them.
std::uint64_t hash_of_value(const c10::IValue& value);

// One number for a table.
std::int64_t combined(const std::vector<NamedHash>& table);

// A table for an exchange of objects, and back.
nlohmann::json to_json(const HashTable& table);
HashTable table_of(const nlohmann::json& value);

// What an optimizer holds: options by parameter group, state by parameter unless each rank has a share of it
// only. names: of the parameters
// that count; one that has none is left out. kUnsupported for an optimizer that checkpoints cannot
// hold either.
std::vector<NamedHash> hashes_of(const torch::optim::Optimizer& optimizer,
                                 const std::map<const void*, std::string>& names);

class ConsistencyGuard {
 public:
  // every: passes between checks; 0: none.
  ConsistencyGuard(ProcessGroup& group, std::int64_t every, std::optional<Timeout> timeout)
      : group_(group), every_(every), timeout_(timeout) {}

  // Whether a check is to begin after so many passes.
  bool is_due(std::int64_t passes) const {
    return every_ > 0 && group_.size() > 1 && passes - last_begun_ >= every_;
  }

  // own: empty if this rank is to take part in the collectives only.
  void begin(std::int64_t passes, HashTable own);

  // Looks at the check that is under way, if there is one and a pass has come since. Throws kCorrupt
  // on every rank, and forgets the check, if ranks differ.
  void settle(std::int64_t passes);

 private:
  struct Check {
    std::int64_t passes = 0;
    HashTable own;
    torch::Tensor all;  // of each rank: whether it takes part, and its hash
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
