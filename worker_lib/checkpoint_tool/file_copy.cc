#include "worker_lib/checkpoint_tool/file_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "base/concat.h"
#include "base/file_calls.h"
#include "base/write_all.h"
#include "worker_lib/checkpoint/piece_reader.h"
#include "worker_lib/checkpoint_tool/report.h"
#include "worker_lib/serialization/core/crc32.h"

namespace ddprun {
namespace {

constexpr std::size_t kOwnBytes = 1 << 20;  // written at once

std::int64_t elements_of(const PickleTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.sizes) elements *= size;
  return elements;
}

// Returns how many elements of its storage a tensor reaches over, which is not empty. REQUIRES:
// what PickleTensor guarantees, so that nothing overflows.
std::int64_t reached_elements(const PickleTensor& tensor) {
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i)
    elements += (tensor.sizes[i] - 1) * tensor.strides[i];
  return elements;
}

bool is_in_order(const PickleTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.sizes.size(); i > 0; --i) {
    if (tensor.sizes[i - 1] != 1 && tensor.strides[i - 1] != expected) return false;
    expected *= tensor.sizes[i - 1];
  }
  return true;
}

}  // namespace

std::uint64_t bytes_of(const PickleTensor& tensor) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements_of(tensor), tensor.dtype.bytes, &bytes))
    bytes = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::uint64_t>(bytes);
}

std::string_view reach_of(const PickleTensor& tensor, std::string_view storage) {
  if (elements_of(tensor) == 0) return {};
  return storage.substr(static_cast<std::size_t>(tensor.offset * tensor.dtype.bytes),
                        static_cast<std::size_t>(reached_elements(tensor) * tensor.dtype.bytes));
}

std::uint64_t strided_bytes(const PickleTensor& tensor) {
  if (elements_of(tensor) == 0 || is_in_order(tensor)) return 0;
  return std::max(static_cast<std::uint64_t>(reached_elements(tensor) * tensor.dtype.bytes),
                  bytes_of(tensor));
}

FileCopy::FileCopy(const Opened& opened, std::function<void(FileCopy&)> layout)
    : opened_(opened), layout_(std::move(layout)), parts_(opened.outlines.size()) {
  layout_(*this);
  for (std::vector<Part>& parts : parts_) std::ranges::stable_sort(parts, {}, &Part::begin);
}

void FileCopy::put(std::string_view bytes) {
  if (const auto file = opened_.file_of(bytes)) {
    if (!is_writing_ && !bytes.empty()) {
      const std::uint64_t begin = opened_.outlines[*file].position_of(bytes);
      parts_[*file].push_back(
          {.begin = begin, .end = begin + bytes.size(), .at = position_, .view = bytes});
    }
  } else if (is_writing_) {
    if (own_at_ + own_bytes_.size() != position_ || own_bytes_.size() >= kOwnBytes) {
      flush_own_bytes();
      own_at_ = position_;
    }
    own_bytes_ += bytes;
  }
  position_ += bytes.size();
}

void FileCopy::put_elements(const PickleTensor& tensor, std::string_view storage) {
  const std::string_view reach = reach_of(tensor, storage);
  if (strided_bytes(tensor) == 0) return put(reach);
  if (const auto file = opened_.file_of(reach); file && !is_writing_) {
    const std::uint64_t begin = opened_.outlines[*file].position_of(reach);
    parts_[*file].push_back({.begin = begin,
                             .end = begin + reach.size(),
                             .at = position_,
                             .view = reach,
                             .strided = &tensor});
  }
  position_ += bytes_of(tensor);
}

std::uint32_t FileCopy::crc_of(std::string_view view) const {
  const auto known = crcs_.find({view.data(), view.size()});
  return known == crcs_.end() ? 0 : known->second;
}

void FileCopy::write(const std::string& path) {
  path_ = path;
  fd_ = UniqueFd(uninterrupted([&] {
    return file_calls().open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }));
  if (!fd_.valid()) fail(errno);
  copy_parts();
  for (std::size_t file = 0; file < parts_.size(); ++file)
    for (const Part& part : parts_[file]) {
      if (part.strided) copy_strided(file, part);
      crcs_[{part.view.data(), part.view.size()}] = part.crc;
    }
  position_ = 0;
  is_writing_ = true;
  layout_(*this);
  flush_own_bytes();
  if (failed_ == 0 && uninterrupted([&] { return file_calls().fsync(fd_.get()); }) != 0)
    failed_ = errno;
  if (failed_ == 0 && file_calls().close(fd_.release()) != 0 && errno != EINTR) failed_ = errno;
  if (failed_ != 0) fail(failed_);
}

// Parts may overlap, as tensors that share memory do. `open` has those that reach into the next
// piece.
void FileCopy::copy_parts() {
  std::vector<std::size_t> next(parts_.size());
  std::vector<std::vector<Part*>> open(parts_.size());
  read_verified(opened_, [&](std::size_t file, std::uint64_t at, std::string_view piece) {
    const std::uint64_t end = at + piece.size();
    std::vector<Part>& parts = parts_[file];
    for (; next[file] < parts.size() && parts[next[file]].begin < end; ++next[file])
      open[file].push_back(&parts[next[file]]);
    for (Part* part : open[file]) {
      const std::uint64_t from = std::max(at, part->begin), to = std::min(end, part->end);
      const std::string_view bytes =
          piece.substr(static_cast<std::size_t>(from - at), static_cast<std::size_t>(to - from));
      part->crc = crc32(bytes, part->crc);
      if (!part->strided) write_at(part->at + (from - part->begin), bytes);
    }
    if (failed_ != 0) fail(failed_);
    std::erase_if(open[file], [&](const Part* part) { return part->end <= end; });
  });
}

// Reads the bytes again, because one tensor at a time is in memory.
void FileCopy::copy_strided(std::size_t file, const Part& part) {
  const PickleTensor& tensor = *part.strided;
  const auto size = static_cast<std::size_t>(tensor.dtype.bytes);
  std::string from;
  from.reserve(part.view.size());
  read_pieces(opened_.paths[file], part.begin, part.end - part.begin,
              [&](std::string_view piece) { from += piece; });
  if (crc32(from) != part.crc) refuse_damaged(opened_.paths[file], "it has changed");
  std::string piece;
  std::uint64_t at = part.at;
  std::vector<std::int64_t> index(tensor.sizes.size());
  std::int64_t element = 0;
  for (std::int64_t left = elements_of(tensor); left > 0; --left) {
    piece.append(from, static_cast<std::size_t>(element) * size, size);
    if (piece.size() >= kPieceBytes || left == 1) {
      write_at(at, piece);
      at += piece.size();
      piece.clear();
    }
    for (std::size_t i = index.size(); i > 0; --i) {
      element += tensor.strides[i - 1];
      if (++index[i - 1] < tensor.sizes[i - 1]) break;
      element -= tensor.sizes[i - 1] * tensor.strides[i - 1];
      index[i - 1] = 0;
    }
  }
}

void FileCopy::write_at(std::uint64_t at, std::string_view bytes) {
  if (failed_ != 0) return;
  const auto write = [](int fd, const void* data, std::size_t size) {
    return file_calls().write(fd, data, size);
  };
  if (::lseek(fd_.get(), static_cast<off_t>(at), SEEK_SET) < 0 ||
      !write_all(fd_.get(), bytes, write))
    failed_ = errno;
}

void FileCopy::flush_own_bytes() {
  write_at(own_at_, own_bytes_);
  own_bytes_.clear();
}

void FileCopy::fail(int sys_errno) {
  refuse_files(system_error("write " + path_, sys_errno).message());
}

}  // namespace ddprun
