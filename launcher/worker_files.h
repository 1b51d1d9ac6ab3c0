// Where a worker's output goes, and what it leaves in files: log files, the error file. One owner
// thread.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/core/launch_options.h"

namespace ddprun {

// One of a worker's two output streams.
struct WorkerStream {
  UniqueFd to_worker;     // becomes the worker's descriptor
  UniqueFd from_worker;   // our end of the pipe; invalid where the worker writes a file by itself
  UniqueFd tee_file;      // gets a copy
  std::string only_file;  // the file that the worker writes by itself
};

struct WorkerStreams {
  WorkerStream out;
  WorkerStream err;
};

// Opens what -r and -t ask for, in torchrun's layout: <directory>/stdout.log and stderr.log.
class WorkerFiles {
 public:
  // directory: made if missing; empty: no files, whatever is asked for (--log-dir /dev/null).
  WorkerFiles(std::string directory, Streams redirects, Streams tee);
  // Opens both streams, emptying files of the same name. The error names the directory or file that
  // cannot be made, or the pipe; its sys_errno says why.
  Result<WorkerStreams> open() const;

 private:
  Result<WorkerStream> open_stream(const std::string& name, bool redirect, bool tee) const;

  std::string directory_;
  Streams redirects_;
  Streams tee_;
};

// Makes and returns <root>/attempt_N, or <root>/attempt_N.gG where an earlier generation of the
// same attempt has left its logs there: they are kept.
std::string attempt_directory(const std::string& root, int attempt, Generation generation);

// What a worker says of its own failure in its error file, as PyTorch's @record and ddprun's library
// write it.
struct OwnWords {
  std::string message;              // "ValueError: boom"; empty: there is no such file
  std::vector<std::string> frames;  // the innermost last; at most kMaxFrames
  int blames = -1;                  // the rank that it names as its reason; -1: none
};
OwnWords read_error_file(const std::string& path);

// The last lines of a stderr that a worker has written into a file by itself: what WorkerOutput::tail()
// would have kept of it.
std::vector<std::string> tail_of_file(const std::string& path);

}  // namespace ddprun
