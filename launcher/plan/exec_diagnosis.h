// Explains why a program cannot be executed, and what to do about it. Looks at the file system;
// any thread.
#pragma once

#include <optional>
#include <string>

namespace ddprun {

// Returns the path that `path` means for a process in `directory`; empty: this process's
// directory.
std::string path_from(const std::string& directory, const std::string& path);

// Returns why a process in `directory` cannot execute (way: X_OK) or read (R_OK) a file.
// Returns nullopt if no problem is certain before the attempt. For X_OK, also checks that the
// interpreter in its first line exists.
std::optional<std::string> trouble_with(const std::string& path, const std::string& directory,
                                        int way);

// Explains what the errno of execve means for this file.
std::string exec_diagnosis(const std::string& path, const std::string& directory, int exec_errno);

// Returns text such as "; did you mean build/release/bin/train?", or empty if nothing was
// found. Looks for a file of the same name that can be used in this way. Searches the directory
// itself, usual build folders in it, and those in its parent. Looks at a bounded number of
// files.
std::string did_you_mean(const std::string& path, const std::string& directory, int way);

// Returns the limits that may explain why the kernel did not create a process (EAGAIN).
// Example: "ulimit -u is 512; pids.max of the control group /x is 100, 100 are there". Empty: no
// limit was found.
std::string limits_of_processes();

}  // namespace ddprun
