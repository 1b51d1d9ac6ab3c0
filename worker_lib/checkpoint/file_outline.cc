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

Result<FileOutline> FileOutline::read(const std::string& path, std::uint64_t bytes) {
  FileOutline result;
  result.path_ = path;
  Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) return fd.error();
  result.fd_ = *std::move(fd);
  const Result<std::size_t> size = size_within(result.fd_.get(), path, bytes);
  if (!size) return size.error();
  if (*size != bytes) return wrong_size(path, *size, bytes);
  if (Result<void> done = result.range_.reserve(*size); !done)
    return std::move(done).error().within("read " + path);
  Result<StateArchive> archive = read_state_archive(
      result.range_.view(), RecordCrcs::kTrust,
      [&](std::string_view part, KeepBytes keep) { return result.read_part(part, keep); });
  if (!archive) return std::move(archive).error().within("read " + path);
  result.archive_ = *std::move(archive);
  result.fd_.reset();
  return result;
}

Result<std::string_view> FileOutline::read_part(std::string_view part, KeepBytes keep) {
  const std::uint64_t at = position_of(part);
  const auto fill = [&](Part& into, std::size_t size) -> Result<void> {
    into.at = at;
    into.bytes.resize(size);
    const ssize_t count = pread_all(fd_.get(), into.bytes.data(), size, at);
    if (count < 0) return system_error("read " + path_, errno);
    if (static_cast<std::size_t>(count) == size) return {};
    return wrong_size(path_, at + static_cast<std::size_t>(count), bytes());
  };
  if (keep == KeepBytes::kYes) {
    parts_.emplace_back();
    if (const Result<void> done = fill(parts_.back(), part.size()); !done) return done.error();
    return std::string_view(parts_.back().bytes);
  }
  const bool is_in_window =
      at >= window_.at && at + part.size() <= window_.at + window_.bytes.size();
  if (!is_in_window) {
    const std::uint64_t rest = bytes() - at;
    const auto size = static_cast<std::size_t>(
        std::min<std::uint64_t>(rest, std::max(part.size(), kWindowBytes)));
    if (const Result<void> done = fill(window_, size); !done) return done.error();
  }
  return std::string_view(window_.bytes)
      .substr(static_cast<std::size_t>(at - window_.at), part.size());
}

}  // namespace ddprun
