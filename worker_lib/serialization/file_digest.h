// FileDigest: the SHA-256 of a file's bytes from the first to the last, and the states of
// WrittenFile::chain. Several processes may digest a file's parts in turn: each continues with the
// state of the one before.
//
// One owner thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "worker_lib/serialization/core/written_file.h"
#include "worker_lib/util/chained_sha256.h"

namespace ddprun {

class FileDigest {
 public:
  struct State {
    std::uint64_t bytes = 0;
    std::string state = {};  // ChainedSha256's, unless there are no bytes
    std::string chain = {};
  };

  FileDigest() : FileDigest(State{}) {}
  // Continues. REQUIRES: a state that state() has returned.
  explicit FileDigest(State state);
  FileDigest(const FileDigest&) = delete;
  FileDigest& operator=(const FileDigest&) = delete;

  void add(std::string_view bytes);

  // REQUIRES: the number of bytes so far is a multiple of ChainedSha256::kBlockBytes.
  State state() const;
  // Returns the size and the digests. Ends the digest: call it once.
  WrittenFile finish(std::string name);

 private:
  std::uint64_t bytes_;
  std::string chain_;
  std::optional<ChainedSha256> digest_;
};

}  // namespace ddprun
