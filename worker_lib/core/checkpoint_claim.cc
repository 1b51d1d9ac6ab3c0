#include "worker_lib/core/checkpoint_claim.h"

#include <utility>

namespace ddprun {

// A number above the claim's: the claim's file is older than the directory (a restored backup).
bool counts(const CheckpointClaim& claim, const CheckpointManifest& manifest,
            const std::string& identity) {
  if (claim.number == 0 || manifest.claim >= claim.number) return true;
  const auto accepted = claim.accepted.find(manifest.step);
  return accepted != claim.accepted.end() && accepted->second == identity;
}

CheckpointClaim next_claim(const CheckpointClaim& last, std::int64_t generation, std::string owner,
                           std::map<std::int64_t, std::string> present) {
  return {.number = last.number + 1,
          .generation = generation,
          .owner = std::move(owner),
          .accepted = std::move(present)};
}

}  // namespace ddprun
