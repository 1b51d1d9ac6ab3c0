// replace_file(): writes a file whose readers always see a complete one. Any thread.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/write_all.h"

namespace ddprun {

// Writes the file `draft` and renames it to `path`. If that fails, no draft is left. doing: for
// the error.
inline Result<void> replace_file(const std::string& path, const std::string& draft,
                                 std::string_view text, const std::string& doing) {
  const UniqueFd file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return system_error(doing, errno);
  if (write_all(file.get(), text) && std::rename(draft.c_str(), path.c_str()) == 0) return {};
  const int reason = errno;
  unlink(draft.c_str());
  return system_error(doing, reason);
}

}  // namespace ddprun
