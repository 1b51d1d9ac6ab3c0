#include "worker_lib/checkpoint/file_outline.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/concat.h"
#include "base/read_all.h"
#include "base/read_whole.h"
#include "base/regular_file.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {
namespace {

constexpr std::size_t kWindowBytes = 64 << 10;
constexpr std::size_t kNearBytes = kWindowBytes / 4;
// The window, if the records are farther apart: a header, its name and some padding.
constexpr std::size_t kNarrowWindowBytes = 512;
// The most bytes of pickle and directory, whose sizes are not verified yet: some 3 million tensors.
constexpr std::uint64_t kMaxOutlineBytes = std::uint64_t{1} << 30;

}  // namespace

FileOutline::Range::Range(Range&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

FileOutline::Range& FileOutline::Range::operator=(Range&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

FileOutline::Range::~Range() {
  if (bytes_ > 0) ::munmap(address_, bytes_);
}

Result<void> FileOutline::Range::reserve(std::size_t bytes) {
  if (bytes == 0) return {};
  void* const address =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return system_error(concat("reserve ", bytes, " addresses"), errno);
  address_ = static_cast<char*>(address);
  bytes_ = bytes;
  return {};
}

Result<void> FileOutline::open(const std::string& path) {
  path_ = path;
  Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) return fd.error();
  fd_ = *std::move(fd);
  return {};
}

Result<FileOutline> FileOutline::read(const std::string& path, std::uint64_t bytes) {
  FileOutline result;
  if (Result<void> done = result.open(path); !done) return done.error();
  const Result<std::size_t> size = size_within(result.fd_.get(), path, bytes);
  if (!size) return size.error();
  if (*size != bytes) return wrong_size(path, *size, bytes);
  if (Result<void> done = result.read_archive(bytes); !done) return done.error();
  return result;
}

Result<FileOutline> FileOutline::read_within(const std::string& path, std::uint64_t begin,
                                             std::uint64_t bytes) {
  FileOutline result;
  result.begin_ = begin;
  if (Result<void> done = result.open(path); !done) return done.error();
  if (Result<void> done = result.read_archive(bytes); !done) return done.error();
  return result;
}

Result<void> FileOutline::read_archive(std::uint64_t bytes) {
  if (Result<void> done = range_.reserve(bytes); !done)
    return std::move(done).error().within("read " + path_);
  Result<StateArchive> archive = read_state_archive(
      range_.view(), RecordCrcs::kTrust, [this](std::string_view part) { return read_part(part); });
  if (!archive) return std::move(archive).error().within("read " + path_);
  archive_ = *std::move(archive);
  fd_.reset();
  window_ = {};
  for (const Part& part : parts_) longest_ = std::max(longest_, part.bytes.size());
  std::ranges::sort(parts_, {}, &Part::at);
  return {};
}

template <class Use>
void FileOutline::for_each_part(std::uint64_t begin, std::uint64_t end, Use&& use) const {
  const std::uint64_t first = begin - std::min<std::uint64_t>(begin, longest_);
  for (auto part = std::ranges::lower_bound(parts_, first, {}, &Part::at);
       part != parts_.end() && part->at < end; ++part) {
    const std::uint64_t from = std::max(begin, part->at);
    const std::uint64_t to = std::min(end, part->at + part->bytes.size());
    if (from < to)
      use(from, part->bytes.substr(static_cast<std::size_t>(from - part->at),
                                   static_cast<std::size_t>(to - from)));
  }
}

bool FileOutline::has_read(std::uint64_t begin, std::uint64_t end) const {
  bool result = false;
  for_each_part(begin, end, [&](std::uint64_t, std::string_view) { result = true; });
  return result;
}

bool FileOutline::agrees_with(std::uint64_t at, std::string_view bytes) const {
  bool result = true;
  for_each_part(at, at + bytes.size(), [&](std::uint64_t from, std::string_view known) {
    result = result && bytes.substr(static_cast<std::size_t>(from - at), known.size()) == known;
  });
  return result;
}

std::span<char> FileOutline::make_room(std::size_t bytes) {
  if (bytes > room_.size()) room_ = blocks_.emplace_back(std::max(bytes, kWindowBytes));
  const std::span<char> result = room_.first(bytes);
  room_ = room_.subspan(bytes);
  return result;
}

// Small parts that are near each other come from a window. All parts are kept.
Result<std::string_view> FileOutline::read_part(std::string_view part) {
  const std::uint64_t at = position_of(part);
  kept_bytes_ += part.size();
  if (kept_bytes_ > kMaxOutlineBytes)
    return beyond_reader(
        path_, concat("its pickle and its directory have more than ", kMaxOutlineBytes, " bytes"));
  const auto fill = [&](std::span<char> into) -> Result<void> {
    const ssize_t count = pread_all(fd_.get(), into.data(), into.size(), begin_ + at);
    if (count < 0) return read_error(path_, errno);
    if (static_cast<std::size_t>(count) == into.size()) return {};
    return wrong_size(path_, at + static_cast<std::size_t>(count), bytes());
  };
  const std::span<char> room = make_room(part.size());
  const std::string_view kept(room.data(), room.size());
  if (part.size() >= kWindowBytes) {
    if (const Result<void> done = fill(room); !done) return done.error();
    parts_.push_back({at, kept});
    return kept;
  }
  const std::uint64_t window_end = window_at_ + window_.size();
  if (at < window_at_ || at + part.size() > window_end) {
    const bool is_near = at >= window_at_ && at <= window_end + kNearBytes;
    const std::size_t wanted = std::max(part.size(), is_near ? kWindowBytes : kNarrowWindowBytes);
    window_at_ = at;
    window_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(bytes() - at, wanted)));
    if (const Result<void> done = fill(window_); !done) return done.error();
  }
  window_.copy(room.data(), room.size(), static_cast<std::size_t>(at - window_at_));
  parts_.push_back({at, kept});
  return kept;
}

}  // namespace ddprun
