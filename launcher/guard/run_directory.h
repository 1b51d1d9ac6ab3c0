// What a run of ddprun owns beyond its processes and what therefore outlives a kill -9 of all of them
// or a crash of the machine: a directory for the error and log files that nobody asked to keep, and a
// control group. Both are directories called ddprun_<six letters>, the first with a mark in it, locked
// (flock) by guardian, keeper and agent as long as one of them lives: so the next run knows those that
// nobody owns any more, says so, and removes them.
//
// Any thread; the state is the file system's.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct RunDirectory {
  std::string path;
  // Locked, and closed on exec: the lock lives with the processes that were forked with it.
  UniqueFd lock;
};

// Makes one in `base`. It has its name when it is locked, not before (a run that was killed between
// leaves .ddprun.<six letters>, with the mark or empty).
Result<RunDirectory> make_run_directory(const std::string& base);

// Where directories for files may be: TMPDIR, or without it the directory for shared memory where
// only small files are to come (which costs no disk: on a busy one the end of a job would wait for
// it), else /tmp.
std::string place_for_files(bool only_small_files);
// All of them, also those that the next run may choose.
std::vector<std::string> places_for_files();

// Removes a directory with everything in it; an empty name, or what cannot be removed, is passed
// over.
void remove_files(const std::string& directory);

// The directories of runs in `base` that nobody owns any more and that belong to this user. Where
// locks mean nothing (a network's file system) there are none. Looks at no more than some thousand
// names.
std::vector<RunDirectory> abandoned_in(const std::string& base);

}  // namespace ddprun
