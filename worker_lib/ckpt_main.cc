// ddprun-ckpt: what is in a directory of checkpoints, or in a file of torch.save, and whether it is
// whole. Needs no LibTorch, and only reads.
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/exit_codes.h"
#include "base/version.h"
#include "worker_lib/checkpoint_io.h"
#include "worker_lib/core/state_archive.h"
#include "worker_lib/core/state_text.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "ddprun-ckpt";
constexpr std::size_t kShown = 40;  // entries of one dict or list

void complain(const std::string& what) { std::fprintf(stderr, "%s: %s\n", kName, what.c_str()); }

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

// What is wrong with its file, but for its bytes; empty: nothing.
std::string quick_look(const CheckpointDirectory& directory, const CheckpointManifest& manifest) {
  const ManifestFile& file = manifest.files.front();
  std::error_code failed;
  const std::uint64_t bytes = fs::file_size(directory.path_of(file.name), failed);
  if (failed) return file.name + ": " + failed.message();
  if (bytes != file.bytes)
    return file.name + " has " + std::to_string(bytes) + " bytes, its manifest says " +
           std::to_string(file.bytes);
  return "";
}

// kFiles, and says why, where the path is no directory that can be read.
ExitCode steps_of(const CheckpointDirectory& directory, std::vector<std::int64_t>& steps) {
  std::error_code failed;
  if (!fs::is_directory(directory.path(), failed)) {
    complain(directory.path() + (failed ? ": " + failed.message() : " is no directory"));
    return ExitCode::kFiles;
  }
  Result<std::vector<std::int64_t>> found = directory.steps();
  if (!found) {
    complain(found.error().message());
    return ExitCode::kFiles;
  }
  steps = std::move(*found);
  return ExitCode::kSuccess;
}

ExitCode list(const std::string& path) {
  const CheckpointDirectory directory(path);
  std::vector<std::int64_t> steps;
  if (const ExitCode bad = steps_of(directory, steps); bad != ExitCode::kSuccess) return bad;
  ExitCode outcome = ExitCode::kSuccess;
  if (steps.empty()) std::printf("no checkpoint\n");
  for (const std::int64_t step : steps) {
    const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
    std::string wrong =
        checkpoint ? quick_look(directory, checkpoint->manifest) : checkpoint.error().message();
    if (!wrong.empty()) outcome = ExitCode::kUnwell;
    if (!checkpoint) {
      std::printf("step %lld  damaged: %s\n", static_cast<long long>(step), wrong.c_str());
      continue;
    }
    const CheckpointManifest& m = checkpoint->manifest;
    std::printf("step %lld  epoch %lld  %s  %s  world of %d  generation %lld  %s%s%s\n",
                static_cast<long long>(m.step), static_cast<long long>(m.epoch),
                time_text(directory.path_of(manifest_name(step))).c_str(),
                size_text(m.files.front().bytes).c_str(), m.world_size,
                static_cast<long long>(m.generation), m.files.front().name.c_str(),
                wrong.empty() ? "" : "  damaged: ", wrong.c_str());
  }
  return outcome;
}

std::optional<std::string> contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.is_open() && !file.bad() && !fs::is_directory(path)) return bytes;
  complain("read " + path + ": " +
           (fs::is_directory(path) ? "it is a directory" : std::strerror(errno)));
  return std::nullopt;
}

// The newest whole checkpoint of a directory; the path itself where it is a file. Empty: none.
std::string file_to_show(const std::string& path) {
  if (!fs::is_directory(path)) return path;
  const CheckpointDirectory directory(path);
  std::vector<std::int64_t> steps;
  if (steps_of(directory, steps) != ExitCode::kSuccess) return "";
  for (const std::int64_t step : steps) {
    const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
    if (checkpoint && quick_look(directory, checkpoint->manifest).empty())
      return directory.path_of(checkpoint->manifest.files.front().name);
  }
  complain(path + " has no whole checkpoint");
  return "";
}

