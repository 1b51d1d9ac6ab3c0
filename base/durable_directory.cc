#include "base/durable_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/unique_fd.h"

namespace ddprun {

Result<void> flush_directory(const std::string& path) {
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid() && ::fsync(directory.get()) == 0) return {};
  return system_error("flush the directory " + path, errno);
}

Result<void> make_durable_directory(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path at = fs::absolute(path, error); !error && !fs::exists(at, error);
       at = at.parent_path()) {
    missing.push_back(at);
  }
  if (!error) fs::create_directories(path, error);
  if (error) return system_error("make the directory " + path, error.value());
  for (const fs::path& made : missing) {
    if (Result<void> flushed = flush_directory(made.parent_path()); !flushed) return flushed;
  }
  return {};
}

}  // namespace ddprun
