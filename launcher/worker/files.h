// Where a worker's output goes, and what it leaves in files: pipes or a terminal, log files, the error
// file. One owner thread.
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

// One of a worker's two output streams. All that a worker writes comes through us: its own write()
// would fail on a full disk.
struct WorkerStream {
  UniqueFd to_worker;    // becomes the worker's descriptor
  UniqueFd from_worker;  // our end; invalid: that of the other stream has both
  std::shared_ptr<LogFile> log;
  std::string path;          // of that file; empty: there is none
  bool only_logged = false;  // -r: the console does not get it
};

struct WorkerStreams {
  WorkerStream out;
  WorkerStream err;
};

struct WorkerFilesOptions {
  std::string
      directory;  // of the log files; empty: none, whatever is asked for (--log-dir /dev/null)
  Streams redirects = Streams::kNone;
  Streams tee = Streams::kNone;
  // --pty: both streams are one terminal of this size; what is asked for either goes for it, and its
  // file is stdout.log.
  std::optional<ScreenSize> terminal;
};

// Opens the pipes and terminals that -r, -t and --pty ask for. LogWriter makes the log files later:
// <directory>/stdout.log and stderr.log, as torchrun names them. The error names the pipe or
// terminal that is not to be had; its sys_errno says why.
Result<WorkerStreams> open_streams(const WorkerFilesOptions& options, LogWriter& logs);

// Makes the directories of log and error files. The error names the one that cannot be made; a disk
// without room is none.
Result<void> make_log_directories(const std::vector<std::string>& directories);

// What a worker says of its own failure in its error file, as PyTorch's @record and ddprun's library
// write it.
struct OwnWords {
  std::string message;              // "ValueError: boom"; empty: there is no such file
  std::vector<std::string> frames;  // the innermost last; at most kMaxFrames
  int blames = -1;                  // the rank that it names as its reason; -1: none
};
OwnWords read_error_file(const std::string& path);

}  // namespace ddprun
