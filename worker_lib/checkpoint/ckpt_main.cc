// ddprun-ckpt: shows and verifies a directory of checkpoints or a file of torch.save; merges
// shards into one file. Needs no LibTorch.
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>

#include "base/concat.h"
#include "base/durable_directory.h"
#include "base/exit_codes.h"
#include "base/read_all.h"
#include "base/read_whole.h"
#include "base/regular_file.h"
#include "base/terminal_text.h"
#include "base/version.h"
#include "worker_lib/checkpoint/core/shards.h"
#include "worker_lib/checkpoint/core/state_text.h"
#include "worker_lib/checkpoint/file_outline.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/checkpoint/piece_reader.h"
#include "worker_lib/serialization/core/archive_writer.h"
#include "worker_lib/serialization/core/crc32.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "ddprun-ckpt";
constexpr std::size_t kShown = 40;  // entries of one dict or list

// Makes the text of a file safe for a terminal: no escape sequences, not even colours.
std::string plain(std::string text) {
  std::ranges::replace(text, '\x1b', '?');
  return terminal_line(text);
}

template <class... Parts>
void print(const Parts&... line) {
  std::printf("%s\n", plain(concat(line...)).c_str());
}

void complain(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", kName, plain(what).c_str());
}

// Thrown within this file only, when a path cannot be handled.
struct Failed {
  ExitCode code;
  std::string why;
};

[[noreturn]] void refuse_files(std::string why) { throw Failed{ExitCode::kFiles, std::move(why)}; }

[[noreturn]] void refuse_damaged(const std::string& path, const Error& error) {
  throw Failed{error.kind == ErrorKind::kSystem ? ExitCode::kFiles : ExitCode::kUnwell,
               path + ": " + error.message()};
}

ExitCode report(const Failed& failed) {
  complain(failed.why);
  return failed.code;
}

std::string time_text(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return "?";
  tm local{};
  localtime_r(&facts.st_mtime, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

std::string size_text(std::uint64_t bytes) {
  char text[32];
  if (bytes < 1 << 20)
    std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / 1024);
  else
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

// Returns what is wrong with the files, without reading their bytes; empty: nothing.
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

// Returns "step-000000000002.pt" or "step-000000000002.shard-0000.pt and 3 more shards".
std::string files_text(const CheckpointManifest& manifest) {
  const std::size_t more = manifest.files.size() - 1;
  return manifest.files.front().name +
         (more > 0 ? concat(" and ", more, " more shard", more > 1 ? "s" : "") : "");
}

// Lists the steps. Refuses a path that is not a readable directory.
std::vector<std::int64_t> steps_of(const CheckpointDirectory& directory) {
  std::error_code failed;
  if (!fs::is_directory(directory.path(), failed))
    refuse_files(directory.path() + (failed ? ": " + failed.message() : " is not a directory"));
  Result<std::vector<std::int64_t>> found = directory.steps();
  if (!found) refuse_files(found.error().message());
  return *std::move(found);
}

// A checkpoint beyond the reader's bounds may be complete.
const char* word_for(const Error& error) {
  return is_beyond_reader(error) ? "not read" : "damaged";
}

ExitCode list(const std::string& path) {
  const CheckpointDirectory directory(path);
  const std::vector<std::int64_t> steps = steps_of(directory);
  ExitCode outcome = ExitCode::kSuccess;
  if (steps.empty()) print("no checkpoint");
  for (const std::int64_t step : steps) {
    const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
    const std::string wrong =
        checkpoint ? quick_look(directory, checkpoint->manifest) : checkpoint.error().message();
    if (!wrong.empty()) outcome = ExitCode::kUnwell;
    if (!checkpoint) {
      print("step ", step, "  ", word_for(checkpoint.error()), ": ", wrong);
      continue;
    }
    const CheckpointManifest& m = checkpoint->manifest;
    print("step ", m.step, "  epoch ", m.epoch, "  ",
          time_text(directory.path_of(manifest_name(step))), "  ", size_text(bytes_of(m)),
          "  world of ", m.world_size, "  generation ", m.generation, "  ",
          m.model.empty() ? "" : concat("model ", m.model, "  "),
          m.data.empty() ? "" : concat("data '", m.data, "'  "), files_text(m),
          wrong.empty() ? "" : "  damaged: ", wrong);
  }
  return outcome;
}

// A file of torch.save, or the shards that form one, and its contents without the bytes of its
// tensors.
struct Opened {
  std::string name;  // the first file's
  std::uint64_t bytes = 0;
  std::vector<FileOutline> outlines;
  MergedArchive merged;  // crcs: for shards only
};

// Calls `use` for each piece of a part of a file. Throws Failed.
void read_pieces(const std::string& path, std::uint64_t at, std::uint64_t bytes,
                 const std::function<void(std::string_view)>& use) {
  const Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) refuse_files(fd.error().message());
  std::vector<char> piece(static_cast<std::size_t>(std::min(bytes, kPieceBytes)));
  for (const std::uint64_t end = at + bytes; at < end; at += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(end - at, kPieceBytes)));
    const ssize_t count = pread_all(fd->get(), piece.data(), piece.size(), at);
    if (count < 0) refuse_files(system_error("read " + path, errno).message());
    if (static_cast<std::size_t>(count) < piece.size()) refuse_files(path + " became shorter");
    use({piece.data(), piece.size()});
  }
}

