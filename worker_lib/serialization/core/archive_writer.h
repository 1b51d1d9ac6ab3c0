// Writes a StateArchive as a file of torch.save, the opposite of read_state_archive(). It is for
// a tool that has no LibTorch.
//
// The pickle has protocol 2, as LibTorch writes it. ZipWriter makes the archive around it.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "worker_lib/serialization/core/state_archive.h"
#include "worker_lib/serialization/core/zip_writer.h"

namespace ddprun {

// The pickle of a tree, and the keys of its storages. Storage i has the number i in the pickle.
struct PickledTree {
  std::string pickle;
  std::vector<std::string> storages;
};

// Returns kUnsupported as write_state_archive().
Result<PickledTree> pickle_tree(const PickleTree& tree);

// The records of an archive.
inline constexpr std::string_view kPickleRecord = "archive/data.pkl";
inline constexpr std::string_view kByteOrderRecord = "archive/byteorder", kByteOrder = "little";
inline constexpr std::string_view kVersionRecord = "archive/version", kArchiveVersion = "3\n";
std::string storage_record(std::size_t number);

// Writes the archive. Storages get new numbers in the order in which the tree has them. A
// storage that two tensors share is written once. crc_of: CRCs of storages that are already
// known, by key. Returns kUnsupported, before anything is written, for contents that
// CheckpointManager's files do not have: bytes, sets, devices, dtypes, integers beyond 64 bits.
Result<void> write_state_archive(const StateArchive& archive,
                                 const std::unordered_map<std::string, std::uint32_t>& crc_of,
                                 const WriteBytes& write);

}  // namespace ddprun
