// Finds the workers of a job under ddprun, for tests that kill some of them. One thread.
#pragma once

#include <sys/syscall.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "base/pidfd.h"
#include "base/poll_until.h"
#include "base/unique_fd.h"
#include "tests/support/eventually.h"
#include "tests/support/read_file.h"
#include "tests/support/test_mark.h"

namespace ddprun::testing_support {

// JobWorker: a worker that a test can kill. It holds a pidfd, so it never reaches another
// process that got the same pid later.
class JobWorker {
 public:
  JobWorker(std::size_t rank, UniqueFd process) : rank_(rank), process_(std::move(process)) {}

  std::size_t rank() const { return rank_; }
  void kill() const { ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0); }
  // Waits until the worker has ended. Returns false if the time is over.
  bool wait(Duration allowed = kPatience) const {
    pollfd ended{process_.get(), POLLIN, 0};
    return poll_until({&ended, 1}, in(allowed));
  }

 private:
  std::size_t rank_;
  UniqueFd process_;
};

// Waits until the job of this mark has this many workers, and returns them by rank. Returns
// fewer or more if the time is over.
//
// The workers have already started the program (execve) then. As a rule they have not reached
// its main() yet.
inline std::vector<JobWorker> workers_of(const TestMark& mark, std::size_t count) {
  std::vector<JobWorker> workers;
  (void)eventually([&] {
    workers.clear();
    for (const pid_t pid : mark.processes()) {
      const std::string environment = '\0' + read_file("/proc/" + std::to_string(pid) + "/environ");
      const std::size_t at = environment.find(std::string("\0RANK=", 6));
      UniqueFd process = pidfd_of(pid);
      if (at != std::string::npos && process.valid())
        workers.emplace_back(std::stoul(environment.substr(at + 6)), std::move(process));
    }
    return workers.size() == count;
  });
  std::ranges::sort(workers, {}, &JobWorker::rank);
  return workers;
}

}  // namespace ddprun::testing_support
