#include "worker_lib/checkpoint_tool/opened.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <limits>
#include <utility>

#include "base/concat.h"
#include "base/read_all.h"
#include "base/read_whole.h"
#include "base/regular_file.h"
#include "worker_lib/checkpoint/core/reading_order.h"
#include "worker_lib/checkpoint/piece_reader.h"
#include "worker_lib/checkpoint_tool/report.h"
#include "worker_lib/serialization/core/crc32.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

CheckpointManifest find_checkpoint(const CheckpointDirectory& directory,
                                   std::optional<std::int64_t> wanted) {
  for (const std::int64_t step : steps_of(directory)) {
    if (wanted && step != *wanted) continue;
    const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
    if (wanted && !checkpoint) refuse_damaged(directory.path(), checkpoint.error());
    if (!checkpoint || (!wanted && !quick_look(directory, checkpoint->manifest).empty())) continue;
    return checkpoint->manifest;
  }
  refuse_files(directory.path() + " has no " +
               (wanted ? concat("checkpoint of step ", *wanted) : "whole checkpoint"));
}

FileOutline open_file(const std::string& path) {
  const Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) refuse_files(fd.error().message());
  const Result<std::size_t> bytes =
      size_within(fd->get(), path, std::numeric_limits<std::uint64_t>::max());
  if (!bytes) refuse_files(bytes.error().message());
  Result<FileOutline> outline = FileOutline::read(path, *bytes);
  if (!outline) refuse_damaged(path, outline.error());
  return *std::move(outline);
}

Result<void> read_outlines(Opened& opened) {
  std::vector<StateArchive> archives;
  for (std::size_t i = 0; i < opened.paths.size(); ++i) {
    Result<FileOutline> outline =
        FileOutline::read(opened.paths[i], opened.manifest.files[i].bytes);
    if (!outline) return outline.error();
    opened.outlines.push_back(*std::move(outline));
    archives.push_back(opened.outlines.back().archive());
  }
  if (!is_sharded(opened.manifest)) {
    opened.archive = std::move(archives.front());
    return {};
  }
  Result<StateArchive> merged = merge_shards(archives);
  if (!merged) return merged.error();
  opened.archive = *std::move(merged);
  return {};
}

// Passes on the records of a file of torch.save, in the order of the file.
void read_records(const Opened& opened, const UsePiece& use) {
  const FileOutline& outline = opened.outlines[0];
  std::vector<ZipRecord> records = outline.archive().records;
  std::ranges::sort(records, std::less<>(), [](const ZipRecord& r) { return r.bytes.data(); });
  for (const ZipRecord& record : records) {
    std::uint32_t crc = 0;
    std::uint64_t at = outline.position_of(record.bytes);
    read_pieces(opened.name, at, record.bytes.size(), [&](std::string_view piece) {
      crc = crc32(piece, crc);
      if (!outline.agrees_with(at, piece)) refuse_files(opened.name + " has changed");
      use(0, at, piece);
      at += piece.size();
    });
    if (crc != record.crc)
      refuse_damaged(opened.name, concat("the bytes of record '", record.name,
                                         "' do not match its CRC: it is damaged"));
  }
}

}  // namespace

std::optional<std::size_t> Opened::file_of(std::string_view bytes) const {
  for (std::size_t i = 0; i < outlines.size(); ++i)
    if (!std::less<>()(bytes.data(), outlines[i].begin()) &&
        std::less<>()(bytes.data(), outlines[i].begin() + outlines[i].bytes()))
      return i;
  return std::nullopt;
}

std::vector<std::int64_t> steps_of(const CheckpointDirectory& directory) {
  std::error_code failed;
  if (!fs::is_directory(directory.path(), failed))
    refuse_files(directory.path() + (failed ? ": " + failed.message() : " is not a directory"));
  Result<std::vector<std::int64_t>> found = directory.steps();
  if (!found) refuse_files(found.error().message());
  return *std::move(found);
}

std::string quick_look(const CheckpointDirectory& directory, const CheckpointManifest& manifest) {
  for (const WrittenFile& file : manifest.files) {
    std::error_code failed;
    const std::uint64_t bytes = fs::file_size(directory.path_of(file.name), failed);
    if (failed) return file.name + ": " + failed.message();
    if (bytes != file.bytes)
      return concat(file.name, " has ", bytes, " bytes, but its manifest has ", file.bytes);
  }
  return "";
}

std::uint64_t bytes_of(const CheckpointManifest& manifest) {
  std::uint64_t bytes = 0;
  for (const WrittenFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

Opened open_any(const std::string& path, std::optional<std::int64_t> step) {
  Opened opened;
  if (!fs::is_directory(path)) {
    if (step) refuse_files(path + " is not a directory, so it has no steps");
    opened.name = path;
    opened.paths = {path};
    opened.outlines.push_back(open_file(path));
    opened.bytes = opened.outlines[0].bytes();
    opened.archive = opened.outlines[0].archive();
    return opened;
  }
  opened.directory.emplace(path);
  opened.manifest = find_checkpoint(*opened.directory, step);
  for (const WrittenFile& file : opened.manifest.files)
    opened.paths.push_back(opened.directory->path_of(file.name));
  opened.name = opened.paths.front();
  opened.bytes = bytes_of(opened.manifest);
  if (const Result<void> read = read_outlines(opened); !read) {
    verify(opened);  // tells which file is damaged
    refuse_damaged(opened.name, read.error());
  }
  return opened;
}

void verify(const Opened& opened) {
  if (!opened.directory) return read_records(opened, [](auto, auto, auto) {});
  if (const Result<void> whole = opened.directory->verify(opened.manifest); !whole)
    refuse_damaged(opened.directory->path(), whole.error());
}

void read_verified(const Opened& opened, const UsePiece& use) {
  if (!opened.directory) return read_records(opened, use);
  const auto order = reading_order(opened.manifest.files, 1);
  PieceReader reader(*opened.directory, opened.manifest, in_pieces(order[0], kPieceBytes));
  while (const auto piece = reader.next()) {
    const FileRange& range = piece->range;
    const std::string_view bytes(piece->data, static_cast<std::size_t>(range.bytes()));
    if (!opened.outlines[range.file].agrees_with(range.begin, bytes))
      refuse_damaged(opened.directory->path(), wrong_digest(opened.paths[range.file]));
    use(range.file, range.begin, bytes);
  }
  if (reader.failure()) refuse_damaged(opened.directory->path(), *reader.failure());
}

void read_pieces(const std::string& path, std::uint64_t at, std::uint64_t bytes,
                 const std::function<void(std::string_view)>& use) {
  const Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) refuse_files(fd.error().message());
  read_pieces(fd->get(), path, at, bytes, use);
}

void read_pieces(int fd, const std::string& path, std::uint64_t at, std::uint64_t bytes,
                 const std::function<void(std::string_view)>& use) {
  std::vector<char> piece(static_cast<std::size_t>(std::min(bytes, kPieceBytes)));
  for (const std::uint64_t end = at + bytes; at < end; at += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(end - at, kPieceBytes)));
    const ssize_t count = pread_all(fd, piece.data(), piece.size(), at);
    if (count < 0) refuse_files(system_error("read " + path, errno).message());
    if (static_cast<std::size_t>(count) < piece.size()) refuse_files(path + " became shorter");
    use({piece.data(), piece.size()});
  }
}

}  // namespace ddprun
