#include "worker_lib/serialization/file_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/file_calls.h"
#include "base/write_all.h"

namespace ddprun {
namespace {

ssize_t write_file(int fd, const void* data, std::size_t bytes) {
  return file_calls().write(fd, data, bytes);
}

}  // namespace

FileStream::Buffer FileStream::make_buffer() {
  Buffer buffer(static_cast<char*>(std::aligned_alloc(kAlignment, kPieceBytes)));
  if (!buffer) throw std::bad_alloc();
  return buffer;
}

FileStream::FileStream(UniqueFd fd, std::string path, Reader reader)
    : path_(std::move(path)), reader_(std::move(reader)), fd_(std::move(fd)) {
  if (!fd_.valid()) fail(errno);
  filling_ = make_buffer();
}

void FileStream::fail(int sys_errno) {
  if (!failure_) failure_ = system_error("write " + path_, sys_errno);
}

void FileStream::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0 && !failure_) {
    const std::size_t part = std::min(bytes, kPieceBytes - filled_);
    std::memcpy(filling_.get() + filled_, from, part);
    filled_ += part;
    bytes_ += part;
    from += part;
    bytes -= part;
    if (filled_ == kPieceBytes) put_out();
  }
}

void FileStream::put_out() {
  join();
  if (failure_) return;
  if (!leaving_) {  // the first buffer
    leaving_ = make_buffer();
    set_direct(true);
  }
  std::swap(filling_, leaving_);
  const std::string_view piece(leaving_.get(), std::exchange(filled_, 0));
  if (reader_) reading_.begin([this, piece] { reader_(piece); });
  writing_.begin([this, piece] {
    if (!put_out(piece)) disk_errno_ = errno;
  });
}

void FileStream::join() {
  reading_.join();
  writing_.join();
  if (disk_errno_ != 0) fail(disk_errno_);
}

void FileStream::set_direct(bool direct) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  is_direct_ = flags >= 0 && ::fcntl(fd_.get(), F_SETFL, wanted) == 0 && direct;
}

bool FileStream::put_out(std::string_view piece) {
  if (is_direct_) {
    const ssize_t count =
        uninterrupted([&] { return write_file(fd_.get(), piece.data(), piece.size()); });
    taken_ += static_cast<std::uint64_t>(std::max<ssize_t>(count, 0));
    if (count == static_cast<ssize_t>(piece.size())) return true;
    if (count < 0 && errno != EINVAL) return false;
    // The file system does not support direct writes, or not from where a short write ended.
    set_direct(false);
    piece.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
  if (!write_all(fd_.get(), piece, write_file)) return false;
  taken_ += piece.size();
  // Starts the disk now, and not only when fsync() waits for it. If this is not possible,
  // fsync() does it all.
  if (leaving_) ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  return true;
}

void FileStream::finish() {
  if (!fd_.valid()) return;
  join();
  if (!failure_) {
    const std::string_view rest(filling_.get(), std::exchange(filled_, 0));
    if (reader_) reader_(rest);
    if (is_direct_) set_direct(false);  // the rest is not a whole block
    if (!put_out(rest)) fail(errno);
  }
  FileCalls& calls = file_calls();
  if (!failure_ && uninterrupted([&] { return calls.fsync(fd_.get()); }) != 0) fail(errno);
  // If close() is interrupted, the file is closed nevertheless, and its data is on the disk.
  if (!failure_ && calls.close(fd_.release()) != 0 && errno != EINTR) fail(errno);
}

}  // namespace ddprun