// Returns whether the bytes are in the file of the outline, and not in memory.
bool is_in(const FileOutline& outline, std::string_view bytes) {
  return !std::less<>()(bytes.data(), outline.begin()) &&
         std::less<>()(bytes.data(), outline.begin() + outline.bytes());
}

// Opens a file of torch.save. Compares every record with its CRC.
FileOutline open_file(const std::string& path) {
  const Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) refuse_files(fd.error().message());
  const Result<std::size_t> bytes =
      size_within(fd->get(), path, std::numeric_limits<std::uint64_t>::max());
  if (!bytes) refuse_files(bytes.error().message());
  Result<FileOutline> outline = FileOutline::read(path, *bytes);
  if (!outline) refuse_damaged(path, outline.error());
  for (const ZipRecord& record : outline->archive().records) {
    std::uint32_t crc = 0;
    read_pieces(path, outline->position_of(record.bytes), record.bytes.size(),
                [&](std::string_view piece) { crc = crc32(piece, crc); });
    if (crc != record.crc)
      throw Failed{ExitCode::kUnwell, concat(path, ": the bytes of record '", record.name,
                                             "' do not match its CRC: it is damaged")};
  }
  return *std::move(outline);
}

// Opens a checkpoint. Compares every byte with its SHA-256.
void open_checkpoint(const CheckpointDirectory& directory, const CheckpointManifest& manifest,
                     Opened& opened) {
  opened.name = directory.path_of(manifest.files.front().name);
  opened.bytes = bytes_of(manifest);
  if (const Result<void> whole = directory.verify(manifest); !whole)
    refuse_damaged(directory.path(), whole.error());
  std::vector<StateArchive> archives;
  for (const WrittenFile& file : manifest.files) {
    Result<FileOutline> outline = FileOutline::read(directory.path_of(file.name), file.bytes);
    if (!outline) refuse_damaged(opened.name, outline.error());
    opened.outlines.push_back(*std::move(outline));
    archives.push_back(opened.outlines.back().archive());
  }
  if (!is_sharded(manifest)) {
    opened.merged.archive = std::move(archives.front());
    return;
  }
  Result<MergedArchive> merged = merge_shards(archives);
  if (!merged) refuse_damaged(opened.name, merged.error());
  opened.merged = *std::move(merged);
}

// Finds the checkpoint of a step, or the newest complete one.
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

