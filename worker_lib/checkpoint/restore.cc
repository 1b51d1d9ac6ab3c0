#include "worker_lib/checkpoint/restore.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/task_queue.h"
#include "worker_lib/checkpoint/restore_targets.h"
#include "worker_lib/checkpoint/shared_read.h"
#include "worker_lib/group/every_rank.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr int kMostVanished = 10;  // checkpoints that vanish while they are read

// Returns whether the error is about the file, so that the group is still usable.
bool is_about_file(const DistError& error) {
  using enum DistError::Kind;
  return error.kind() == kCorrupt || error.kind() == kInvalidArgument ||
         error.kind() == kUnsupported;
}

class Restore {
 public:
  Restore(ProcessGroup& group, const CheckpointDirectory& directory, TrainingState& state,
          Restored& result, const RestoreOptions& options)
      : group_(group), directory_(directory), state_(state), result_(result), options_(options) {}

  std::optional<FoundCheckpoint> run() {
    std::string overwritten_by;
    constexpr auto kNewest = std::numeric_limits<std::int64_t>::max();
    std::int64_t bound = kNewest;
    int vanished = 0;
    for (;;) {
      const auto found = find_common(group_, directory_, bound, options_.timeout, result_.skipped);
      if (!found) expect_damaged_for_all();
      if (!found && !overwritten_by.empty())
        refuse(
            concat(
                kRestoring, ": ", overwritten_by,
                " is damaged or gone, and has overwritten a part of the state, which must not be "
                "trained on; no older checkpoint is whole (",
                result_.skipped.back(), "); to start from the beginning, use an empty directory"),
            DistError::Kind::kCorrupt);
      if (!found && vanished > 0) refuse_vanished("no other is left");
      if (!found) return std::nullopt;
      const std::int64_t step = found->manifest.step;
      const auto damage = load(*found, overwritten_by);
      if (!damage) return found;
      result_.skipped.push_back(concat("step ", step, ": ", damage->why));
      if (damage->is_gone) {
        // The run that writes has removed it, and has announced newer ones before that.
        if (++vanished == kMostVanished) refuse_vanished("this has happened several times");
        bound = kNewest;
        continue;
      }
      damaged_.push_back(found->manifest);
      bound = step - 1;
    }
  }

 private:
  // What was read of a checkpoint.
  struct Contents {
    Result<std::vector<FileOutline>> outlines;
    std::optional<RestoreTargets> targets = {};
  };

  [[noreturn]] void refuse_vanished(const char* why) {
    refuse(concat(kRestoring, ": ", directory_.path(), ": a file vanished while it was read (",
                  result_.skipped.back(), "), and ", why,
                  "; let the run that writes there keep more checkpoints (keep_last)"),
           DistError::Kind::kSystem);
  }

  Result<std::vector<FileOutline>> read_outlines(const CheckpointManifest& manifest) try {
    std::vector<FileOutline> result;
    for (const WrittenFile& file : manifest.files) {
      Result<FileOutline> outline = FileOutline::read(directory_.path_of(file.name), file.bytes);
      if (!outline) return outline.error();
      result.push_back(*std::move(outline));
      group_.report_activity();
    }
    return result;
  } catch (const std::bad_alloc&) {
    return read_error(directory_.path(), ENOMEM);
  }

  // Returns the damage of the checkpoint, the same on every rank.
  std::optional<Damage> load(const FoundCheckpoint& found, std::string& overwritten_by) {
    const CheckpointManifest& manifest = found.manifest;
    auto contents = std::make_shared<Contents>(Contents{read_outlines(manifest)});
    const Result<std::vector<FileOutline>>& read = contents->outlines;
    std::optional<RestoreTargets>& targets = contents->targets;
    // A rank's copy may be damaged where another rank reads its share. So this is damage at once.
    std::optional<Error> damaged_outline;
    if (!read && is_passed_over(read.error())) damaged_outline = read.error();
    if (auto damage = agree_on_damage(group_, damaged_outline, options_.timeout)) return damage;
    std::vector<std::vector<Destination>> destinations;
    try {
      (void)on_every_rank(group_, kRestoring, options_.timeout, [&]() -> json {
        if (!read) throw to_dist_error(read.error());
        targets.emplace(directory_, manifest, *read);
        expect_loadable(state_, targets->top(), group_, options_.extra);
        destinations = targets->place(state_, group_.rank(), group_.size());
        return nullptr;
      });
    } catch (const DistError& refused) {
      // Damage may look like the checkpoint of another training.
      if (!is_about_file(refused) || is_of_another_model(manifest)) throw;
      if (auto damage = verify(manifest, read)) return damage;
      throw;
    }
    if (!is_found_by_all(group_, directory_, manifest.step - 1, options_.timeout))
      if (auto damage = verify_together(group_, directory_, manifest, options_.timeout))
        return damage;
    auto damage =
        read_together(group_, directory_, manifest, *read, destinations, options_.timeout);
    if (damage) {
      overwritten_by = found.file;
      return damage;
    }
    fill(state_, targets->top(), group_, options_.extra, result_.remarks);
    options_.cleanup.join();
    options_.cleanup.begin([contents = std::move(contents)]() mutable { contents.reset(); });
    return std::nullopt;
  }

  // Returns whether the manifest, which has a digest of its own, is that of another model.
  // Collective.
  bool is_of_another_model(const CheckpointManifest& manifest) {
    const auto answers = on_every_rank(group_, kRestoring, options_.timeout, [&]() -> json {
      const bool has_models = state_.model || !state_.models.empty();
      return options_.extra == ExtraNames::kRefuse && has_models && !manifest.model.empty() &&
             manifest.model != hash_of_models(state_);
    });
    return std::ranges::any_of(answers, [](const json& one) { return one.get<bool>(); });
  }

  // Compares the files with their digests, and what each rank has read of them with the files.
  std::optional<Damage> verify(const CheckpointManifest& manifest,
                               const Result<std::vector<FileOutline>>& read) {
    const std::vector<FileOutline> none;
    return read_together(group_, directory_, manifest, read ? *read : none,
                         std::vector<std::vector<Destination>>(manifest.files.size()),
                         options_.timeout);
  }

  // If the ranks see different directories, a checkpoint that one rank found damaged may be whole
  // for another one. Then the run must not start from the beginning.
  void expect_damaged_for_all() {
    if (damaged_.empty()) return;
    const auto by_rank = on_every_rank(group_, kRestoring, options_.timeout, [&]() -> json {
      for (const CheckpointManifest& manifest : damaged_) {
        const auto whole = directory_.verify(manifest, [&] { group_.report_activity(); });
        if (whole) return directory_.path_of(manifest.files.front().name);
        if (!is_passed_over(whole.error())) throw to_dist_error(whole.error());
      }
      return "";
    });
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
