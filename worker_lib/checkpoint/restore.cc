#include "worker_lib/checkpoint/restore.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/concat.h"
#include "worker_lib/checkpoint/restore_targets.h"
#include "worker_lib/checkpoint/shared_read.h"
#include "worker_lib/group/any_rank.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using nlohmann::json;

// Returns whether the error is about the file, so that the group is still usable.
bool is_about_file(const DistError& error) {
  using enum DistError::Kind;
  return error.kind() == kCorrupt || error.kind() == kInvalidArgument ||
         error.kind() == kUnsupported || error.kind() == kSystem;
}

class Restore {
 public:
  Restore(ProcessGroup& group, const CheckpointDirectory& directory, TrainingState& state,
          Restored& result, const RestoreOptions& options)
      : group_(group), directory_(directory), state_(state), result_(result), options_(options) {}

  std::optional<FoundCheckpoint> run() {
    std::string overwritten_by;
    std::int64_t bound = std::numeric_limits<std::int64_t>::max();
    for (;;) {
      const auto found = find_common(group_, directory_, bound, options_.timeout, result_.skipped);
      if (!found) expect_damaged_for_all();
      if (!found && !overwritten_by.empty())
        refuse(concat(kRestoring, ": ", overwritten_by,
                      " is damaged and has overwritten a part of the state, which must not be "
                      "trained on; no older checkpoint is whole (",
                      result_.skipped.back(),
                      "); to start from the beginning, use an empty directory"),
               DistError::Kind::kCorrupt);
      if (!found) return std::nullopt;
      const std::int64_t step = found->manifest.step;
      const auto damage = load(*found, overwritten_by);
      if (!damage) return found;
      result_.skipped.push_back(concat("step ", step, ": ", *damage));
      damaged_.push_back(found->manifest);
      bound = step - 1;
    }
  }

 private:
  // Returns the reason if the checkpoint is damaged, the same on every rank.
  std::optional<std::string> load(const FoundCheckpoint& found, std::string& overwritten_by) {
    std::optional<RestoreTargets> targets;
    std::vector<std::vector<Destination>> destinations;
    try {
      (void)on_every_rank(group_, kRestoring, options_.timeout, [&]() -> json {
        targets.emplace(directory_, found.manifest);
        expect_loadable(state_, targets->top(), group_, options_.extra);
        destinations = targets->place(state_, group_.rank(), group_.size());
        return nullptr;
      });
    } catch (const DistError& refused) {
      // Damage may look like the checkpoint of another training.
      if (!is_about_file(refused)) throw;
      if (const auto damage = verify(found)) return damage;
      throw;
    }
    if (!is_found_by_all(group_, directory_, found.manifest.step - 1))
      if (const auto damage = verify(found)) return damage;
    const auto damage = read_together(group_, directory_, found.manifest, targets->outlines(),
                                      destinations, options_.timeout);
    if (damage) {
      overwritten_by = found.file;
      return damage;
    }
    fill(state_, targets->top(), group_, options_.extra, result_.remarks);
    return std::nullopt;
  }

  // If the ranks see different directories, a checkpoint that one rank found damaged may be whole
  // for another one. Then the run must not start from the beginning.
  void expect_damaged_for_all() {
    if (damaged_.empty()) return;
    json whole = "";
    for (const CheckpointManifest& manifest : damaged_)
      if (whole == "" && directory_.verify(manifest))
        whole = directory_.path_of(manifest.files.front().name);
    const std::vector<json> by_rank = group_.all_gather_object(whole, options_.timeout);
    const auto reads = std::ranges::find_if(by_rank, [](const json& file) { return file != ""; });
    if (reads == by_rank.end()) return;
    const auto other = std::ranges::find(by_rank, json(""));
    if (other == by_rank.end())
      refuse(concat(kRestoring, ": ", reads->get<std::string>(),
                    " was damaged when it was read first, and is whole now: its disk may fail"),
             DistError::Kind::kSystem);
    refuse_nothing_in_common(directory_, static_cast<int>(reads - by_rank.begin()), *reads,
                             static_cast<int>(other - by_rank.begin()));
  }

  std::optional<std::string> verify(const FoundCheckpoint& found) {
    return verify_together(group_, directory_, found.manifest, options_.timeout);
  }

  ProcessGroup& group_;
  const CheckpointDirectory& directory_;
  TrainingState& state_;
  Restored& result_;
  const RestoreOptions& options_;
  std::vector<CheckpointManifest> damaged_ = {};
};

}  // namespace

std::optional<FoundCheckpoint> restore_newest(ProcessGroup& group,
                                              const CheckpointDirectory& directory,
                                              TrainingState& state, Restored& result,
                                              const RestoreOptions& options) {
  return Restore(group, directory, state, result, options).run();
}

}  // namespace ddprun