void open_any(const std::string& path, Opened& opened) {
  if (!fs::is_directory(path)) {
    opened.name = path;
    opened.outlines.push_back(open_file(path));
    opened.bytes = opened.outlines[0].bytes();
    opened.merged.archive = opened.outlines[0].archive();
    return;
  }
  const CheckpointDirectory directory(path);
  open_checkpoint(directory, find_checkpoint(directory, std::nullopt), opened);
}

ExitCode show(const std::string& path, bool all) {
  Opened opened;
  open_any(path, opened);
  print(opened.name, opened.outlines.size() > 1 ? " and its other shards" : "", ": ",
        size_text(opened.bytes));
  for (const std::string& line : to_lines(opened.merged.archive.tree, all ? 0 : kShown))
    print(line);
  return ExitCode::kSuccess;
}

ExitCode merge(const std::string& path, std::optional<std::int64_t> step, const std::string& out) {
  if (fs::exists(out)) refuse_files(out + " already exists; give another --output");
  const CheckpointDirectory directory(path);
  const CheckpointManifest manifest = find_checkpoint(directory, step);
  Opened opened;
  open_checkpoint(directory, manifest, opened);
  AtomicFile file(out);
  const auto copy = [&](std::size_t i, std::uint64_t at, std::uint64_t bytes) {
    std::uint32_t crc = 0;
    read_pieces(directory.path_of(manifest.files[i].name), at, bytes, [&](std::string_view piece) {
      file.write(piece.data(), piece.size());
      crc = crc32(piece, crc);
    });
    return crc;
  };
  // The bytes are read again: they may have changed since they were verified.
  std::map<const char*, std::uint32_t> crc_at;  // by the storage's address
  for (const auto& [key, bytes] : opened.merged.archive.storages)
    if (const auto crc = opened.merged.crcs.find(key);
        !bytes.empty() && crc != opened.merged.crcs.end())
      crc_at[bytes.data()] = crc->second;
  // The bytes of tensors are not in memory, but in the file of their outline.
  std::optional<Failed> failed;
  const auto write = [&](const void* data, std::size_t bytes) {
    const std::string_view view(static_cast<const char*>(data), bytes);
    for (std::size_t i = 0; i < opened.outlines.size() && !failed; ++i)
      if (is_in(opened.outlines[i], view)) try {
          const std::uint32_t crc = copy(i, opened.outlines[i].position_of(view), bytes);
          if (const auto known = crc_at.find(view.data());
              bytes > 0 && (known == crc_at.end() || known->second != crc))
            failed = Failed{ExitCode::kUnwell,
                            directory.path_of(manifest.files[i].name) + ": it has changed"};
          return;
        } catch (const Failed& thrown) {
          failed = thrown;
        }
    if (!failed) file.write(data, bytes);
  };
  if (!is_sharded(manifest))
    copy(0, 0, manifest.files[0].bytes);
  else if (const auto done = write_state_archive(opened.merged.archive, opened.merged.crcs, write);
           !done)
    refuse_damaged(opened.name, done.error());
  if (failed) throw *failed;
  const Result<WrittenFile> written =
      file.commit(is_sharded(manifest) ? "" : manifest.files[0].sha256);
  if (!written && written.error().kind == ErrorKind::kCorrupt)
    refuse_damaged(opened.name, written.error());
  const std::string parent = fs::absolute(out).parent_path();
  const Result<void> flushed = written ? flush_directory(parent) : Result<void>(written.error());
  if (!flushed) refuse_files(flushed.error().message());
  print(out, ": step ", manifest.step, ", ", size_text(written->bytes));
  return ExitCode::kSuccess;
}

ExitCode verify_file(const std::string& path) try {
  const FileOutline outline = open_file(path);
  print(path, ": whole (CRC of ", outline.archive().records.size(), " records)");
  return ExitCode::kSuccess;
} catch (const Failed& failed) {
  if (failed.code != ExitCode::kUnwell) throw;
  print(path, ": damaged: ", failed.why.substr(path.size() + 2));
  return failed.code;
}

