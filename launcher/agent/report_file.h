// The file of --report-file: what became of a job, as one JSON object (docs/verdicts.md). Written when the
// job starts, after each generation that failed, and at the end; whoever reads it finds a whole one.
//
// Owner: the agent, on its one thread, or main before there is one. The agent's thread must not
// wait for a disk: a copy writes there (FileWork).
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
  std::optional<Verdict> verdict;  // where the service gave one
  bool no_program = false;         // there was nothing that could be started
};

class ReportFile {
 public:
  // path: empty: there is none, and nothing below does anything.
  ReportFile(std::string path, std::string job_id, std::string host);

  // Remembers a generation that failed, for what is written from now on.
  void add_failure(const Verdict& generation);

  // Each writes the file anew, as one of a job that runs or has ended; the error names it.
  Result<void> write_running() const;
  Result<void> end(const JobOutcome& outcome) const;

  const std::string& path() const { return path_; }

  // For a node that is not node rank 0: whether the file is another one's. It tells a job's end already,
  // or, with one file system for all nodes, another host has written it last, and will again.
  // rank_0_is_lost: it will not.
  bool is_anothers(bool rank_0_is_lost) const;

 private:
  Result<void> write(const std::string& text) const;
  std::string text(const JobOutcome* outcome) const;

  std::string path_;
  std::string job_id_;
  std::string host_;
  std::vector<Verdict> failures_;  // of generations that were followed by another one
};

}  // namespace ddprun
