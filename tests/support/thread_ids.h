// The threads of this process. Tests compare ids, not counts: a thread of an earlier test of the
// same program may end meanwhile. Functions; any thread.
#pragma once

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

namespace ddprun::testing_support {

inline std::set<std::string> thread_ids() {
  std::set<std::string> ids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(task.path().filename());
  }
  return ids;
}

// Returns whether every thread of now was there before.
inline bool has_no_thread_beyond(const std::set<std::string>& before) {
  return std::ranges::includes(before, thread_ids());
}

}  // namespace ddprun::testing_support
