// CheckpointDirectory: checkpoints as files. It writes them so that each is either complete or
// absent. It reads them back only if every byte is as it was written.
//
// A save writes the data file under a temporary name, fsyncs it, renames it and fsyncs the
// directory. Then it does the same with the manifest. It never overwrites a file that an
// announced checkpoint needs. Calls that change files go through base/file_calls.h: tests make
// every call fail, and lose data that was not fsynced. docs/reference/file_formats.md has the
// format; checkpoint/core/manifest.h has the names and the decisions.
//
// One run at a time writes to a directory: the last one that took it. One rank announces, other
// ranks may write data files, and any number may read. One thread at a time.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "worker_lib/checkpoint/core/json_bounds.h"
#include "worker_lib/checkpoint/core/manifest.h"
#include "worker_lib/checkpoint/fencing_token.h"
#include "worker_lib/serialization/atomic_file.h"

namespace ddprun {

// Maximum size in bytes of an announced manifest (some 100,000 shards). The reader accepts
// manifests several times as large.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{16} << 20;

// Returns whether read_json_text() met its own bounds. A checkpoint beyond them may be complete.
// If memory or descriptors run out, the error is kResource, too, but has the system's errno.
inline bool is_beyond_reader(const Error& error) {
  return error.kind == ErrorKind::kResource && error.sys_errno == 0;
}
// Returns whether a search continues with an older checkpoint. It does if this one is damaged,
// incomplete, beyond the reader's bounds, or does not count (kStopped). After any other error
// the checkpoint may be complete and must not be skipped.
inline bool is_passed_over(const Error& error) {
  return error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kNotFound ||
         error.kind == ErrorKind::kStopped || is_beyond_reader(error);
}

// Makes the error for a file that may be complete, but exceeds the bounds of this program.
Error beyond_reader(const std::string& path, std::string cause);

// Makes the error kCorrupt for a file that does not have the size or the SHA-256 of its manifest.
Error wrong_size(const std::string& path, std::uint64_t bytes, std::uint64_t expected);
Error wrong_digest(const std::string& path);

// Makes the error of a read. kNotFound: another machine has removed the file (ESTALE).
Error read_error(const std::string& path, int sys_errno);

// Reads a JSON file for a parser. The error is_beyond_reader() if it is larger than this program
// reads, or exceeds `shape`. Otherwise fails as open_regular_file() and read_whole().
Result<std::string> read_json_text(const std::string& path, const JsonBounds& shape);

// A complete manifest and its digest, by which ranks check that they mean the same one.
struct AnnouncedCheckpoint {
  CheckpointManifest manifest;
  std::string identity;
};

class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }

  // Creates the directory if it is missing (and fsyncs that), and removes what killed saves left
  // in it. For the rank that writes.
  Result<void> prepare();

  // Takes the directory for a run (checkpoint/core/fencing_token.h). Checkpoints that are
  // announced now count; checkpoints that earlier runs announce later do not. A run that already
  // has the directory keeps it. owner: random, the same in the whole process. job: the same in
  // all generations of a job, empty if it is not known. For the rank that announces, after
  // prepare(). Returns kStopped if another job has taken the directory from an earlier generation
  // of this one.
  Result<void> take(std::int64_t generation, const std::string& owner, const std::string& job = "");
  // Sets the claim of the rank that has taken the directory; for a rank that only writes data
  // files.
  void share(const FencingToken& claim) { own_ = claim; }
  const FencingToken& own_claim() const { return own_; }
  // Takes the lock, to be held while files are renamed or removed. kStopped if another run has
  // taken the directory; without take() there is no check.
  Result<ClaimLock> hold(const std::string& doing) const;

  // Returns a free name for the data of a manifest. With several files, each rank's name is
  // shard_name() of it.
  Result<std::string> free_data_name(std::int64_t step) const;
  // Writes a data file with `write_data`. It is then durable, but belongs to no checkpoint yet.
  Result<WrittenFile> write_data(const std::string& name,
                                 const std::function<void(AtomicFile&)>& write_data);
  // Gives a data file its name. It is written and fsynced, under a temporary name of this
  // directory. Then it is durable, but belongs to no checkpoint yet.
  Result<void> rename_data(const std::string& temporary, const std::string& name);
  // Removes what a failed save could not remove, unless another run has the directory.
  void tidy();
  // Announces the data files that `manifest` names. On failure the earlier checkpoints are
  // unchanged and the data files are removed. One exception is an earlier announcement of the
  // same step: if the last fsync fails, either the new one or the old one may be there.
  // kInvalidArgument: the manifest is larger than kMaxManifestBytes.
  Result<AnnouncedCheckpoint> announce(CheckpointManifest manifest);
  // Writes one data file and announces it.
  Result<AnnouncedCheckpoint> announce(CheckpointManifest manifest,
                                       const std::function<void(AtomicFile&)>& write_data);
  // Removes data files that were written and will not be announced.
  void discard(const std::vector<std::string>& names) { (void)remove(names); }

  // Returns the steps that have a manifest, complete or not, newest first. A missing directory
  // has none.
  Result<std::vector<std::int64_t>> steps() const;

  // Reads a manifest. kCorrupt, kNotFound and kSystem name the file and its problem. kStopped:
  // the checkpoint does not count, because the run that announced it did not have the directory
  // any more. kResource: it is larger or deeper than the reader's bounds. It may be complete and
  // must not be removed for that.
  Result<AnnouncedCheckpoint> read_manifest(std::int64_t step) const;

  // Checks that the files are there and have their sizes; reads none of them. kCorrupt, kNotFound
  // and kSystem name the file and its problem.
  Result<void> check_sizes(const CheckpointManifest& manifest) const;
  // Compares every byte of the files with their SHA-256, in little memory. Fails as check_sizes().
  // Calls `on_progress` after each piece.
  Result<void> verify(
      const CheckpointManifest& manifest, const std::function<void()>& on_progress = [] {}) const;

  // Removes a checkpoint. The manifest goes first, so that the checkpoint never looks damaged.
  Result<void> forget(std::int64_t step);

 private:
  Result<std::vector<std::string>> names() const;
  // Checks that this run has the directory. kStopped if another run has taken it; without take()
  // there is no check.
  Result<void> expect_own(const std::string& doing) const;
  Error taken_by_another_job(const std::string& other, const std::string& own) const;
  // Checks the claim before each name, because the lock may not exist on this file system, or
  // may have expired while this process was stopped.
  Result<void> remove(const std::vector<std::string>& names);
  // Renames the step's manifest if it exceeds the reader's bounds, because a save will replace
  // it.
  Result<void> set_aside_unread(std::int64_t step);
  Result<void> remove_leftovers();

  std::string path_;
  FencingToken own_;
  bool is_untidy_ = false;  // something could not be removed
};

}  // namespace ddprun
