// SmallDisk: a small disk that a test can fill: a tmpfs of its own. Needs root. One owner
// thread.
#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <utility>

namespace ddprun::testing_support {

class SmallDisk {
 public:
  // path: made if missing. options: tmpfs's mount options, such as "size=256k".
  SmallDisk(std::string path, const char* options) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Returns false if the mount failed; errno then has the reason.
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace ddprun::testing_support
