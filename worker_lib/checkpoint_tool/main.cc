// ddprun-ckpt: shows and verifies a directory of checkpoints or a file of torch.save, and writes
// checkpoints in other formats. Needs no LibTorch.
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/version.h"
#include "worker_lib/checkpoint/core/state_text.h"
#include "worker_lib/checkpoint_tool/export.h"
#include "worker_lib/checkpoint_tool/import.h"
#include "worker_lib/checkpoint_tool/opened.h"
#include "worker_lib/checkpoint_tool/report.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "ddprun-ckpt";
constexpr std::size_t kShown = 40;  // entries of one dict or list

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

// Returns "step-000000000002.pt" or "step-000000000002.shard-0000.pt and 3 more shards".
std::string files_text(const CheckpointManifest& manifest) {
  const std::size_t more = manifest.files.size() - 1;
  return manifest.files.front().name +
         (more > 0 ? concat(" and ", more, " more shard", more > 1 ? "s" : "") : "");
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

ExitCode show(const std::string& path, bool all) {
  const Opened opened = open_any(path);
  verify(opened);
  print(opened.name, opened.outlines.size() > 1 ? " and its other shards" : "", ": ",
        size_text(opened.bytes));
  for (const std::string& line : to_lines(opened.archive.tree, all ? 0 : kShown)) print(line);
  return ExitCode::kSuccess;
}

ExitCode verify_file(const std::string& path) try {
  const Opened opened = open_any(path);
  verify(opened);
  print(path, ": whole (CRC of ", opened.outlines[0].archive().records.size(), " records)");
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

ExitCode verify_any(const std::string& path) try {
  return fs::is_directory(path) ? verify_directory(path) : verify_file(path);
} catch (const Failed& failed) {
  return report(failed);
}

ExitCode verify_all(const std::vector<std::string>& paths) {
  ExitCode worst = ExitCode::kSuccess;
  for (const std::string& path : paths) {
    const ExitCode outcome = verify_any(path);
    if (outcome != ExitCode::kSuccess && worst != ExitCode::kFiles) worst = outcome;
  }
  return worst;
}

// The options of `export`, of which one is given.
struct Export {
  const char* option;
  ExportFormat format;
  const char* help;
  std::string output = {};
};

ExitCode export_one(const std::string& path, std::optional<std::int64_t> step,
                    const std::vector<Export>& formats) {
  const auto is_given = [](const Export& one) { return !one.output.empty(); };
  if (std::ranges::count_if(formats, is_given) != 1) {
    complain("export: give one of --torch, --safetensors and --dcp; see ddprun-ckpt --help");
    return ExitCode::kUsage;
  }
  const Export& wanted = *std::ranges::find_if(formats, is_given);
  export_to(wanted.format, open_any(path, step), wanted.output);
  return ExitCode::kSuccess;
}

ExitCode import_one(const std::string& safetensors, const std::string& dcp,
                    const std::string& directory, std::int64_t step) {
  if (safetensors.empty() == dcp.empty() || step < 0) {
    complain(step < 0 ? "import: --step is negative; see ddprun-ckpt --help"
                      : "import: give one of --safetensors and --dcp; see ddprun-ckpt --help");
    return ExitCode::kUsage;
  }
  const Weights weights = dcp.empty() ? read_safetensors(safetensors) : read_dcp(dcp);
  import_into(directory, step, weights, dcp.empty() ? safetensors : dcp);
  print_left_out(weights.left_out);
  return ExitCode::kSuccess;
}

int run(int argc, char** argv) try {
  CLI::App app(
      "Inspects checkpoints (directories of CheckpointManager, and files of torch.save), and "
      "writes them in other formats.",
      kName);
  app.set_version_flag("--version", concat(kName, " ", kVersion));
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0: no damage, 78: damage found, 73: a file cannot be read or written.\n"
      "Example: ddprun-ckpt ls run1");
  std::string directory, shown, output, exported;
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
  CLI::App* export_it = app.add_subcommand(
      "export", "Write a checkpoint in a format that other tools read, from one file or shards");
  export_it->add_option("PATH", exported, "a directory of checkpoints, or a file")->required();
  export_it->add_option("STEP", step, "step of the checkpoint (default: the newest complete one)");
  std::vector<Export> formats{
      {"--torch", ExportFormat::kTorch, "a new file that torch.load reads, with everything"},
      {"--safetensors", ExportFormat::kSafetensors, "a new file with the tensors of the models"},
      {"--dcp", ExportFormat::kDcp,
       "a new directory that torch.distributed.checkpoint reads, with everything"}};
  for (Export& one : formats) export_it->add_option(one.option, one.output, one.help);
  CLI::App* import_it = app.add_subcommand(
      "import", "Make a checkpoint of another tool's weights, from which a training can begin");
  std::string safetensors, dcp;
  std::int64_t imported_step = 0;
  import_it->add_option("--safetensors", safetensors, "a file of safetensors");
  import_it->add_option("--dcp", dcp,
                        "a directory of torch.distributed.checkpoint: what it has under \"model\", "
                        "or all tensors");
  import_it->add_option("--into", directory, "a directory without checkpoints")->required();
  import_it->add_option("--step", imported_step, "step of the checkpoint (default: 0)");
  CLI::App* merge_it = app.add_subcommand("merge", "The same as export --torch");
  merge_it->add_option("DIR", exported, "a directory of checkpoints")->required();
  merge_it->add_option("STEP", step, "step of the checkpoint (default: the newest complete one)");
  merge_it->add_option("-o,--output", output, "the new file; it must not exist")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::RequiredError& missing) {
    const bool has_command = *ls || *show_it || *verify_it || *export_it || *import_it || *merge_it;
    complain((has_command ? std::string(missing.what())
                          : "the command is missing: ls, show, verify, export or import") +
             "; see ddprun-ckpt --help");
    return to_int(ExitCode::kUsage);
  } catch (const CLI::ParseError& wrong) {
    complain(std::string(wrong.what()) + "; see ddprun-ckpt --help");
    return to_int(ExitCode::kUsage);
  }
  if (*ls) return to_int(list(directory));
  if (*export_it) return to_int(export_one(exported, step, formats));
  if (*import_it) return to_int(import_one(safetensors, dcp, directory, imported_step));
  if (*merge_it) {
    export_to(ExportFormat::kTorch, open_any(exported, step), output);
    return to_int(ExitCode::kSuccess);
  }
  if (*show_it) return to_int(show(shown, all));
  return to_int(verify_all(verified));
} catch (const Failed& failed) {
  return to_int(report(failed));
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) { return ddprun::run(argc, argv); }
