#include "worker_lib/checkpoint/piece_reader.h"

#include <cerrno>
#include <utility>

#include "base/read_all.h"
#include "base/regular_file.h"

namespace ddprun {

PieceReader::PieceReader(const CheckpointDirectory& directory, const CheckpointManifest& manifest,
                         std::vector<FileRange> pieces)
    : directory_(directory), manifest_(manifest), pieces_(std::move(pieces)) {
  begin_read();
}

std::string PieceReader::path_of(const FileRange& range) const {
  return directory_.path_of(manifest_.files[range.file].name);
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
  char* const data = slot.bytes.data();
  digesting_.begin([this, range, data] { digest(range, data); });
  begin_read();
  return Piece{range, data};
}

void PieceReader::begin_read() {
  if (next_ == pieces_.size()) return;
  reading_.begin([this, range = pieces_[next_], &slot = slots_[next_ % 2]] {
    slot.failure = read(range, slot.bytes);
  });
}

std::optional<Error> PieceReader::read(const FileRange& range, std::vector<char>& bytes) {
  const std::string path = path_of(range);
  if (open_file_ != range.file) {
    Result<UniqueFd> fd = open_regular_file(path);
    if (!fd) return fd.error();
    fd_ = *std::move(fd);
    open_file_ = range.file;
  }
  const auto size = static_cast<std::size_t>(range.bytes());
  if (bytes.size() < size) bytes.resize(size);
  const ssize_t count = pread_all(fd_.get(), bytes.data(), size, range.begin);
  if (count < 0) return system_error("read " + path, errno);
  if (static_cast<std::size_t>(count) == size) return std::nullopt;
  return wrong_size(path, range.begin + static_cast<std::uint64_t>(count),
                    manifest_.files[range.file].bytes);
}

void PieceReader::digest(const FileRange& range, const char* data) {
  const WrittenFile& file = manifest_.files[range.file];
  const auto has_state = [&](std::uint64_t at) {
    return file.chain_bytes > 0 && at % file.chain_bytes == 0;
  };
  if (range.begin == 0)
    digest_ = std::make_unique<ChainedSha256>();
  else if (has_state(range.begin))
    digest_ = std::make_unique<ChainedSha256>(state_after(file, range.begin), range.begin);
  digest_->add(data, static_cast<std::size_t>(range.bytes()));
  const bool is_last = range.end == file.bytes;
  if (!is_last && !has_state(range.end)) return;
  const bool is_right =
      is_last ? digest_->hex() == file.sha256 : digest_->state() == state_after(file, range.end);
  if (!is_right && !digest_failure_) digest_failure_ = wrong_digest(path_of(range));
}

}  // namespace ddprun
