// StateDirectory: the files that keep a service's state across restarts (--state-dir).
//
//   lock          locked while the service lives: two services would overwrite each other's jobs
//   journal       rendezvous/persistence/core/journal.h
//   journal.new   an unfinished snapshot that will replace the journal; ignored if found
//
// Every function blocks on the disk. It has one owner thread at a time. That is StateWriter's
// own thread, once StateWriter has the object (rendezvous/persistence/state_writer.h).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/persistence/core/journal.h"

namespace ddprun {

class StateDirectory {
 public:
  // A journal is compacted when it is longer than this and than four times its last snapshot.
  static constexpr std::size_t kCompactBytes = 1 << 20;
  // Reserved disk space, so that running jobs can continue when the disk is full.
  static constexpr std::size_t kReserveBytes = 1 << 20;
  // No service writes a longer journal. It is not read, however much memory there is.
  static constexpr std::size_t kMaxJournalBytes = std::size_t{1} << 30;

  // Opens the directory: creates it if it does not exist, takes its lock, and reads its
  // journal. An incomplete last write is cut off. Errors name the file, and say what to do
  // where the user can do something. kResource: another service has the lock. kCorrupt,
  // kUnsupported: see read_journal().
  static Result<StateDirectory> open(const std::string& path,
                                     std::size_t compact_bytes = kCompactBytes);

  const std::string& path() const { return path_; }
  const JournalImage& image() const { return image_; }
  // Returns whether there was no journal before open().
  bool is_new() const { return is_new_; }
  // Returns the number of bytes that open() has cut off.
  std::size_t cut_bytes() const { return cut_bytes_; }

  // Writes the entries. When it succeeds they are durable, also after a loss of power. After an
  // error of the disk, the next call that succeeds writes them. It may have no entries of its own.
  // kInvalidArgument: one of them is too large for a frame, and none was taken.
  Result<void> write(std::span<const JournalEntry> entries);

  // Reserves kReserveBytes after the journal's end where the file system supports that. Then
  // checks whether as much is free on the disk. An error means that there is not enough space,
  // so nothing new should be admitted.
  Result<void> ensure_room();

 private:
  StateDirectory() = default;

  Result<void> lock();
  Result<void> read();
  Result<void> append(std::span<const JournalEntry> entries);
  Result<void> rewrite();
  Error failed(const std::string& doing, const char* file) const;

  std::string path_;
  std::size_t compact_bytes_ = kCompactBytes;
  UniqueFd directory_;
  UniqueFd lock_;
  UniqueFd journal_;
  JournalImage image_;
  std::size_t size_ = 0;
  std::size_t snapshot_size_ = 0;
  std::size_t reserved_to_ = 0;  // offset in the journal's file
  std::size_t cut_bytes_ = 0;
  bool is_new_ = false;
  bool must_rewrite_ = false;  // the journal's end is not known, or the file lacks a part of image_
};

}  // namespace ddprun
