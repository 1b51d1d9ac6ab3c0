// RecordedDisk: file calls that are recorded (the story), and what a disk may hold when the
// power fails after each of them. It keeps only what a disk must keep:
//
//   a file's bytes         are durable when an fsync of the file has returned. Before that, any
//                          part of them may be there: none, all, zeros in their place, a
//                          beginning, some blocks
//   a name (made,          is durable when an fsync of its directory has returned. Before that,
//   renamed, removed)      each change may have happened or not, independently of earlier
//                          changes. A rename is two changes
//
// Real disks usually keep more: they keep the order of the names. What survives here survives
// there.
//
//   RecordedDisk disk(root);
//   { ScopedFileCalls scope(disk); ...the story... }
//   for (const auto& image : disk.images_after(calls, rng)) RecordedDisk::write(image, elsewhere);
//
// All calls are carried out, except fsync. Any thread may make calls.
#pragma once

#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/file_calls.h"
#include "base/rng.h"

namespace ddprun::testing_support {

// FilesWithoutFsync: file calls for reading an image after a power failure. Their own fsyncs do
// not matter there.
struct FilesWithoutFsync : FileCalls {
  int fsync(int) override { return 0; }
};

class RecordedDisk : public FileCalls {
 public:
  // root: an empty directory, which counts as durable. Calls outside of it are not recorded.
  explicit RecordedDisk(std::string root) : root_(std::move(root)) {}

  // Returns how many calls of the story so far have changed or flushed something.
  std::size_t calls() const { return story_.size(); }
  // Acts like SIGKILL after this many calls: later calls do nothing and fail. The kernel keeps
  // running, so nothing is lost.
  void kill_after(std::size_t calls) { dies_at_ = calls; }
  // Lets calls work again, as those of the next process.
  void revive() { dies_at_ = std::numeric_limits<std::size_t>::max(); }

  // Image: maps each path below the root to the file's bytes; nullopt: it is a directory.
  using Image = std::map<std::string, std::optional<std::string>>;
  // Returns what the disk may hold when the power fails after this many calls of the story. The
  // images always have these cases:
  // - nothing that is not durable
  // - everything
  // - names without their bytes
  // - each change alone
  // - all changes except one
  //
  // The rest are random ones.
  std::vector<Image> images_after(std::size_t calls, Rng& rng) const;
  // Writes an image into an empty directory.
  static void write(const Image& image, const std::string& directory);

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t write(int fd, const void* data, std::size_t bytes) override;
  int fsync(int fd) override;
  int close(int fd) override;
  int mkdir(const char* path, mode_t mode) override;
  int rename(const char* from, const char* to) override;
  // Fails, as on a file system without hard links.
  int link(const char*, const char*) override {
    errno = EPERM;
    return -1;
  }
  int unlink(const char* path) override;

 private:
  using Node = int;
  static constexpr Node kNothing = -1, kDirectory = -2;  // files are numbered from 0

  struct NameChange {
    std::string path;
    Node now = kNothing;
  };
  struct Call {
    std::vector<NameChange> names;        // names that were made, renamed or removed
    Node file = kNothing;                 // the file that was written or fsynced
    std::optional<std::string> contents;  // the file's bytes after the call; none: it was fsynced
    std::optional<std::string> flushed;   // the directory that was fsynced
  };
  struct Contents {
    std::string safe, latest;
  };
  // Moment: what is known after some calls.
  struct Moment {
    std::map<std::string, Node> safe;
    std::vector<NameChange> pending;
    std::vector<Contents> files;
  };

  bool is_dead() const;
  std::optional<std::string> below_root(const std::string& path) const;
  void rename_in_story(const std::vector<NameChange>& names);
  Moment moment_after(std::size_t calls) const;
  static std::string some_of(const Contents& contents, Rng& rng);

  const std::string root_;
  std::mutex mutex_;  // of the calls
  std::size_t dies_at_ = std::numeric_limits<std::size_t>::max();
  std::vector<Call> story_;
  std::map<std::string, Node> names_;  // the names now
  std::vector<std::string> files_;     // the contents now, by node
  std::map<int, Node> open_files_;     // the node of each open descriptor
  std::map<int, std::string> open_directories_;
};

}  // namespace ddprun::testing_support
