// FencingToken: the owner of a directory of checkpoints, which is the last run that took it.
//
// Each run (each generation of a job, each start by hand) takes the directory before it reads or
// writes it. For that it writes a claim with the next number and a list of the checkpoints that
// are there. From then on a manifest counts if it has the number of the claim, or if it is on
// the list. So the later writes of a rank 0 that was cut off are recognised without a lock. They
// have an older number, and no claim has accepted them.
//
// Checkpoints that this version cannot read because of its own bounds are on the list, too, by
// step only. At such a step any manifest counts, whatever its number.
//
// Plain values; any thread. fencing_token.h outside the core has the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/checkpoint/core/manifest.h"

namespace ddprun {

// DisplacedJob: a job that has lost the directory to another job.
struct DisplacedJob {
  std::string job;
  std::int64_t generation = 0;  // the last one that had the directory
  bool operator==(const DisplacedJob&) const = default;
};

struct FencingToken {
  std::int64_t number = 0;  // from 1; 0: the directory has not been taken
  std::int64_t generation = 0;
  std::string owner;                             // of a process, random
  std::map<std::int64_t, std::string> accepted;  // by step: identity of the manifest
  std::string job = {};                      // the same in all its generations; empty: not known
  std::vector<DisplacedJob> displaced = {};  // newest last, kMaxDisplaced at most
  bool operator==(const FencingToken&) const = default;
};
inline constexpr std::size_t kMaxDisplaced = 64;
// The identity, in FencingToken::accepted, of a manifest that exceeded the reader's bounds when
// the directory was taken. A version with larger bounds accepts the manifest of that step.
inline constexpr std::string_view kUnreadIdentity = "unread";

// Returns whether the owner announced the checkpoint, or accepted it when it took the directory.
bool counts(const FencingToken& claim, const CheckpointManifest& manifest,
            const std::string& identity);

// Returns whether the generation of `job` is a restart of one that lost the directory to another
// job, which still has it. It must not take the directory back, or the two jobs would take it
// from each other at every restart. A job that is submitted again may take it: it has another
// name, or begins with a generation that is not later.
bool is_displaced(const FencingToken& claim, const std::string& job, std::int64_t generation);

// Returns the claim of a run that comes after `last`. present: the checkpoints that count. job:
// empty: not known.
FencingToken next_claim(const FencingToken& last, std::int64_t generation, std::string owner,
                        std::map<std::int64_t, std::string> present, const std::string& job = "");

}  // namespace ddprun
