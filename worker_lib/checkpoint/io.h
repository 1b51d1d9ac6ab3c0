// CheckpointDirectory: checkpoints as files. Writes them so that each is whole or not there, reads
// them back only when every byte is as it was written.
//
// A save writes the data file under a temporary name, fsyncs it, renames it, fsyncs the directory,
// and does the same with the manifest. Nothing that an announced checkpoint needs is written over.
// What changes files goes through base/file_calls.h: tests let every call fail, and lose what was
// not fsynced. docs/checkpoints.md has the format; checkpoint/core/manifest.h has the names and the
// decisions.
//
// One run writes to a directory at a time, the last that took it: one rank announces, others may
// write data files; any number may read. One thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "worker_lib/checkpoint/core/manifest.h"
#include "worker_lib/checkpoint/fencing_token.h"
#include "worker_lib/serialization/atomic_file.h"

namespace ddprun {

// The most bytes of a manifest that is announced, some 100,000 shards. It is read up to many times that.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{16} << 20;

// Tells whether read_manifest() met its own bounds. What is beyond them may be whole. A lack of memory or
// descriptors is kResource, too, but comes from the system.
inline bool is_beyond_reader(const Error& error) {
  return error.kind == ErrorKind::kResource && error.sys_errno == 0;
}
// Tells whether a search goes on with an older checkpoint: this one is damaged, incomplete or beyond the reader's
// bounds, or does not count (kStopped). After any other error it may be whole and must not be passed over.
inline bool is_passed_over(const Error& error) {
  return error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kNotFound ||
         error.kind == ErrorKind::kStopped || is_beyond_reader(error);
}

// A manifest that is whole, and a digest of it, by which ranks tell whether they mean the same.
struct AnnouncedCheckpoint {
  CheckpointManifest manifest;
  std::string identity;
};

class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::string path);

  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }

  // Creates the directory where it is missing (and fsyncs what that takes), and removes what killed
  // saves left in it. For the rank that writes.
  Result<void> prepare();

  // Takes the directory for a run, after which nothing of earlier ones can be announced in it
  // (checkpoint/core/fencing_token.h): what is announced now counts, and what others announce later does
  // not. A run that has it keeps it. owner: random, the same in the whole process. job: the same in
  // all generations of a job, empty if it is not known. For the rank that announces, after prepare().
  // Errors as expect_not_displaced().
  Result<void> take(std::int64_t generation, const std::string& owner, const std::string& job = "");
  // kStopped: another job has taken the directory from an earlier generation of this one.
  Result<void> expect_not_displaced(std::int64_t generation, const std::string& job) const;
  // For a rank that writes data files only: of the rank that has taken the directory.
  void share(const FencingToken& claim) { own_ = claim; }
  const FencingToken& own_claim() const { return own_; }
  // The lock, for as long as something is renamed or removed. kStopped if another run has taken the
  // directory; without take() nobody is asked.
  Result<ClaimLock> hold(const std::string& doing) const;

  // Where `manifest`'s data goes: a name that is not taken. Of several files, each rank's is
  // shard_name() of it.
  Result<std::string> free_data_name(std::int64_t step) const;
  // Writes a data file with `write_data`; it is on the disk then, and belongs to no checkpoint yet.
  Result<WrittenFile> write_data(const std::string& name,
                                  const std::function<void(AtomicFile&)>& write_data);
  // Announces the data files that `manifest` names. On failure what was there before is untouched, and
  // they are removed, but for the announcement of this step itself: when its last fsync fails, the new
  // one may be there or the old one. kInvalidArgument: the manifest is larger than kMaxManifestBytes.
  Result<AnnouncedCheckpoint> announce(CheckpointManifest manifest);
  // Both, of one file.
  Result<AnnouncedCheckpoint> announce(CheckpointManifest manifest,
                                       const std::function<void(AtomicFile&)>& write_data);
  // Removes data files that were written and are not to be announced.
  void discard(const std::vector<std::string>& names) { (void)remove(names); }

  // Steps that have a manifest, whole or not, newest first. A missing directory has none.
  Result<std::vector<std::int64_t>> steps() const;

  // kCorrupt, kNotFound or kSystem names the file and what is wrong with it; kStopped: it does not
  // count, as it was announced by a run that did not have the directory any more; kResource: it is
  // larger or deeper than what is read here, and may be whole: it must not be removed for that.
  Result<AnnouncedCheckpoint> read_manifest(std::int64_t step) const;

  // The bytes of a file of the manifest, after size and SHA-256 were found right.
  Result<std::vector<char>> read_data(const CheckpointManifest& manifest,
                                      std::size_t file = 0) const;

  // Removes a checkpoint, its manifest first, so that it never looks like a damaged one.
  Result<void> forget(std::int64_t step);

 private:
  Result<std::vector<std::string>> names() const;
  // kStopped if another run has taken the directory; without take() nobody is asked.
  Result<void> expect_own(const std::string& doing) const;
  Error taken_by_another_job(const std::string& other, const std::string& own) const;
  // Looks at the claim before each name: the lock may not exist on this file system, or may have run
  // out while this process was stopped.
  Result<void> remove(const std::vector<std::string>& names);
  // Renames the step's manifest if it exceeds the reader's bounds: a save is about to replace it.
  Result<void> set_aside_unread(std::int64_t step);
  Result<void> remove_leftovers();
  void tidy();

  std::string path_;
  FencingToken own_;
  bool is_untidy_ = false;  // something could not be removed
};

}  // namespace ddprun
