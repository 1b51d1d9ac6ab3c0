#include "launcher/guard/run_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include "base/small_file.h"
#include "base/worker_env.h"

namespace ddprun {
namespace {

constexpr std::string_view kPrefix = "ddprun_";
constexpr std::size_t kLetters = 6;  // added by mkdtemp()
constexpr std::string_view kUnfinished = ".ddprun.";
// Marks each directory, because a name alone may be a user's own choice (ddprun_models).
constexpr const char* kMark = ".made_by_ddprun";
constexpr const char* kSharedMemory = "/dev/shm";
constexpr const char* kTmp = "/tmp";

bool is_run_directory(std::string_view name) {
  return name.size() == kPrefix.size() + kLetters && name.starts_with(kPrefix);
}

bool is_cgroup(int directory) {
  struct statfs info {};
  return fstatfs(directory, &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC;
}

// Puts the mark into a directory. A control group needs none: it can hold no files, and only
// ddprun creates a group of this name there.
bool put_mark(int directory) {
  if (is_cgroup(directory)) return true;
  const UniqueFd mark(openat(directory, kMark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  return mark.valid();
}

bool is_empty(int directory) {
  const int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> list(fdopendir(again), &closedir);
  int names = 0;
  while (list && names < 3 && readdir(list.get())) ++names;
  return list && names == 2;  // . and ..
}

bool is_ours(int directory, bool is_unfinished) {
  return is_cgroup(directory) || faccessat(directory, kMark, F_OK, 0) == 0 ||
         (is_unfinished && is_empty(directory));
}

// Returns whether a lock is visible to every process that sees the directory.
bool has_locks(int directory) {
  struct statfs info {};
  if (fstatfs(directory, &info) != 0) return false;
  constexpr std::array<unsigned long, 6> kLocal{TMPFS_MAGIC,           EXT4_SUPER_MAGIC,
                                                XFS_SUPER_MAGIC,       BTRFS_SUPER_MAGIC,
                                                OVERLAYFS_SUPER_MAGIC, CGROUP2_SUPER_MAGIC};
  return std::ranges::count(kLocal, static_cast<unsigned long>(info.f_type)) > 0;
}

bool is_usable(const char* directory) { return access(directory, W_OK | X_OK) == 0; }

}  // namespace

Result<RunDirectory> make_run_directory(const std::string& base) {
  constexpr int kAttempts = 10;
  int why = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string made = base + "/" + std::string(kUnfinished) + "XXXXXX";
    if (!mkdtemp(made.data())) return system_error("make a directory in " + base, errno);
    RunDirectory run;
    run.path = base + "/" + std::string(kPrefix) + made.substr(made.size() - kLetters);
    run.lock.reset(open(made.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (run.lock.valid() && (!has_locks(run.lock.get()) || flock(run.lock.get(), LOCK_EX) == 0) &&
        put_mark(run.lock.get()) &&
        renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, run.path.c_str(), RENAME_NOREPLACE) == 0) {
      return run;
    }
    why = errno;
    unlink((made + "/" + kMark).c_str());
    rmdir(made.c_str());
    // Another run has just removed the unfinished directory as abandoned, or the name is in use.
    if (why != ENOENT && why != EEXIST) break;
  }
  return system_error("make a directory in " + base, why);
}

std::string place_for_files(bool only_small_files) {
  if (std::string chosen = environment_text("TMPDIR"); !chosen.empty()) return chosen;
  struct statfs info {};
  const bool in_memory = only_small_files && is_usable(kSharedMemory) &&
                         statfs(kSharedMemory, &info) == 0 && info.f_type == TMPFS_MAGIC &&
                         info.f_bavail > 0;
  return in_memory ? kSharedMemory : kTmp;
}

std::vector<std::string> places_for_files() {
  std::vector<std::string> places{kSharedMemory, kTmp};
  if (std::string chosen = environment_text("TMPDIR"); !chosen.empty() && chosen != kTmp)
    places.push_back(chosen);
  return places;
}

// If this process is killed here, it leaves something that abandoned_in() recognizes: a
// directory with its mark, or one that looks unfinished.
void remove_files(const std::string& directory) {
  if (directory.empty()) return;
  const std::filesystem::path path(directory);
  std::error_code ignored;
  for (const std::filesystem::path& entry : entries_of(path)) {
    if (entry.filename() != kMark) std::filesystem::remove_all(entry, ignored);
  }
  const std::string name = path.filename();
  std::filesystem::path last = path;
  if (is_run_directory(name)) {
    last.replace_filename(std::string(kUnfinished) + name.substr(kPrefix.size()));
    if (std::error_code failed; std::filesystem::rename(path, last, failed), failed) last = path;
  }
  std::filesystem::remove_all(last, ignored);
}

std::vector<RunDirectory> abandoned_in(const std::string& base) {
  constexpr int kMaxNames = 5000;
  std::vector<RunDirectory> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(base.c_str()), &closedir);
  if (!directory || !has_locks(dirfd(directory.get()))) return found;
  for (int looked_at = 0; looked_at < kMaxNames; ++looked_at) {
    const dirent* entry = readdir(directory.get());
    if (!entry) break;
    // An unfinished directory may be about to be locked. If it is removed, its run creates a new
    // one.
    const bool is_unfinished = std::string_view(entry->d_name).starts_with(kUnfinished);
    if (!is_unfinished && !is_run_directory(entry->d_name)) continue;
    RunDirectory run;
    run.path = base + "/" + entry->d_name;
    run.lock.reset(openat(dirfd(directory.get()), entry->d_name,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat info {};
    if (!run.lock.valid() || fstat(run.lock.get(), &info) != 0) continue;
    if (info.st_uid != geteuid() || !is_ours(run.lock.get(), is_unfinished)) continue;
    if (flock(run.lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    found.push_back(std::move(run));
  }
  return found;
}

}  // namespace ddprun
