#include "worker_lib/serialization/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/file_calls.h"
#include "base/random_id.h"
#include "base/write_all.h"

namespace ddprun {
namespace {

constexpr std::size_t kBufferBytes = 4 << 20;     // enough for the disk's full speed
constexpr std::uint64_t kMostChainStates = 4096;  // 260 KB of a manifest
constexpr std::size_t kAlignment = 4096;          // of memory, position and size of direct writes

ssize_t write_file(int fd, const void* data, std::size_t bytes) {
  return file_calls().write(fd, data, bytes);
}

}  // namespace

AtomicFile::Buffer AtomicFile::make_buffer() {
  Buffer buffer(static_cast<char*>(std::aligned_alloc(kAlignment, kBufferBytes)));
  if (!buffer) throw std::bad_alloc();
  return buffer;
}

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)),
      temporary_(temporary_name(path_, random_hex(6))),
      filling_(make_buffer()),
      fd_(uninterrupted([&] {
        return file_calls().open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                                 0666);
      })) {
  if (!fd_.valid()) fail(errno);
}

AtomicFile::~AtomicFile() {
  join();
  if (!committed_) file_calls().unlink(temporary_.c_str());
}

void AtomicFile::fail(int sys_errno) {
  if (!failure_) failure_ = system_error("write " + temporary_, sys_errno);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0 && !failure_) {
    const std::size_t part = std::min(bytes, kBufferBytes - filled_);
    std::memcpy(filling_.get() + filled_, from, part);
    filled_ += part;
    bytes_ += part;
    from += part;
    bytes -= part;
    if (filled_ == kBufferBytes) put_out();
  }
}

void AtomicFile::put_out() {
  join();
  if (failure_) return;
  if (!leaving_) {  // the first buffer
    leaving_ = make_buffer();
    set_direct(true);
  }
  std::swap(filling_, leaving_);
  const std::string_view piece(leaving_.get(), std::exchange(filled_, 0));
  digesting_.begin([this, piece] {
    digest_.add(piece.data(), piece.size());
    chain_ += digest_.state();
  });
  writing_.begin([this, piece] {
    if (!put_out(piece)) disk_errno_ = errno;
  });
}

void AtomicFile::join() {
  digesting_.join();
  writing_.join();
  if (disk_errno_ != 0) fail(disk_errno_);
}

void AtomicFile::set_direct(bool direct) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  is_direct_ = flags >= 0 && ::fcntl(fd_.get(), F_SETFL, wanted) == 0 && direct;
}

bool AtomicFile::put_out(std::string_view piece) {
  if (is_direct_) {
    const ssize_t count =
        uninterrupted([&] { return write_file(fd_.get(), piece.data(), piece.size()); });
    if (count == static_cast<ssize_t>(piece.size())) return true;
    if (count < 0 && errno != EINVAL) return false;
    // The file system does not support direct writes, or not from where a short write ended.
    set_direct(false);
    piece.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
  if (!write_all(fd_.get(), piece, write_file)) return false;
  // Starts the disk now, and not only when fsync() waits for it. If this is not possible,
  // fsync() does it all.
  if (leaving_) ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  return true;
}

void AtomicFile::put_on_disk() {
  if (!fd_.valid()) return;
  join();
  if (!failure_) {
    const std::string_view rest(filling_.get(), std::exchange(filled_, 0));
    digest_.add(rest.data(), rest.size());
    if (is_direct_) set_direct(false);  // the rest is not a whole block
    if (!put_out(rest)) fail(errno);
  }
  FileCalls& calls = file_calls();
  if (!failure_ && uninterrupted([&] { return calls.fsync(fd_.get()); }) != 0) fail(errno);
  // If close() is interrupted, the file is closed nevertheless, and its data is on the disk.
  if (!failure_ && calls.close(fd_.release()) != 0 && errno != EINTR) fail(errno);
}

Result<WrittenFile> AtomicFile::commit(const std::string& expected) {
  put_on_disk();
  if (failure_) return *failure_;
  const std::string sha256 = digest_.hex();
  if (!expected.empty() && sha256 != expected)
    return Error{.kind = ErrorKind::kCorrupt,
                 .doing = "write " + path_,
                 .cause = "the SHA-256 of the written bytes is not the expected one"};
  if (file_calls().rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  if (failure_) return *failure_;
  committed_ = true;
  WrittenFile written{
      .name = path_.substr(path_.rfind('/') + 1), .bytes = bytes_, .sha256 = sha256};
  // There is none after the last byte, which the digest itself is for.
  chain_.resize(static_cast<std::size_t>(chain_states(bytes_, kBufferBytes)) * kChainDigits);
  if (!chain_.empty()) {
    written.chain_bytes = kBufferBytes;
    written.chain = std::move(chain_);
    thin_out_chain(written, kMostChainStates);
  }
  return written;
}

}  // namespace ddprun
