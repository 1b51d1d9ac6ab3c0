#include "worker_lib/checkpoint/piece_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/read_all.h"
#include "base/regular_file.h"

namespace ddprun {
namespace {

// Runs a part of a task. Returns its error, or that memory ran out.
template <class Part>
std::optional<Error> without_throwing(const std::string& path, Part&& part) {
  try {
    return part();
  } catch (const std::bad_alloc&) {
    return read_error(path, ENOMEM);
  }
}

}  // namespace

PieceReader::PieceReader(const CheckpointDirectory& directory, const CheckpointManifest& manifest,
                         std::vector<FileRange> pieces, const PieceLayout& layout,
                         std::uint64_t room)
    : directory_(directory), manifest_(manifest), pieces_(std::move(pieces)), layout_(layout) {
  std::uint64_t most = room;
  for (const FileRange& piece : pieces_) most = std::max(most, piece.bytes());
  for (Slot& slot : slots_)
    slot.bytes = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(most));
  for (const WrittenFile& file : manifest_.files) paths_.push_back(directory_.path_of(file.name));
  begin_read();
}

std::optional<PieceReader::Piece> PieceReader::next() {
  reading_.join();
  digesting_.join();
  if (!failure_ && digest_failure_) failure_ = digest_failure_;
  if (failure_ || next_ == pieces_.size()) return std::nullopt;
  const FileRange range = pieces_[next_];
  Slot& slot = slots_[next_++ % 2];
  if (slot.failure) {
    failure_ = slot.failure;
    return std::nullopt;
  }
  char* const data = slot.bytes.get();
  digesting_.begin([this, range, data] {
    auto failure = without_throwing(paths_[range.file], [&] { return digest(range, data); });
    if (!digest_failure_) digest_failure_ = std::move(failure);
  });
  begin_read();
  return Piece{range, data};
}

void PieceReader::begin_read() {
  if (next_ == pieces_.size()) return;
  reading_.begin([this, range = pieces_[next_], &slot = slots_[next_ % 2]] {
    slot.failure =
        without_throwing(paths_[range.file], [&] { return read(range, slot.bytes.get()); });
  });
}

std::vector<PiecePart> PieceReader::parts_of(const FileRange& piece, char* buffer) const {
  return layout_.parts(piece, layout_.cuts({&piece, 1}, piece.bytes()), buffer);
}

std::optional<Error> PieceReader::read(const FileRange& range, char* buffer) {
  const std::string& path = paths_[range.file];
  if (open_file_ != range.file) {
    Result<UniqueFd> fd = open_regular_file(path);
    if (!fd) return fd.error();
    fd_ = *std::move(fd);
    open_file_ = range.file;
    // The kernel then reads larger parts ahead. Where it cannot, the file is only read slower.
    (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  for (const PiecePart& part : parts_of(range, buffer)) {
    const ssize_t count = pread_all(fd_.get(), part.memory, part.bytes, part.range.begin);
    if (count < 0) return read_error(path, errno);
    if (static_cast<std::size_t>(count) < part.bytes)
      return wrong_size(path, part.range.begin + static_cast<std::uint64_t>(count),
                        manifest_.files[range.file].bytes);
  }
  return std::nullopt;
}

std::optional<Error> PieceReader::digest(const FileRange& range, char* buffer) {
  const WrittenFile& file = manifest_.files[range.file];
  const auto has_state = [&](std::uint64_t at) {
    return file.chain_bytes > 0 && at % file.chain_bytes == 0;
  };
  if (range.begin == 0)
    digest_ = std::make_unique<ChainedSha256>();
  else if (has_state(range.begin))
    digest_ = std::make_unique<ChainedSha256>(state_after(file, range.begin), range.begin);
  for (const PiecePart& part : parts_of(range, buffer)) digest_->add(part.memory, part.bytes);
  const bool is_last = range.end == file.bytes;
  if (!is_last && !has_state(range.end)) return std::nullopt;
  const bool is_right =
      is_last ? digest_->hex() == file.sha256 : digest_->state() == state_after(file, range.end);
  if (is_right) return std::nullopt;
  return wrong_digest(paths_[range.file]);
}

}  // namespace ddprun
