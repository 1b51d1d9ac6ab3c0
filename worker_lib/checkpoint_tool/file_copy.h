// FileCopy: writes a file that has bytes of its own and bytes of a checkpoint, whatever its size.
// The checkpoint is read once, from its first byte to its last, and compared with its digests. Each
// piece goes to all its places in the new file.
//
// The layout of the new file is a function that puts its bytes in order. It is called twice: first
// to find the places, and at the end, when the CRCs of the copied bytes are known.
//
//   FileCopy copy(opened, [&](FileCopy& file) {
//     file.put("header");
//     file.put(opened.archive.tree.tensors[0].storage.contents);
//   });
//   copy.write("new.bin");
//
// One owner thread. Failures throw Failed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "worker_lib/checkpoint_tool/opened.h"

namespace ddprun {

// Memory for a tensor whose elements are not in order.
inline constexpr std::uint64_t kMostStridedBytes = std::uint64_t{192} << 20;

class FileCopy {
 public:
  // opened: must outlive this.
  FileCopy(const Opened& opened, std::function<void(FileCopy&)> layout);

  // Writes the file, and makes it durable. The path is a temporary one: after a failure, the file
  // may be there in part.
  void write(const std::string& path);

  // Calls of the layout only:

  // Puts bytes in memory, or a view of the checkpoint, at the end of the file. Does not throw.
  void put(std::string_view bytes);
  // Puts the elements of a tensor in row-major order. storage: a view of the checkpoint. REQUIRES:
  // strided_bytes() is at most kMostStridedBytes.
  void put_elements(const PickleTensor& tensor, std::string_view storage);
  // Returns the CRC of a view that was put; 0 as long as it is not known.
  std::uint32_t crc_of(std::string_view view) const;
  std::uint64_t position() const { return position_; }

 private:
  using View = std::pair<const char*, std::size_t>;
  // Bytes of a checkpoint's file, and their place in the new file.
  struct Part {
    std::uint64_t begin = 0, end = 0;  // in the checkpoint's file
    std::uint64_t at = 0;
    std::string_view view;
    const PickleTensor* strided = nullptr;  // then the bytes are not copied as they are
    std::uint32_t crc = 0;
  };

  void copy_parts();
  void copy_strided(std::size_t file, const Part& part);
  void write_at(std::uint64_t at, std::string_view bytes);
  void flush_own_bytes();
  void fail(int sys_errno);

  const Opened& opened_;
  const std::function<void(FileCopy&)> layout_;
  std::vector<std::vector<Part>> parts_;  // by file
  std::map<View, std::uint32_t> crcs_;
  bool is_writing_ = false;  // in the second call of the layout
  std::uint64_t position_ = 0;
  std::string own_bytes_;  // not yet written, and where they begin
  std::uint64_t own_at_ = 0;
  std::string path_;
  UniqueFd fd_;
  int failed_ = 0;  // errno
};

// Returns the size of a tensor whose elements are not in row-major order: what it reaches over in
// its storage, or its elements if they have more bytes. 0: its elements are in order.
std::uint64_t strided_bytes(const PickleTensor& tensor);
// Returns the part of its storage that a tensor reaches over.
std::string_view reach_of(const PickleTensor& tensor, std::string_view storage);
// Returns how many bytes the elements of a tensor have; at most the largest int64.
std::uint64_t bytes_of(const PickleTensor& tensor);

}  // namespace ddprun