ExitCode verify_directory(const std::string& path) {
  const CheckpointDirectory directory(path);
  const std::vector<std::int64_t> steps = steps_of(directory);
  ExitCode outcome = ExitCode::kSuccess;
  if (steps.empty()) print(path, ": no checkpoint");
  for (const std::int64_t step : steps) {
    const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
    std::string wrong;
    if (!checkpoint)
      wrong = concat(word_for(checkpoint.error()), ": ", checkpoint.error().message());
    else if (const Result<void> whole = directory.verify(checkpoint->manifest); !whole)
      wrong = "damaged: " + whole.error().message();
    if (!wrong.empty()) outcome = ExitCode::kUnwell;
    print("step ", step, ": ", wrong.empty() ? "whole (SHA-256)" : wrong);
  }
  return outcome;
}

ExitCode verify(const std::string& path) try {
  return fs::is_directory(path) ? verify_directory(path) : verify_file(path);
} catch (const Failed& failed) {
  return report(failed);
}

ExitCode verify_all(const std::vector<std::string>& paths) {
  ExitCode worst = ExitCode::kSuccess;
  for (const std::string& path : paths) {
    const ExitCode outcome = verify(path);
    if (outcome != ExitCode::kSuccess && worst != ExitCode::kFiles) worst = outcome;
  }
  return worst;
}

int run(int argc, char** argv) try {
  CLI::App app(
      "Inspects checkpoints (directories of CheckpointManager, and files of torch.save), and "
      "merges shards into one file.",
      kName);
  app.set_version_flag("--version", concat(kName, " ", kVersion));
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0: no damage, 78: damage found, 73: a file cannot be read or written.\n"
      "Example: ddprun-ckpt ls run1");
  std::string directory, shown, output;
  std::optional<std::int64_t> step;
  std::vector<std::string> verified;
  bool all = false;
  CLI::App* ls = app.add_subcommand(
      "ls", "List the checkpoints of a directory, newest first; checks sizes, not contents");
  ls->add_option("DIR", directory, "a directory of checkpoints")->required();
  CLI::App* show_it = app.add_subcommand(
      "show",
      "Show names, dtypes, shapes and values of a file, or of a directory's newest checkpoint");
  show_it->add_option("PATH", shown, "a file, or a directory of checkpoints")->required();
  show_it->add_flag("--all", all, "also show entries after the first 40 of a dict or list");
  CLI::App* verify_it = app.add_subcommand(
      "verify", "Check every byte: SHA-256 of checkpoints, CRC-32 of single files");
  verify_it->add_option("PATH", verified, "directories of checkpoints, or files")->required();
  CLI::App* merge_it = app.add_subcommand(
      "merge", "Write a checkpoint, with or without shards, as one file that torch.load reads");
  merge_it->add_option("DIR", directory, "a directory of checkpoints")->required();
  merge_it->add_option("STEP", step, "step of the checkpoint (default: the newest complete one)");
  merge_it->add_option("-o,--output", output, "the new file; it must not exist")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::RequiredError& missing) {
    const bool has_command = *ls || *show_it || *verify_it || *merge_it;
    complain((has_command ? std::string(missing.what())
                          : "the command is missing: ls, show, verify or merge") +
             "; see ddprun-ckpt --help");
    return to_int(ExitCode::kUsage);
  } catch (const CLI::ParseError& wrong) {
    complain(std::string(wrong.what()) + "; see ddprun-ckpt --help");
    return to_int(ExitCode::kUsage);
  }
  if (*ls) return to_int(list(directory));
  if (*merge_it) return to_int(merge(directory, step, output));
  if (*show_it) return to_int(show(shown, all));
  return to_int(verify_all(verified));
} catch (const Failed& failed) {
  return to_int(report(failed));
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) { return ddprun::run(argc, argv); }
