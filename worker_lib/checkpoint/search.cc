#include "worker_lib/checkpoint/search.h"

#include <algorithm>
#include <limits>

#include "base/concat.h"
#include "worker_lib/checkpoint/core/shards.h"
#include "worker_lib/group/any_rank.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {
namespace {

using nlohmann::json;

// The result of one rank within a bound. A failure is not a damaged checkpoint: the disk or the
// permissions are at fault, and a checkpoint that cannot be read now may be complete.
struct Search {
  std::optional<LoadedCheckpoint> found;
  std::vector<std::string> skipped;
  std::optional<DistError> failure;
};

std::string_view view_of(const std::vector<char>& bytes) { return {bytes.data(), bytes.size()}; }

Search search(const CheckpointDirectory& directory, std::int64_t bound) {
  Search result;
  const auto steps = directory.steps();
  if (!steps) {
    result.failure = to_dist_error(steps.error());
    return result;
  }
  for (const std::int64_t step : *steps) {
    if (step > bound) continue;
    const auto checkpoint = directory.read_manifest(step);
    auto data = checkpoint ? directory.read_files(checkpoint->manifest)
                           : Result<std::vector<std::vector<char>>>(checkpoint.error());
    if (data) {
      result.found = LoadedCheckpoint{checkpoint->manifest, checkpoint->identity,
                                      directory.path_of(checkpoint->manifest.files.front().name),
                                      *std::move(data)};
      return result;
    }
    if (!is_passed_over(data.error())) {
      result.failure = to_dist_error(data.error());
      return result;
    }
    result.skipped.push_back(concat("step ", step, ": ", data.error().message()));
  }
  return result;
}

}  // namespace

// In each round every rank reports its newest readable checkpoint, until all report the same
// one. Each round lowers the bound, so there are at most as many rounds as checkpoints. The
// result is empty only if no rank has any. Starting anew because one host lacks a mount would
// cost the whole run, and at the next save its checkpoints, too.
std::optional<LoadedCheckpoint> find_common(ProcessGroup& group,
                                            const CheckpointDirectory& directory, Timeout timeout,
                                            std::vector<std::string>& skipped) {
  std::int64_t bound = std::numeric_limits<std::int64_t>::max();
  std::string somebody_reads;
  for (;;) {
    Search own = search(directory, bound);
    const json reports =
        group.all_gather_object({{"step", own.found ? own.found->manifest.step : -1},
                                 {"identity", own.found ? own.found->identity : ""},
                                 {"file", own.found ? own.found->file : ""},
                                 {"skipped", own.skipped},
                                 {"failure", to_json_report(own.failure)}},
                                timeout);
    std::vector<RestoreCandidate> candidates;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const json& report = reports[rank];
      throw_reported(report.at("failure"), concat(kRestoring, ": rank ", rank, ": "));
      if (somebody_reads.empty() && report.at("step") >= 0)
        somebody_reads = concat("rank ", rank, " can read ", report.at("file").get<std::string>());
      candidates.push_back({report.at("step"), report.at("identity")});
      // Ranks that share a directory report the same lines; each line is kept once.
      for (const std::string line : report.at("skipped"))
        if (std::ranges::find(skipped, line) == skipped.end()) skipped.push_back(line);
    }
    const RestoreRound round = agree_on_step(candidates);
    if (round.done && round.step < 0 && !somebody_reads.empty())
      refuse(concat(kRestoring, ": the ranks have no checkpoint in common: ", somebody_reads,
                    ", rank ", round.rank, " has no equal one; is ", directory.path(),
                    " one directory that all ranks see? (To start from the beginning, use an "
                    "empty one.)"),
             DistError::Kind::kSystem);
    if (round.done && round.step < 0) return std::nullopt;
    if (round.done) return std::move(own.found);
    skipped.push_back(concat(
        "rank ", round.rank,
        round.differs ? concat(" has another checkpoint of step ", round.bound + 1, " than rank 0")
                      : concat(" can read none that is newer than step ", round.bound)));
    bound = round.bound;
  }
}

// The SHA-256 of the manifest has verified the bytes.
c10::IValue contents_of(const LoadedCheckpoint& checkpoint) {
  const std::string& file = checkpoint.file;
  if (!is_sharded(checkpoint.manifest))
    return read_pickle(view_of(checkpoint.bytes[0]), file, RecordCrcs::kTrust);
  std::vector<StateArchive> shards;
  for (const std::vector<char>& bytes : checkpoint.bytes)
    shards.push_back(open_state_archive(view_of(bytes), file, RecordCrcs::kTrust));
  Result<MergedArchive> merged = merge_shards(shards);
  if (!merged) throw to_dist_error(Error(merged.error()).within("read " + file));
  ArchiveTensors tensors(merged->archive);
  return to_ivalue(merged->archive, merged->archive.tree[merged->archive.tree.top], tensors, file);
}

}  // namespace ddprun
