// Why a program cannot be executed, in words that say what would be right. Looks at the file
// system; any thread.
#pragma once

#include <optional>
#include <string>

namespace ddprun {

// Where `path` leads for a process that runs in `directory` (empty: as this one).
std::string path_from(const std::string& directory, const std::string& path);

// What keeps a file from being executed (way: X_OK) or read (R_OK) by a process in `directory`, as
// far as that is certain before it is tried; nullopt: nothing. For X_OK the interpreter of its first
// line must be there, too.
std::optional<std::string> trouble_with(const std::string& path, const std::string& directory,
                                        int way);

// What execve's errno means for this file.
std::string exec_diagnosis(const std::string& path, const std::string& directory, int exec_errno);

// "; did you mean build/release/bin/train?": a file of the same name that can be used in this way,
// in the directory itself or in usual folders of builds in it or beside it. Empty: none was found.
// Looks at a bounded number of files.
std::string did_you_mean(const std::string& path, const std::string& directory, int way);

// "ulimit -u is 512; pids.max of the control group /x is 100, 100 are there": for a process that the
// kernel would not make (EAGAIN).
std::string limits_of_processes();

}  // namespace ddprun