ExitCode show(const std::string& path, bool all) {
  const std::string file = file_to_show(path);
  if (file.empty()) return ExitCode::kFiles;
  const std::optional<std::string> bytes = contents(file);
  if (!bytes) return ExitCode::kFiles;
  const Result<StateArchive> archive = read_state_archive(*bytes, RecordCrcs::kCheck);
  if (!archive) {
    complain(file + ": " + archive.error().message());
    return ExitCode::kUnwell;
  }
  std::printf("%s: %s\n", file.c_str(), size_text(bytes->size()).c_str());
  for (const std::string& line : to_lines(archive->tree, all ? 0 : kShown))
    std::printf("%s\n", line.c_str());
  return ExitCode::kSuccess;
}

ExitCode verify_file(const std::string& path) {
  const std::optional<std::string> bytes = contents(path);
  if (!bytes) return ExitCode::kFiles;
  const Result<StateArchive> archive = read_state_archive(*bytes, RecordCrcs::kCheck);
  if (!archive) {
    std::printf("%s: damaged: %s\n", path.c_str(), archive.error().message().c_str());
    return ExitCode::kUnwell;
  }
  std::printf("%s: whole (CRC of %zu records)\n", path.c_str(), archive->records.size());
  return ExitCode::kSuccess;
}

ExitCode verify_directory(const std::string& path) {
  const CheckpointDirectory directory(path);
  std::vector<std::int64_t> steps;
  if (const ExitCode bad = steps_of(directory, steps); bad != ExitCode::kSuccess) return bad;
  ExitCode outcome = ExitCode::kSuccess;
  if (steps.empty()) std::printf("%s: no checkpoint\n", path.c_str());
  for (const std::int64_t step : steps) {
    const Result<AnnouncedCheckpoint> checkpoint = directory.read_manifest(step);
    std::string wrong;
    if (!checkpoint)
      wrong = checkpoint.error().message();
    else if (const auto bytes = directory.read_data(checkpoint->manifest); !bytes)
      wrong = bytes.error().message();
    if (!wrong.empty()) outcome = ExitCode::kUnwell;
    std::printf("step %lld: %s%s\n", static_cast<long long>(step),
                wrong.empty() ? "whole (SHA-256)" : "damaged: ", wrong.c_str());
  }
  return outcome;
}

ExitCode verify(const std::vector<std::string>& paths) {
  ExitCode worst = ExitCode::kSuccess;
  for (const std::string& path : paths) {
    const ExitCode outcome = fs::is_directory(path) ? verify_directory(path) : verify_file(path);
    if (outcome != ExitCode::kSuccess && worst != ExitCode::kFiles) worst = outcome;
  }
  return worst;
}

int run(int argc, char** argv) {
  CLI::App app("Looks into checkpoints: directories of CheckpointManager, and files of torch.save.",
               kName);
  app.set_version_flag("--version", std::string(kName) + " " + kVersion);
  app.require_subcommand(1);
  app.footer(
      "Ends with 0 where all is well, 78 where something is damaged, 73 where a file cannot be "
      "read.\n"
      "Example: ddprun-ckpt ls run1");
  std::string directory, shown;
  std::vector<std::string> verified;
  bool all = false;
  CLI::App* ls = app.add_subcommand(
      "ls", "The checkpoints of a directory, newest first; sizes are looked at, bytes are not");
  ls->add_option("DIR", directory, "a directory of checkpoints")->required();
  CLI::App* show_it = app.add_subcommand(
      "show", "Names, dtypes, shapes and values of a file, or of a directory's newest checkpoint");
  show_it->add_option("PATH", shown, "a file, or a directory of checkpoints")->required();
  show_it->add_flag("--all", all, "also what is behind the first 40 entries of a dict or list");
  CLI::App* verify_it = app.add_subcommand(
      "verify", "Reads every byte: SHA-256 of checkpoints, CRC-32 of single files");
  verify_it->add_option("PATH", verified, "directories of checkpoints, or files")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::RequiredError& missing) {
    const bool has_command = *ls || *show_it || *verify_it;
    complain((has_command ? std::string(missing.what()) : "give ls, show or verify") +
             "; ddprun-ckpt --help has more");
    return to_int(ExitCode::kUsage);
  } catch (const CLI::ParseError& wrong) {
    complain(std::string(wrong.what()) + "; ddprun-ckpt --help has more");
    return to_int(ExitCode::kUsage);
  }
  if (*ls) return to_int(list(directory));
  if (*show_it) return to_int(show(shown, all));
  return to_int(verify(verified));
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) { return ddprun::run(argc, argv); }
