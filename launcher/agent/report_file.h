// ReportFile: the file of --report-file: the outcome of a job as one JSON object
// (docs/reference/verdicts.md).
//
// It is written when the job starts, after each generation that failed, and at the end. Each
// write replaces the file atomically, so that readers never see a partial one.
//
// Owner: the agent, on its one thread, or main before the agent exists. The agent's thread must
// not wait for a disk, so a copy of this object writes on a thread of FileWork.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// How a job ended.
struct JobOutcome {
  int exit_code = 0;
  std::string headline;            // one line
  std::optional<Verdict> verdict;  // if the service gave one
  bool no_program = false;         // the program does not exist
};

class ReportFile {
 public:
  // path: if empty, there is no file and the functions below do nothing.
  ReportFile(std::string path, std::string job_id, std::string host);

  // Adds a failed generation to everything that is written from now on.
  void add_failure(const Verdict& generation);

  // Writes the whole file, for a job that runs or has ended. The error names the file.
  Result<void> write_running() const;
  Result<void> end(const JobOutcome& outcome) const;
  // Returns what end() writes, also if there is no file.
  std::string text_of_end(const JobOutcome& outcome) const { return text(&outcome); }
  // Writes this text, which the same job has written on another host.
  Result<void> write(const std::string& text) const;

  const std::string& path() const { return path_; }

  // Returns whether the file belongs to another node. For a node that is not node rank 0. The
  // file is another node's if it already reports the end of a job. With a file system shared by
  // all nodes, it is also another's if another host wrote it last: that host will write it
  // again. rank_0_is_lost: that host will not.
  bool is_anothers(bool rank_0_is_lost) const;

 private:
  std::string text(const JobOutcome* outcome) const;

  std::string path_;
  std::string job_id_;
  std::string host_;
  std::vector<Verdict> failures_;  // of generations that another one followed
};

}  // namespace ddprun
