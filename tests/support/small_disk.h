// SmallDisk: a disk that is soon full, a tmpfs of a test's own. Needs root. One owner thread.
#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <utility>

namespace ddprun::testing_support {

class SmallDisk {
 public:
  // path: made if missing. options: tmpfs's, "size=256k".
  SmallDisk(std::string path, const char* options) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // False where it could not be; errno says why.
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace ddprun::testing_support
