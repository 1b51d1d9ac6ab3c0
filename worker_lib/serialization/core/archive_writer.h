// Writes a StateArchive as a file of torch.save, the opposite of read_state_archive(): for a tool
// that has no LibTorch.
//
// The pickle is of protocol 2, as LibTorch writes it; the archive around it is ZipWriter's.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/result.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {

// Takes a piece of the file. Must not throw.
using WriteBytes = std::function<void(const void* data, std::size_t bytes)>;

// Storages are numbered anew, in the order in which the tree has them; a storage that two tensors
// share is written once. crc_of: of a storage's bytes, by its key, where it is known already.
// kUnsupported, before anything is written, for what CheckpointManager's files do not have: bytes,
// sets, devices, dtypes, integers past 64 bits.
Result<void> write_state_archive(const StateArchive& archive,
                                 const std::unordered_map<std::string, std::uint32_t>& crc_of,
                                 const WriteBytes& write);

}  // namespace ddprun
