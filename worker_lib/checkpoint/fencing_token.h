// The file by which a run takes a directory of checkpoints, `.claim.json`, and the lock beside it.
// What a claim means is in checkpoint/core/fencing_token.h.
//
// The lock closes the instant between "is it still mine?" and the rename that depends on it. Where
// the file system has no locks, or whoever holds it is stuck, it goes on without: a manifest that
// slips through does not count.
//
// Free functions; any thread, any process.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "worker_lib/checkpoint/core/fencing_token.h"

namespace ddprun {

nlohmann::json to_json(const FencingToken& claim);
// Number 0 for what is no claim.
FencingToken claim_of(const nlohmann::json& document);

// Number 0 where there is none, a damaged one, one that is no regular file, or one larger than any
// that is written: then every whole checkpoint counts. kSystem: it cannot be read.
Result<FencingToken> read_claim(const std::string& directory);

// Atomic, and on the disk when it returns. kInvalidArgument: too many checkpoints for one claim.
Result<void> write_claim(const std::string& directory, const FencingToken& claim);

// Returns the id and a digest of DDPRUN_SUBMISSION: the same in all generations of a job. Without
// that variable (another launcher, no launcher) the id alone; empty: nothing tells the jobs apart.
std::string job_name(const std::string& run_id);

// Held by one process at a time, for the moment of a rename. Waits 10 s at most.
class ClaimLock {
 public:
  ClaimLock() = default;  // nothing is locked
  explicit ClaimLock(const std::string& directory);

 private:
  UniqueFd fd_;  // invalid: without
};

}  // namespace ddprun
