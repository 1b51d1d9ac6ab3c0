// AtomicFile: a file that appears under its name either complete and durable, or not at all. The
// first failure is kept, later writes do nothing, and commit() reports the failure.
//
// A large file is written past the page cache. The cache would cost half as much processor time
// as the digest, and would evict the training's data. Three things happen at once: the caller
// fills one buffer, while one thread writes the previous buffer and another thread digests it.
//
// Calls that change files go through base/file_calls.h. One thread at a time.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "worker_lib/serialization/core/written_file.h"
#include "worker_lib/util/background_task.h"
#include "worker_lib/util/chained_sha256.h"

namespace ddprun {

class AtomicFile {
 public:
  // Opens the temporary name of `path`; writes nothing under `path` yet.
  explicit AtomicFile(std::string path);
  // Removes the temporary file unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);

  // Flushes, fsyncs and renames; the caller must fsync the directory. Returns the size and
  // digests of the written data, with the file's name without its directory. expected: if not
  // empty, the SHA-256 that the data must have. Otherwise kCorrupt, and no file appears.
  Result<WrittenFile> commit(const std::string& expected = "");
  // The first, slow half of commit(): everything except the rename.
  void put_on_disk();

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  using Buffer = std::unique_ptr<char, Free>;
  static Buffer make_buffer();

  void put_out();
  void join();
  bool put_out(std::string_view piece);
  void set_direct(bool direct);
  void fail(int sys_errno);

  std::string path_;
  std::string temporary_;
  Buffer filling_, leaving_;
  UniqueFd fd_;
  std::size_t filled_ = 0;
  std::uint64_t bytes_ = 0;
  ChainedSha256 digest_;  // the digesting thread's, like the next
  std::string chain_;
  std::optional<Error> failure_;
  bool committed_ = false;
  // The disk's thread uses these between begin() and join().
  bool is_direct_ = false;
  int disk_errno_ = 0;
  BackgroundTask digesting_{"ddprun-digest"};
  BackgroundTask writing_{"ddprun-disk"};
};

}  // namespace ddprun
