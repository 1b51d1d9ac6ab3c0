// own_program(): the file of this program, to start it again. Any thread.
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>

namespace ddprun {

// Returns the path of this program's file; "ddprun" if the kernel does not tell. A name that the
// shell found by PATH might be another program on another host.
inline std::string own_program() {
  std::string path(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) return "ddprun";
  path.resize(static_cast<std::size_t>(size));
  // The file was replaced while this program ran. The new one is at the same path.
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
  return path;
}

}  // namespace ddprun
