// Reads the files of a checkpoint once per job, however many ranks need them. Each rank reads its
// part of the bytes (core/reading_order.h) and compares it with the digests of the manifest. It
// passes the part to the other ranks piece by piece. In memory of the CPU, large tensors are read
// and received in their own memory. A rank copies only the others that it needs.
//
// So the memory is some pieces, whatever the size of the checkpoint. Disk, digest and exchange
// work at the same time on different pieces.
//
// Free functions; the thread of the group's calls. Failures throw DistError.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/checkpoint/file_outline.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {

// The memory for a part of a file.
struct Destination {
  std::uint64_t at = 0;  // in the file
  std::uint64_t bytes = 0;
  void* memory = nullptr;
  c10::Device device = c10::kCPU;
};

// Why a checkpoint is passed over.
struct Damage {
  std::string why;
  bool is_gone = false;  // a file is missing: the run that writes may have removed it
};

// Returns the damage that a rank has met, the same on every rank. Collective. failure: this
// rank's. Throws it on every rank unless is_passed_over(). timeout: how long the ranks wait for
// each other's disks.
std::optional<Damage> agree_on_damage(ProcessGroup& group, const std::optional<Error>& failure,
                                      Timeout timeout);

// Reads the files. Returns the damage, the same on every rank. Collective. Throws on every rank if
// a file cannot be read.
std::optional<Damage> verify_together(ProcessGroup& group, const CheckpointDirectory& directory,
                                      const CheckpointManifest& manifest, Timeout timeout);

// Reads as above, and fills the destinations of each file. They may be different on each rank, are
// sorted by position, and do not overlap. If there is damage, they are filled in part. outlines: of
// each file, or empty. A file that has changed since its outline was read is damaged.
std::optional<Damage> read_together(ProcessGroup& group, const CheckpointDirectory& directory,
                                    const CheckpointManifest& manifest,
                                    const std::vector<FileOutline>& outlines,
                                    const std::vector<std::vector<Destination>>& destinations,
                                    Timeout timeout);

}  // namespace ddprun
