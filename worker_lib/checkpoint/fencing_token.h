// The file by which a run takes a directory of checkpoints, `.claim.json`, and its lock.
// checkpoint/core/fencing_token.h says what a claim means.
//
// The lock covers the time between the check of the claim and the rename that depends on it. If
// the file system has no locks, or the process that holds the lock is stuck, the rename happens
// without it. A manifest that is announced wrongly then does not count.
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
// Returns number 0 for a document that is not a claim.
FencingToken claim_of(const nlohmann::json& document);

// Reads the claim. Returns number 0 if there is none, or if it is damaged, not a regular file,
// or larger than any claim that is written. Then every complete checkpoint counts. kSystem: it
// cannot be read.
Result<FencingToken> read_claim(const std::string& directory);

// Writes the claim atomically; it is durable on return. kInvalidArgument: too many checkpoints
// for one claim.
Result<void> write_claim(const std::string& directory, const FencingToken& claim);

// Returns the id and a digest of DDPRUN_SUBMISSION: the same in all generations of a job.
// Without that variable (another launcher, no launcher) it returns the id only. Empty: jobs
// cannot be told apart.
std::string job_name(const std::string& run_id);

// ClaimLock: one process at a time holds it, for the moment of a rename. Waits at most 10 s.
class ClaimLock {
 public:
  ClaimLock() = default;  // nothing is locked
  explicit ClaimLock(const std::string& directory);

 private:
  UniqueFd fd_;  // invalid: nothing is locked
};

}  // namespace ddprun
