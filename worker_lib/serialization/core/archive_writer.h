// Writes a StateArchive as a file of torch.save, the opposite of read_state_archive(). It is for
// a tool that has no LibTorch.
//
// The pickle has protocol 2, as LibTorch writes it. ZipWriter makes the archive around it.
//
// Pure; any thread.
#pragma once

#include <string>

#include "base/result.h"
#include "worker_lib/serialization/core/state_archive.h"
#include "worker_lib/serialization/core/zip_writer.h"

namespace ddprun {

// Writes the archive. Storages get new numbers in the order in which the tree has them. A
// storage that two tensors share is written once. crc_of: CRCs of storages that are already
// known, by key. Returns kUnsupported, before anything is written, for contents that
// CheckpointManager's files do not have: bytes, sets, devices, dtypes, integers beyond 64 bits.
Result<void> write_state_archive(const StateArchive& archive,
                                 const std::unordered_map<std::string, std::uint32_t>& crc_of,
                                 const WriteBytes& write);

}  // namespace ddprun
