// RecordedDisk: file calls that are written down, and what a disk may hold when the power goes
// after each of them. It keeps no more than it must:
//
//   a file's bytes         are safe when an fsync of the file has returned. Before, any part of them
//                          may be there: none, all, zeros in their place, a beginning, some blocks
//   a name (made,          is safe when an fsync of its directory has returned. Before, each change
//   renamed, removed)      may have happened or not, whatever became of earlier ones; a rename is
//                          two of them
//
// Disks are kinder than that as a rule: they keep the order of names. What survives here survives
// there.
//
//   RecordedDisk disk(root);
//   { ScopedFileCalls scope(disk); ...the story... }
//   for (const auto& image : disk.images_after(calls, rng)) RecordedDisk::write(image, elsewhere);
//
// The calls are carried out, but for fsync. One thread at a time.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_calls.h"
#include "base/rng.h"

namespace ddprun::testing_support {

// For what is looked at after a loss of power, whose own does not matter.
struct FilesWithoutFsync : FileCalls {
  int fsync(int) override { return 0; }
};

class RecordedDisk : public FileCalls {
 public:
  // root: an empty directory, which is safe. What lies outside is not written down.
  explicit RecordedDisk(std::string root) : root_(std::move(root)) {}

  // How many calls of the story so far have done something.
  std::size_t calls() const { return story_.size(); }
  // As SIGKILL after so many: what comes later does nothing and fails. The kernel goes on, so
  // nothing is lost.
  void kill_after(std::size_t calls) { dies_at_ = calls; }
  // The next process may write.
  void revive() { dies_at_ = std::numeric_limits<std::size_t>::max(); }

  // By path below the root: a file's bytes, or nothing for a directory.
  using Image = std::map<std::string, std::optional<std::string>>;
  // What may be found when the power goes after the first so many calls of the story: always
  // nothing that is not safe, all of it, names without bytes, each change alone and all but each;
  // and some random ones.
  std::vector<Image> images_after(std::size_t calls, Rng& rng) const;
  // Puts an image into an empty directory.
  static void write(const Image& image, const std::string& directory);

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t write(int fd, const void* data, std::size_t bytes) override;
  int fsync(int fd) override;
  int close(int fd) override;
  int mkdir(const char* path, mode_t mode) override;
  int rename(const char* from, const char* to) override;
  // As on a file system without hard links.
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
    std::vector<NameChange> names;        // made, renamed, removed
    Node file = kNothing;                 // written or fsynced
    std::optional<std::string> contents;  // of the file after the call; none: it was fsynced
    std::optional<std::string> flushed;   // the directory that was fsynced
  };
  struct Contents {
    std::string safe, latest;
  };
  // What is known after some calls.
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
  std::size_t dies_at_ = std::numeric_limits<std::size_t>::max();
  std::vector<Call> story_;
  std::map<std::string, Node> names_;  // now
  std::vector<std::string> files_;     // contents now, by node
  std::map<int, Node> open_files_;     // by descriptor
  std::map<int, std::string> open_directories_;
};

}  // namespace ddprun::testing_support
