// Reads the data of a checkpoint in tests.
#pragma once

#include <string>

#include "tests/support/read_file.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun::testing_support {

// Returns the bytes of the first file of the manifest, after CheckpointDirectory::verify().
inline Result<std::string> verified_data(const CheckpointDirectory& directory,
                                         const CheckpointManifest& manifest) {
  if (const Result<void> whole = directory.verify(manifest); !whole) return whole.error();
  return read_file(directory.path() + "/" + manifest.files.at(0).name);
}

}  // namespace ddprun::testing_support
