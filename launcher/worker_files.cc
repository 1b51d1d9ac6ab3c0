#include "launcher/worker_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/pipe.h"
#include "launcher/core/line_splitter.h"
#include "launcher/core/stderr_tail.h"

namespace ddprun {

WorkerFiles::WorkerFiles(std::string directory, Streams redirects, Streams tee)
    : directory_(std::move(directory)),
      redirects_(directory_.empty() ? Streams::kNone : redirects),
      tee_(directory_.empty() ? Streams::kNone : tee) {}

Result<WorkerStreams> WorkerFiles::open() const {
  if (!directory_.empty()) {
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    if (error) return system_error("make the log directory " + directory_, error.value());
  }
  WorkerStreams streams;
  Result<WorkerStream> out = open_stream("stdout.log", has_out(redirects_), has_out(tee_));
  if (!out) return std::move(out).error();
  Result<WorkerStream> err = open_stream("stderr.log", has_err(redirects_), has_err(tee_));
  if (!err) return std::move(err).error();
  streams.out = std::move(*out);
  streams.err = std::move(*err);
  return streams;
}

Result<WorkerStream> WorkerFiles::open_stream(const std::string& name, bool redirect,
                                              bool tee) const {
  WorkerStream stream;
  UniqueFd file;
  if (redirect || tee) {
    const std::string path = directory_ + "/" + name;
    file.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.valid()) return system_error("open the log file " + path, errno);
    if (!tee) {
      stream.to_worker = std::move(file);
      stream.only_file = path;
      return stream;
    }
  }
  Result<Pipe> pipe = make_pipe();
  if (!pipe) return std::move(pipe).error().within("pass a worker's output on");
  stream.from_worker = std::move(pipe->read);
  stream.to_worker = std::move(pipe->write);
  stream.tee_file = std::move(file);
  return stream;
}

std::string attempt_directory(const std::string& root, int attempt, Generation generation) {
  std::string path = root + "/attempt_" + std::to_string(attempt);
  std::error_code error;
  if (std::filesystem::exists(path, error)) path += ".g" + to_text(generation);
  std::filesystem::create_directories(path, error);
  return path;
}

namespace {

// The lines of a traceback that are indented: frames and, from Python, what stands there.
std::vector<std::string> frames_of(const std::string& callstack) {
  std::vector<std::string> frames;
  std::istringstream lines(callstack);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ")) continue;
    line.erase(0, line.find_first_not_of(' '));
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
  // Somebody else's file: whatever is wrong with it, the report goes without it.
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

std::vector<std::string> tail_of_file(const std::string& path) {
  constexpr std::size_t kBytes = kMaxTailLines * kMaxTailLineBytes;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::size_t size = static_cast<std::size_t>(file.tellg());
  std::string end(std::min(size, kBytes), '\0');
  file.seekg(static_cast<std::streamoff>(size - end.size()));
  file.read(end.data(), static_cast<std::streamsize>(end.size()));
  end.resize(static_cast<std::size_t>(file.gcount()));

  StderrTail tail;
  LineSplitter splitter;
  const auto keep = [&](std::string_view piece) { tail.add(piece); };
  splitter.feed(end, keep);
  splitter.flush(keep);
  return tail.lines();
}

}  // namespace ddprun
