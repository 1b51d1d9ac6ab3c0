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

using Json = nlohmann::json;

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

// Adds the log file that -r or -t asks for.
Result<void> add_log(const WorkerFilesOptions& options, const char* name, bool redirect, bool tee,
                     LogWriter& logs, WorkerStream& stream) {
  if (options.directory.empty() || !(redirect || tee)) return {};
  stream.only_logged = !tee;
  Result<std::shared_ptr<LogFile>> log = logs.open(options.directory + "/" + name);
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
  Result<void> added = add_log(options, "stdout.log", options.redirects != Streams::kNone,
                               options.tee != Streams::kNone, logs, streams.out);
  if (!added) return added.error();
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
    return add_log(options, name, redirect, tee, logs, stream);
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
  const auto member = [](const Json& object, const char* key) {
    return object.is_object() ? object.value(key, Json()) : Json();
  };
  const auto text = [](const Json& json) {
    return json.is_string() ? json.get<std::string>() : std::string();
  };
  const Json message = member(Json::parse(file, nullptr, false), "message");
  words.message =
      clipped(text(message.is_object() ? member(message, "message") : message), kMaxMessageBytes);
  const Json more = member(message, "extraInfo");
  words.frames = frames_of(text(member(more, "py_callstack")));
  const Json peer = member(more, "peer_rank");
  if (peer.is_number_integer()) words.blames = std::max(-1, peer.get<int>());
  return words;
}

}  // namespace ddprun
