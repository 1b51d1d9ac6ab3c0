// RestoreTargets: the contents of a checkpoint before its bytes are read, and the memory to read
// them into.
//
// The contents are complete except that their tensors have no memory yet. So names, classes and
// shapes can be compared first. Then place() gives each tensor memory:
//
//   - a tensor that would be copied to one tensor of the training has that one's memory, so that
//     the bytes are read straight into it;
//   - another one gets memory of its own, which the training usually keeps (states of optimizers);
//   - one that this rank does not read, such as another rank's own state, gets none.
//
// One owner thread. Failures throw DistError.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/checkpoint.h"
#include "worker_lib/checkpoint/file_outline.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/checkpoint/shared_read.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {

class RestoreTargets {
 public:
  // outlines: of the checkpoint's files; must outlive this. Throws kCorrupt or kUnsupported, which
  // name the file, for contents that cannot be read. The file may be damaged.
  RestoreTargets(const CheckpointDirectory& directory, const CheckpointManifest& manifest,
                 const std::vector<FileOutline>& outlines);

  // Returns the contents. Their tensors must not be used before read_together() has filled the
  // destinations.
  SavedValue top() const { return {contents_, file_}; }

  // Gives the tensors memory, and returns where each file's bytes go. Tensors of `state` may be
  // among it: the caller has compared the contents with expect_loadable().
  std::vector<std::vector<Destination>> place(const TrainingState& state, int rank, int world_size);

 private:
  const StateArchive& archive() const {
    return outlines_.size() == 1 && !is_merged_ ? outlines_[0].archive() : merged_;
  }
  c10::IValue make_contents();
  std::vector<std::vector<Destination>> destinations() const;

  std::string file_;
  const std::vector<FileOutline>& outlines_;
  bool is_merged_ = false;
  StateArchive merged_;  // of shards
  // A storage, and its place in the addresses of its file's outline.
  struct SavedStorage {
    std::string_view bytes;
    c10::Storage storage;
  };
  std::vector<SavedStorage> storages_;  // in the order in which the contents have them
  c10::IValue contents_;
};

}  // namespace ddprun
