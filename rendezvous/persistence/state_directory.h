// StateDirectory: the files in which a service's state outlives it (--state-dir).
//
//   lock          locked while the service lives: two of them would forget each other's jobs
//   journal       rendezvous/persistence/core/journal.h
//   journal.new   a snapshot on its way to become the journal; worth nothing if found
//
// Every function blocks on the disk. One owner thread at a time: StateWriter's own, once it has
// the object (rendezvous/persistence/state_writer.h).
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
  // A journal is compacted when it is longer than this and four times its last snapshot.
  static constexpr std::size_t kCompactBytes = 1 << 20;
  // Room that is held ready, so that what runs can go on when the disk is full.
  static constexpr std::size_t kReserveBytes = 1 << 20;
  // What no service writes: it is not read, however much memory there is.
  static constexpr std::size_t kMaxJournalBytes = std::size_t{1} << 30;

  // Makes the directory where it does not exist, takes its lock, and reads what it holds; the end
  // of a write that was cut short is cut off. Errors name the file, and say what to do where
  // somebody can: another service has the lock; kCorrupt, kUnsupported: see read_journal().
  static Result<StateDirectory> open(const std::string& path,
                                     std::size_t compact_bytes = kCompactBytes);

  const std::string& path() const { return path_; }
  const JournalImage& image() const { return image_; }
  // Nothing was here before.
  bool is_new() const { return is_new_; }
  // How much open() has cut off.
  std::size_t cut_bytes() const { return cut_bytes_; }

  // When it returns the entries are safe, be it from a loss of power. After an error of the disk
  // they are written by the next call that succeeds, which may have none of its own.
  // kInvalidArgument: one of them is too large to be written ever, and none was taken.
  Result<void> write(std::span<const JournalEntry> entries);

  // Takes kReserveBytes behind the journal's end for itself, where the file system can do that, and
  // looks whether as much is left on the disk. An error: no, so it is time to take on nothing new.
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
  bool must_rewrite_ = false;  // what the journal ends with is not known, or not all of the image
};

}  // namespace ddprun
