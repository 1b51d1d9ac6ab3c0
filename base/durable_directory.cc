#include "base/durable_directory.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/file_calls.h"
#include "base/unique_fd.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

bool flush(const fs::path& directory) {
  FileCalls& calls = file_calls();
  const UniqueFd fd(uninterrupted(
      [&] { return calls.open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); }));
  return fd.valid() && uninterrupted([&] { return calls.fsync(fd.get()); }) == 0;
}

}  // namespace

Result<void> flush_directory(const std::string& path) {
  if (flush(path)) return {};
  return system_error("flush the directory " + path, errno);
}

Result<void> make_durable_directory(const std::string& path) {
  const std::string doing = "make the directory " + path;
  std::error_code error;
  std::vector<fs::path> missing;
  fs::path there = fs::absolute(path, error);
  for (; !error && !fs::exists(there, error); there = there.parent_path()) missing.push_back(there);
  if (error) return system_error(doing, error.value());
  // The maker of the deepest existing directory may have been killed before its name was
  // durable. EACCES and EINVAL are ignored: if the parent may not be opened, or cannot be
  // flushed, others made the directory.
  if (!flush(there.parent_path()) && errno != EACCES && errno != EINVAL)
    return system_error("flush the directory " + there.parent_path().string(), errno);
  // Each name is made durable before the next directory is made, so that at most one needs the
  // flush above.
  for (auto made = missing.rbegin(); made != missing.rend(); ++made) {
    if (file_calls().mkdir(made->c_str(), 0777) != 0 && errno != EEXIST)
      return system_error(doing, errno);
    if (Result<void> flushed = flush_directory(made->parent_path()); !flushed) return flushed;
  }
  if (!fs::is_directory(path, error)) return system_error(doing, ENOTDIR);
  return {};
}

}  // namespace ddprun
