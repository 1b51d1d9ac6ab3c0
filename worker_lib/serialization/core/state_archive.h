// StateArchive: a file of torch.save as a value: the zip archive's records, the contents of its
// pickle, and the bytes of its storages.
//
//   PREFIX/data.pkl       the pickle
//   PREFIX/data/KEY       one storage each
//   PREFIX/byteorder      "little"; older files lack it
//   PREFIX/version, ...   not needed
//
// Pure; any thread. The bytes of the file, and those that ReadPart returned, must outlive the
// value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "worker_lib/serialization/core/pickle_value.h"
#include "worker_lib/serialization/core/zip_directory.h"

namespace ddprun {

// Whether the CRC of every record is checked. Not needed for bytes that a SHA-256 has verified.
enum class RecordCrcs { kCheck, kTrust };

struct StateArchive {
  PickleTree tree;  // the contents of its storages have the sizes that it gives
  std::vector<ZipRecord> records;
  std::string prefix;  // "archive/"
};

// Reads a file. kCorrupt: damaged. kUnsupported: big-endian, older than the zip format (PyTorch
// 1.5), TorchScript, or with contents that unpickle() does not allow. The message says which.
// read: gets all parts that are needed for the tree, and with kCheck every record; storages are
// never read otherwise. Its errors are returned.
Result<StateArchive> read_state_archive(std::string_view file, RecordCrcs crcs,
                                        const ReadPart& read = part_in_memory);

}  // namespace ddprun
