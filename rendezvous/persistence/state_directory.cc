#include "rendezvous/persistence/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/concat.h"
#include "base/durable_directory.h"
#include "base/read_whole.h"
#include "base/write_all.h"

namespace ddprun {
namespace {

constexpr const char* kLock = "lock";
constexpr const char* kJournal = "journal";
constexpr const char* kNewJournal = "journal.new";

}  // namespace

// Returns an error with the current errno.
Error StateDirectory::failed(const std::string& doing, const char* file) const {
  const int sys_errno = errno;
  return system_error(doing + " " + path_ + "/" + file, sys_errno);
}

Result<StateDirectory> StateDirectory::open(const std::string& path, std::size_t compact_bytes) {
  StateDirectory directory;
  directory.path_ = path;
  directory.compact_bytes_ = compact_bytes;
  if (Result<void> made = make_durable_directory(path); !made) return std::move(made).error();
  directory.directory_.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.directory_.valid()) return system_error("open the directory " + path, errno);
  if (Result<void> locked = directory.lock(); !locked) return std::move(locked).error();
  if (Result<void> read = directory.read(); !read) return std::move(read).error();
  return directory;
}

Result<void> StateDirectory::lock() {
  lock_.reset(::openat(directory_.get(), kLock, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_.valid()) return failed("open", kLock);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return {};
  if (errno != EWOULDBLOCK) return failed("lock", kLock);
  return Error{.kind = ErrorKind::kResource,
               .doing = "lock " + path_,
               .cause =
                   "another ddp-rendezvous keeps its state there: end it, or give each its "
                   "own directory"};
}

Result<void> StateDirectory::read() {
  journal_.reset(::openat(directory_.get(), kJournal, O_RDWR | O_APPEND | O_CLOEXEC));
  if (!journal_.valid() && errno != ENOENT) return failed("open", kJournal);
  if (!journal_.valid()) {
    is_new_ = true;
    return rewrite();
  }
  const std::string whole_path = path_ + "/" + kJournal;
  const Result<std::string> bytes =
      read_whole<std::string>(journal_.get(), whole_path, kMaxJournalBytes);
  if (!bytes) return bytes.error();
  Result<JournalReading> reading = read_journal(*bytes);
  if (!reading) {
    Error error = std::move(reading).error();
    error.doing = "read " + whole_path;
    error.cause +=
        ". Replace it by a good copy, or move it away: then running jobs are taken over from the "
        "reports of their agents, and the rest is forgotten";
    return error;
  }
  image_ = std::move(reading->image);
  size_ = snapshot_size_ = reading->whole_bytes;
  cut_bytes_ = bytes->size() - size_;
  if (cut_bytes_ == 0) return {};
  const bool cut = ::ftruncate(journal_.get(), static_cast<off_t>(size_)) == 0 &&
                   ::fdatasync(journal_.get()) == 0;
  if (!cut) return failed("cut", kJournal);
  return {};
}

Result<void> StateDirectory::write(std::span<const JournalEntry> entries) {
  for (const JournalEntry& entry : entries) {
    const std::size_t bytes = journal_bytes({&entry, 1});
    if (bytes > kMaxJournalFrameBytes) {
      return invalid_argument(concat("'", entry.key, "' takes ", bytes,
                                     " bytes, more than the limit of ", kMaxJournalFrameBytes))
          .within("write " + path_ + "/" + kJournal);
    }
  }
  apply_entries(entries, image_);
  must_rewrite_ = must_rewrite_ || journal_bytes(entries) > kMaxJournalFrameBytes;
  if (must_rewrite_) return rewrite();
  if (entries.empty()) return {};
  if (Result<void> appended = append(entries); !appended) return appended;
  // The entries are durable, whether this succeeds or not. A full disk may have room for it
  // later.
  if (size_ > compact_bytes_ && size_ > 4 * snapshot_size_) (void)rewrite();
  return {};
}

Result<void> StateDirectory::append(std::span<const JournalEntry> entries) {
  const std::string frame = journal_frame(entries);
  if (!write_all(journal_.get(), frame) || ::fdatasync(journal_.get()) != 0) {
    Error error = failed("write", kJournal);
    // The end of the file is unknown now. It is also unknown whether the kernel retries pages
    // that it could not write. So this file is not appended to any more.
    must_rewrite_ = true;
    (void)!::ftruncate(journal_.get(), static_cast<off_t>(size_));
    reserved_to_ = 0;
    return error;
  }
  size_ += frame.size();
  return {};
}

Result<void> StateDirectory::ensure_room() {
  const std::size_t wanted = size_ + kReserveBytes;
  if (reserved_to_ < wanted - kReserveBytes / 2) {
    const bool reserved =
        ::fallocate(journal_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(wanted)) == 0;
    // If the file system cannot reserve space, a full disk is noticed by the write that fails.
    const bool cannot = !reserved && (errno == EOPNOTSUPP || errno == ENOSYS);
    if (!reserved && !cannot) return failed("reserve room for", kJournal);
    reserved_to_ = wanted;
  }
  struct statvfs disk = {};
  if (::fstatvfs(directory_.get(), &disk) != 0) return failed("look for room for", kJournal);
  if (disk.f_bavail * disk.f_frsize >= kReserveBytes) return {};
  errno = ENOSPC;
  return failed("keep room for", kJournal);
}

// Replaces the old journal by a new one. If that fails, the old one stays.
Result<void> StateDirectory::rewrite() {
  const std::string bytes = journal_snapshot(image_);
  UniqueFd file(::openat(directory_.get(), kNewJournal,
                         O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  const bool whole = file.valid() && write_all(file.get(), bytes) && ::fsync(file.get()) == 0 &&
                     ::renameat(directory_.get(), kNewJournal, directory_.get(), kJournal) == 0;
  if (!whole) {
    Error error = failed("write", kNewJournal);
    ::unlinkat(directory_.get(), kNewJournal, 0);  // this file may have filled the disk
    return error;
  }
  journal_ = std::move(file);
  size_ = snapshot_size_ = bytes.size();
  reserved_to_ = 0;
  // Until the directory is durable, no entry is: a loss of power may bring the old file back.
  must_rewrite_ = ::fsync(directory_.get()) != 0;
  if (must_rewrite_) return failed("write", ".");
  return {};
}

}  // namespace ddprun
