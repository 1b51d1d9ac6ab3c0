#include "launcher/worker/files.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/is_disk_full.h"
#include "base/pipe.h"
#include "launcher/process/pseudo_terminal.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

namespace {

// The size that WorkerOutput reads at once.
constexpr int kPipeBytes = 256 * 1024;

Result<WorkerStream> open_pipe() {
  Result<Pipe> pipe = make_pipe();
  if (!pipe) return std::move(pipe).error().within("pass a worker's output on");
  widen_pipe(pipe->read.get(), kPipeBytes);
  WorkerStream stream;
  stream.from_worker = std::move(pipe->read);
  stream.to_worker = std::move(pipe->write);
  return stream;
}

Result<void> add_log(WorkerStream& stream, const std::string& path, LogWriter& logs) {
  Result<std::shared_ptr<LogFile>> log = logs.open(path);
  if (!log) return log.error();
  stream.log = std::move(*log);
  return {};
}

Result<WorkerStreams> open_terminal(const WorkerFilesOptions& options, LogWriter& logs) {
  Result<PseudoTerminal> terminal = open_pseudo_terminal(*options.terminal);
  if (!terminal) return std::move(terminal).error().within("--pty");
  WorkerStreams streams;
  streams.err.to_worker.reset(fcntl(terminal->workers.get(), F_DUPFD_CLOEXEC, 0));
  if (!streams.err.to_worker.valid()) return system_error("--pty: duplicate a descriptor", errno);
  streams.out.to_worker = std::move(terminal->workers);
  streams.out.from_worker = std::move(terminal->ours);
  const bool teed = options.tee != Streams::kNone;
  const bool logged = teed || options.redirects != Streams::kNone;
  streams.out.only_logged = logged && !teed;
  if (logged && !options.directory.empty()) {
    Result<void> added = add_log(streams.out, options.directory + "/stdout.log", logs);
    if (!added) return added.error();
  }
  if (options.directory.empty()) streams.out.only_logged = false;
  return streams;
}

}  // namespace

Result<WorkerStreams> open_streams(const WorkerFilesOptions& options, LogWriter& logs) {
  if (options.terminal) return open_terminal(options, logs);
  WorkerStreams streams;
  const auto open_one = [&](WorkerStream& stream, const char* name, bool redirect,
                            bool tee) -> Result<void> {
    Result<WorkerStream> made = open_pipe();
    if (!made) return made.error();
    stream = std::move(*made);
    if (options.directory.empty() || !(redirect || tee)) return {};
    stream.only_logged = !tee;
    return add_log(stream, options.directory + "/" + name, logs);
  };
  Result<void> out =
      open_one(streams.out, "stdout.log", has_out(options.redirects), has_out(options.tee));
  if (!out) return out.error();
  Result<void> err =
      open_one(streams.err, "stderr.log", has_err(options.redirects), has_err(options.tee));
  if (!err) return err.error();
  return streams;
}

Result<void> make_log_directories(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error && !is_disk_full(error.value())) {
      return system_error("make the log directory " + directory, error.value());
    }
  }
  return {};
}

namespace {

// Returns the indented lines of a traceback: frames and, from Python, their source lines.
std::vector<std::string> frames_of(const std::string& callstack) {
  std::vector<std::string> frames;
  std::istringstream lines(callstack);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ")) continue;
    line.erase(0, line.find_first_not_of(' '));
    // Python 3.11 marks the failing part of the previous line.
    if (line.find_first_not_of("~^ ") == std::string::npos) continue;
    if (!line.empty()) frames.push_back(clipped(std::move(line), kMaxTailLineBytes));
    if (frames.size() > kMaxFrames) frames.erase(frames.begin());
  }
  return frames;
}

}  // namespace

OwnWords read_error_file(const std::string& path) {
  constexpr std::uintmax_t kMaxFileBytes = 1 << 20;
  OwnWords words;
  std::error_code error;
  // Another program wrote this file. If anything is wrong with it, the report goes without it.
  if (std::filesystem::file_size(path, error) > kMaxFileBytes || error) return words;
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  const auto text_in = [](const nlohmann::json& object, const char* key) {
    return object.is_object() && object.contains(key) && object[key].is_string()
               ? object[key].get<std::string>()
               : std::string();
  };
  words.message = text_in(json, "message");
  if (!json.is_object() || !json.contains("message")) return words;
  const nlohmann::json& message = json["message"];
  if (message.is_object()) words.message = text_in(message, "message");
  words.message = clipped(std::move(words.message), kMaxMessageBytes);
  if (!message.is_object() || !message.contains("extraInfo")) return words;
  const nlohmann::json& more = message["extraInfo"];
  words.frames = frames_of(text_in(more, "py_callstack"));
  if (more.is_object() && more.contains("peer_rank") && more["peer_rank"].is_number_integer()) {
    words.blames = std::max(-1, more["peer_rank"].get<int>());
  }
  return words;
}

}  // namespace ddprun
