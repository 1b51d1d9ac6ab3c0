// Writes a tree as a file of torch.save, the opposite of read_state_archive(). It is for a tool
// that has no LibTorch.
//
// The pickle has protocol 2, as LibTorch writes it. ZipWriter makes the archive around it.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "worker_lib/serialization/core/pickle_value.h"
#include "worker_lib/serialization/core/zip_writer.h"

namespace ddprun {

// The pickle of a tree, and its storages. Storage i has the number i in the pickle.
struct PickledTree {
  std::string pickle;
  std::vector<PickleStorage> storages;
};

// Returns kUnsupported as write_state_archive().
Result<PickledTree> pickle_tree(const PickleTree& tree);

// The records of an archive.
inline constexpr std::string_view kPickleRecord = "archive/data.pkl";
inline constexpr std::string_view kByteOrderRecord = "archive/byteorder", kByteOrder = "little";
inline constexpr std::string_view kVersionRecord = "archive/version", kArchiveVersion = "3\n";
std::string storage_record(std::size_t number);

// Returns the CRC of a storage, if it is known already.
using CrcOf = std::function<std::optional<std::uint32_t>(const PickleStorage& storage)>;

// Writes the archive of a tree whose storages have contents. They get new numbers in the order in
// which the tree has them. Storages with the same key are one, which is written once.
// Returns kUnsupported, before anything is written, for contents that CheckpointManager's files do
// not have: bytes, sets, devices, dtypes, integers beyond 64 bits.
Result<void> write_state_archive(const PickleTree& tree, const CrcOf& crc_of,
                                 const WriteBytes& write);

}  // namespace ddprun
