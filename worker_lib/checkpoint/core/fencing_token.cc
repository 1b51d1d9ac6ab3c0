#include "worker_lib/checkpoint/core/fencing_token.h"

#include <algorithm>
#include <utility>

namespace ddprun {

// If the manifest's number is above the claim's, the claim's file is older than the directory (a
// restored backup).
bool counts(const FencingToken& claim, const CheckpointManifest& manifest,
            const std::string& identity) {
  if (claim.number == 0 || manifest.claim >= claim.number) return true;
  const auto accepted = claim.accepted.find(manifest.step);
  return accepted != claim.accepted.end() &&
         (accepted->second == identity || accepted->second == kUnreadIdentity);
}

bool is_displaced(const FencingToken& claim, const std::string& job, std::int64_t generation) {
  if (job.empty() || claim.job == job) return false;
  return std::ranges::any_of(claim.displaced, [&](const DisplacedJob& displaced) {
    return displaced.job == job && displaced.generation < generation;
  });
}

FencingToken next_claim(const FencingToken& last, std::int64_t generation, std::string owner,
                        std::map<std::int64_t, std::string> present, const std::string& job) {
  FencingToken next{.number = last.number + 1,
                    .generation = generation,
                    .owner = std::move(owner),
                    .accepted = std::move(present),
                    .job = job,
                    .displaced = last.displaced};
  std::erase_if(next.displaced, [&](const DisplacedJob& displaced) {
    return displaced.job == job || displaced.job == last.job;
  });
  // An unknown job may be the same one.
  if (!job.empty() && !last.job.empty() && last.job != job)
    next.displaced.push_back({last.job, last.generation});
  if (next.displaced.size() > kMaxDisplaced) next.displaced.erase(next.displaced.begin());
  return next;
}

}  // namespace ddprun
