// FileOutline: the tree and the directory of a file of torch.save, without the bytes of its
// tensors. The contents of its storages must not be read: they are addresses in a range that is
// reserved and has no memory. Use position_of() instead. Record names in copies of archive() must
// not outlive this.
//
// So a program can look at a file of any size. The memory is that of the pickle and the zip
// directory. One owner thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {

class FileOutline {
 public:
  // Opens a file and reads its outline. Fails as open_regular_file() and read_state_archive(), or
  // with the disk's error. kCorrupt, which names the size: it does not have `bytes` bytes.
  // is_beyond_reader(): its pickle and directory have more than 1 GiB.
  static Result<FileOutline> read(const std::string& path, std::uint64_t bytes);
  // Reads a file of torch.save within another file, as read() does. Positions are those within it.
  static Result<FileOutline> read_within(const std::string& path, std::uint64_t begin,
                                         std::uint64_t bytes);

  const StateArchive& archive() const { return archive_; }
  std::uint64_t bytes() const { return range_.view().size(); }
  const char* begin() const { return range_.view().data(); }
  // Returns where in the file a storage of the archive begins.
  std::uint64_t position_of(std::string_view storage) const {
    return static_cast<std::uint64_t>(storage.data() - range_.view().data());
  }

  // The parts that the outline was made of, with their places in the file.
  struct Part {
    std::uint64_t at = 0;
    std::string_view bytes;
  };
  const std::vector<Part>& parts() const { return parts_; }
  // Returns whether a part overlaps these positions.
  bool has_read(std::uint64_t begin, std::uint64_t end) const;
  // Returns whether the file's bytes at a position are those of the parts. What a part does not
  // have counts as equal.
  bool agrees_with(std::uint64_t at, std::string_view bytes) const;

 private:
  // Addresses without memory.
  class Range {
   public:
    Range() = default;
    Range(Range&& other) noexcept;
    Range& operator=(Range&& other) noexcept;
    ~Range();
    Result<void> reserve(std::size_t bytes);
    std::string_view view() const { return {address_, bytes_}; }

   private:
    char* address_ = nullptr;
    std::size_t bytes_ = 0;
  };

  Result<void> open(const std::string& path);
  Result<void> read_archive(std::uint64_t bytes);
  Result<std::string_view> read_part(std::string_view part);
  // Returns memory for the bytes of a part. Many small parts share one block.
  std::span<char> make_room(std::size_t bytes);
  // Calls `use(position, bytes)` for what the parts have of these positions.
  template <class Use>
  void for_each_part(std::uint64_t begin, std::uint64_t end, Use&& use) const;

  std::string path_;
  std::uint64_t begin_ = 0;  // of the file of torch.save in the file
  UniqueFd fd_;
  Range range_;
  std::vector<Part> parts_;  // sorted, when all are read
  std::deque<std::vector<char>> blocks_;
  std::span<char> room_;  // at the end of the last block
  std::size_t longest_ = 0;
  std::uint64_t window_at_ = 0;
  std::string window_;            // what small parts are read from
  std::uint64_t kept_bytes_ = 0;  // of the parts
  StateArchive archive_;
};

}  // namespace ddprun
