// FileStream: writes a large file, or a part of one, from a descriptor's position on.
//
// It writes past the page cache. The cache would cost half as much processor time as a digest, and
// would evict the training's data. While the caller fills one buffer, a thread writes the previous
// one. The first failure is kept, and later writes do nothing.
//
// Calls that change files go through base/file_calls.h. One thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/task_queue.h"
#include "base/unique_fd.h"

namespace ddprun {

class FileStream {
 public:
  static constexpr std::size_t kPieceBytes = 4 << 20;  // enough for the disk's full speed
  static constexpr std::size_t kAlignment = 4096;      // of positions that it can begin at

  // Receives each piece before it is overwritten, in order, on a thread of its own. All have
  // kPieceBytes, except the last one. Must not throw.
  using Reader = std::function<void(std::string_view piece)>;

  // path: for errors. If `fd` is not valid, the failure is errno. Throws if memory runs out.
  FileStream(UniqueFd fd, std::string path, Reader reader = {});

  void write(const void* data, std::size_t bytes);
  // Writes the rest, fsyncs and closes. Call it once or more.
  void finish();
  // Waits until both threads have done what they do now.
  void join();
  // Keeps a failure, unless there is one.
  void fail(int sys_errno);

  std::uint64_t bytes() const { return bytes_; }  // that were written
  // Returns how many bytes the disk has taken. Any thread.
  std::uint64_t progress() const { return taken_; }
  // Returns the failure; final after finish().
  const std::optional<Error>& failure() const { return failure_; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  using Buffer = std::unique_ptr<char, Free>;
  static Buffer make_buffer();

  void put_out();
  bool put_out(std::string_view piece);
  void set_direct(bool direct);

  const std::string path_;
  const Reader reader_;
  Buffer filling_, leaving_;
  UniqueFd fd_;
  std::size_t filled_ = 0;
  std::uint64_t bytes_ = 0;
  std::atomic<std::uint64_t> taken_ = 0;
  std::optional<Error> failure_;
  // The disk's thread uses these between begin() and join().
  bool is_direct_ = false;
  int disk_errno_ = 0;
  BackgroundTask reading_{"ddprun-digest"};
  BackgroundTask writing_{"ddprun-disk"};
};

}  // namespace ddprun
