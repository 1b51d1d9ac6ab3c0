// A worker's output and files: pipes or a terminal, log files, the error file. One owner thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/output/core/live_screen.h"
#include "launcher/output/log_writer.h"

namespace ddprun {

// One of a worker's two output streams. All output passes through the agent, because a worker's
// own write() to a file would fail on a full disk.
struct WorkerStream {
  UniqueFd to_worker;    // becomes the worker's descriptor
  UniqueFd from_worker;  // the agent's end; invalid: that of the other stream carries both
  std::shared_ptr<LogFile> log;
  bool only_logged = false;  // -r: not shown on the console
};

struct WorkerStreams {
  WorkerStream out;
  WorkerStream err;
};

struct WorkerFilesOptions {
  std::string directory;  // of the log files; empty: write none (--log-dir /dev/null)
  Streams redirects = Streams::kNone;
  Streams tee = Streams::kNone;
  // --pty: both streams are one terminal of this size. A request for either stream applies to
  // the terminal, and its log file is stdout.log.
  std::optional<ScreenSize> terminal;
};

// Opens the pipes and terminals that -r, -t and --pty require. LogWriter creates the log files
// later: <directory>/stdout.log and stderr.log, as torchrun names them. The error names the pipe
// or terminal that could not be opened; its sys_errno says why.
Result<WorkerStreams> open_streams(const WorkerFilesOptions& options, LogWriter& logs);

// Creates the directories of log and error files. The error names the one that cannot be
// created. A full disk is not an error.
Result<void> make_log_directories(const std::vector<std::string>& directories);

// A worker's report about its own failure in its error file, in the format of PyTorch's @record and
// ddprun's library.
struct OwnWords {
  std::string message;              // "ValueError: boom"; empty: no error file
  std::vector<std::string> frames;  // the innermost last; at most kMaxFrames
  int blames = -1;                  // the rank that it names as the cause; -1: none
};
// Reads an error file. Returns an empty result if the file is missing, too large or malformed.
OwnWords read_error_file(const std::string& path);

}  // namespace ddprun
