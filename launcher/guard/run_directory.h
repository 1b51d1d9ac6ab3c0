// RunDirectory: a directory that a run of ddprun owns. It remains after a kill -9 of all
// processes of the run, or after a crash of the machine. There are two kinds: a directory for
// error and log files that the user did not ask to keep, and a control group.
//
// Both are named ddprun_<six letters>. A directory for files contains a mark file. Guardian,
// keeper and agent hold a lock (flock) on the directory while one of them lives. So the next run
// finds abandoned directories, reports them and removes them.
//
// Any thread. The state is in the file system.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct RunDirectory {
  std::string path;
  // Holds the lock. Closed on exec, so the lock lives as long as the processes forked with it.
  UniqueFd lock;
};

// Creates a directory in `base`. It gets its name only once it is locked. A run that is killed
// before that leaves .ddprun.<six letters>, with the mark or empty.
Result<RunDirectory> make_run_directory(const std::string& base);

// Returns where to create directories for files: TMPDIR if it is set, else /tmp. Without TMPDIR,
// small files go to shared memory (/dev/shm), so that the end of a job does not wait for a busy
// disk.
std::string place_for_files(bool only_small_files);
// Returns all such places, including those that another run may choose.
std::vector<std::string> places_for_files();

// Removes a directory with its contents. Ignores an empty name and anything that cannot be
// removed.
void remove_files(const std::string& directory);

// Returns the run directories in `base` that belong to this user and that no process owns any
// more. Returns none on a file system where locks have no effect (a network file system). Looks
// at a few thousand names at most.
std::vector<RunDirectory> abandoned_in(const std::string& base);

}  // namespace ddprun
