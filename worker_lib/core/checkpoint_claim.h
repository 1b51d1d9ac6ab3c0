// Whose a directory of checkpoints is: the last run that took it.
//
// Each run (each generation of a job, each start by hand) takes the directory before it reads or
// writes it, by a claim with the next number and a list of the checkpoints that are there. From
// that instant a manifest counts if it bears the number of the claim or is on the list. So what a
// rank 0 that was cut off writes later is recognised whatever its step, without a lock: it bears an
// older number, and nobody has accepted it.
//
// Plain values; any thread. checkpoint_claim.h beside the core has the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "worker_lib/core/checkpoint_manifest.h"

namespace ddprun {

struct CheckpointClaim {
  std::int64_t number = 0;  // from 1; 0: nobody has taken the directory
  std::int64_t generation = 0;
  std::string owner;                             // of a process, random
  std::map<std::int64_t, std::string> accepted;  // by step: identity of the manifest
  bool operator==(const CheckpointClaim&) const = default;
};

// Whether the checkpoint was announced by the owner, or before it came.
bool counts(const CheckpointClaim& claim, const CheckpointManifest& manifest,
            const std::string& identity);

// The claim of a run that comes after `last`. present: the checkpoints that count.
CheckpointClaim next_claim(const CheckpointClaim& last, std::int64_t generation, std::string owner,
                           std::map<std::int64_t, std::string> present);

}  // namespace ddprun
