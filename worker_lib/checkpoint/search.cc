#include "worker_lib/checkpoint/search.h"

#include <algorithm>

#include "base/concat.h"
#include "worker_lib/group/every_rank.h"

namespace ddprun {
namespace {

using nlohmann::json;

// The result of one rank within a bound. A failure is not a damaged checkpoint: the disk or the
// permissions are at fault. A checkpoint that cannot be read now may be complete.
struct Search {
  std::optional<FoundCheckpoint> found;
  std::vector<std::string> skipped;
  std::optional<DistError> failure;
};

Search search(ProcessGroup& group, const CheckpointDirectory& directory, std::int64_t bound) {
  Search result;
  const auto steps = directory.steps();
  if (!steps) {
    result.failure = to_dist_error(steps.error());
    return result;
  }
  for (const std::int64_t step : *steps) {
    if (step > bound) continue;
    group.report_activity();
    const auto checkpoint = directory.read_manifest(step);
    const auto whole =
        checkpoint ? directory.check_sizes(checkpoint->manifest) : Result<void>(checkpoint.error());
    if (whole) {
      result.found = {checkpoint->manifest, checkpoint->identity,
                      directory.path_of(checkpoint->manifest.files.front().name)};
      return result;
    }
    if (!is_passed_over(whole.error())) {
      result.failure = to_dist_error(whole.error());
      return result;
    }
    result.skipped.push_back(concat("step ", step, ": ", whole.error().message()));
  }
  return result;
}

}  // namespace

// In each round every rank reports its newest checkpoint, until all report the same one. Each round
// lowers the bound, so there are at most as many rounds as checkpoints. The result is empty only if
// no rank has any. Starting anew because one host lacks a mount would cost the whole run, and at
// the next save its checkpoints, too.
std::optional<FoundCheckpoint> find_common(ProcessGroup& group,
                                           const CheckpointDirectory& directory, std::int64_t bound,
                                           Timeout timeout, std::vector<std::string>& skipped) {
  int reader = -1;  // a rank that can read a checkpoint
  std::string readable_file;
  for (;;) {
    Search own = search(group, directory, bound);
    const LongWait for_the_others(group);
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
      if (readable_file.empty() && report.at("step") >= 0) {
        reader = static_cast<int>(rank);
        readable_file = report.at("file");
      }
      candidates.push_back({report.at("step"), report.at("identity")});
      // Ranks that share a directory report the same lines; each line is kept once.
      for (const std::string line : report.at("skipped"))
        if (std::ranges::find(skipped, line) == skipped.end()) skipped.push_back(line);
    }
    const RestoreRound round = agree_on_step(candidates);
    if (round.done && round.step < 0 && !readable_file.empty())
      refuse_nothing_in_common(directory, reader, readable_file, round.rank);
    if (round.done && round.step < 0) return std::nullopt;
    if (round.done) return std::move(own.found);
    skipped.push_back(concat(
        "rank ", round.rank,
        round.differs ? concat(" has another checkpoint of step ", round.bound + 1, " than rank 0")
                      : concat(" can read none that is newer than step ", round.bound)));
    bound = round.bound;
  }
}

void refuse_nothing_in_common(const CheckpointDirectory& directory, int rank,
                              const std::string& file, int other_rank) {
  refuse(concat(kRestoring, ": the ranks have no checkpoint in common: rank ", rank, " can read ",
                file, ", rank ", other_rank, " has no equal one; is ", directory.path(),
                " one directory that all ranks see? (To start from the beginning, use an empty "
                "one.)"),
         DistError::Kind::kSystem);
}

bool is_found_by_all(ProcessGroup& group, const CheckpointDirectory& directory, std::int64_t bound,
                     Timeout timeout) {
  const std::vector<json> found = on_every_rank(group, kRestoring, timeout, [&]() -> json {
    const Search own = search(group, directory, bound);
    if (own.failure) throw *own.failure;
    return own.found.has_value();
  });
  return std::ranges::all_of(found, [](const json& one) { return one.get<bool>(); });
}

}  // namespace ddprun
