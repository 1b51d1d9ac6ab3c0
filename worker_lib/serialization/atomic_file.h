// AtomicFile: a file that appears under its name either complete and durable, or not at all. The
// first failure is kept, later writes do nothing, and commit() reports the failure.
//
// Three things happen at once: the caller fills one buffer of a FileStream, while one thread
// writes the previous buffer and another thread digests it.
//
// Calls that change files go through base/file_calls.h. One thread at a time.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "worker_lib/serialization/core/written_file.h"
#include "worker_lib/serialization/file_digest.h"
#include "worker_lib/serialization/file_stream.h"

namespace ddprun {

class AtomicFile {
 public:
  // Opens the temporary name of `path`; writes nothing under `path` yet.
  explicit AtomicFile(std::string path);
  // Removes the temporary file unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes) { stream_.write(data, bytes); }

  // Flushes, fsyncs and renames; the caller must fsync the directory. Returns the size and
  // digests of the written data, with the file's name without its directory. expected: if not
  // empty, the SHA-256 that the data must have. Otherwise kCorrupt, and no file appears.
  Result<WrittenFile> commit(const std::string& expected = "");
  // Does the first, slow half of commit(): everything except the rename.
  void put_on_disk() { stream_.finish(); }

 private:
  const std::string path_;
  const std::string temporary_;
  bool committed_ = false;
  FileDigest digest_;  // the stream's thread uses it until finish()
  FileStream stream_;
};

}  // namespace ddprun
