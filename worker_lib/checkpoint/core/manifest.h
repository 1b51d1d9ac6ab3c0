// The files of a checkpoint, the meaning of a directory of checkpoints, and the choice of the
// one to restore.
//
// A checkpoint of step N is a data file and a manifest, which is written last:
//
//   step-000000000120.pt     the state; Python's torch.load reads it
//   step-000000000120.json   the manifest: size and SHA-256 of each file
//   step-000000000120-2.pt   the state, when the first name belonged to another save of step 120
//   step-000000000120.shard-0003.pt   rank 3's share of the state, if each rank writes its own
//   step-000000000120.json.unread   a manifest beyond the reader's bounds, set aside by a save
//   *.<unique>.tmp           being written
//
// A checkpoint exists iff its manifest is complete and every file that it names matches.
// docs/reference/file_formats.md describes the format; io.h reads and writes it. This header has
// only the decisions: no files, no JSON. Value types and pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/serialization/core/written_file.h"

namespace ddprun {

inline constexpr int kCheckpointFormat = 1;

struct CheckpointManifest {
  int format = kCheckpointFormat;
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t generation = 0;  // of the world that wrote it
  int world_size = 1;
  std::optional<double> metric;  // the model's quality, if the program gave it
  // The number of the claim of the run that wrote it (fencing_token.h). 0: written by a version
  // without claims.
  std::int64_t claim = 0;
  std::string model;  // hash of the names, dtypes and shapes of its tensors; empty: not known
  std::string data;   // the training data, as the program names it; empty: not given
  std::vector<WrittenFile> files;  // in the manifest's directory
  bool operator==(const CheckpointManifest&) const = default;
};

// Returns "step-000000000120", with which the names of all files of the step begin.
std::string step_name(std::int64_t step);

// Returns "step-000000000120.json".
std::string manifest_name(std::int64_t step);

// Suffix for the name of a manifest that exceeds the reader's bounds, when a save of the same
// step would replace it. Data files of that step stay as well, unless a readable manifest named
// them and was replaced.
inline constexpr std::string_view kUnreadSuffix = ".unread";

// Returns the first of "step-000000000120.pt", "step-000000000120-2.pt", ... that is not in
// `taken`: a save never overwrites a file that an announced checkpoint may need.
std::string data_name(std::int64_t step, const std::set<std::string>& taken);

// Returns the name of a rank's share of `data_name`: "step-000000000120.shard-0003.pt".
std::string shard_name(std::string_view data_name, int shard);

struct CheckpointFileName {
  enum class Kind { kManifest, kData, kTemporary };
  Kind kind;
  std::int64_t step;
  std::optional<int> shard = {};
  bool operator==(const CheckpointFileName&) const = default;
};

// Parses a name. nullopt: the file is not ours and must not be touched.
std::optional<CheckpointFileName> parse_file_name(std::string_view name);

// Returns whether the manifest names data files of its step: either one complete file, or shards
// 0, 1, 2 ... in order.
bool names_data_files(const CheckpointManifest& manifest);
// Returns whether the manifest names shards, even if there is only one.
bool is_sharded(const CheckpointManifest& manifest);

// Returns the steps whose manifest is among `names`, newest first.
std::vector<std::int64_t> announced_steps(std::span<const std::string> names);

// Returns the files that killed saves have left: temporary files, and data files that no
// manifest names. `named_by` holds, for each step whose manifest can be read, the files that it
// names. If a step's manifest exists but cannot be read, its files are kept until that step is
// forgotten. The disk may be at fault, and not the file.
std::vector<std::string> leftovers(std::span<const std::string> names,
                                   const std::map<std::int64_t, std::set<std::string>>& named_by);

// A step and its metric, if that is known.
struct RatedStep {
  std::int64_t step = 0;
  std::optional<double> metric;
};
enum class Better { kLower, kHigher };

// Returns the best step; of equal ones the newest. nullopt: none has a metric. NaN counts as
// none.
std::optional<std::int64_t> best_step(std::span<const RatedStep> steps, Better better);

// Returns the steps to forget, oldest first. The newest `keep_last` (at least 1) and the best
// `keep_best` remain.
std::vector<std::int64_t> steps_to_forget(std::span<const RatedStep> newest_first, int keep_last,
                                          int keep_best = 0, Better better = Better::kLower);

// RestoreCandidate: the report of a rank when the ranks look for the checkpoint to restore.
struct RestoreCandidate {
  std::int64_t step = -1;  // the newest one it can read within the bound; -1: none
  std::string identity;    // digest of the manifest
  bool operator==(const RestoreCandidate&) const = default;
};

// RestoreRound: one round of that search. Every rank has reported its newest readable checkpoint
// that is not newer than the bound. Either all agree, or the search continues with a lower
// bound.
struct RestoreRound {
  bool done = false;        // agreed on `step`
  std::int64_t step = -1;   // done: what to restore, -1 for nothing
  std::int64_t bound = -1;  // not done: look for steps up to this one
  // The first rank that had none, or whose report moved the bound; and whether it only had
  // another checkpoint of the same step than rank 0.
  int rank = -1;
  bool differs = false;
};
RestoreRound agree_on_step(std::span<const RestoreCandidate> by_rank);

}  // namespace ddprun
