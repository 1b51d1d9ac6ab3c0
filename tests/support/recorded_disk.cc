#include "tests/support/recorded_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace ddprun::testing_support {
namespace {

constexpr std::size_t kBlockBytes = 64;  // so that small files have several blocks

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace

bool RecordedDisk::is_dead() const {
  if (story_.size() < dies_at_) return false;
  errno = EIO;
  return true;
}

std::optional<std::string> RecordedDisk::below_root(const std::string& path) const {
  if (path == root_) return "";
  if (!path.starts_with(root_ + "/")) return std::nullopt;
  return path.substr(root_.size() + 1);
}

void RecordedDisk::rename_in_story(const std::vector<NameChange>& names) {
  for (const NameChange& name : names) names_[name.path] = name.now;
  story_.push_back({.names = names});
}

int RecordedDisk::open(const char* path, int flags, mode_t mode) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto name = below_root(path);
  if (!name) return FileCalls::open(path, flags, mode);
  if (is_dead()) return -1;
  const int fd = FileCalls::open(path, flags, mode);
  if (fd < 0) return fd;
  open_files_.erase(fd);  // RecordedDisk may not have seen its close()
  open_directories_.erase(fd);
  if (flags & O_DIRECTORY) {
    open_directories_[fd] = *name;
    return fd;
  }
  const auto known = names_.find(*name);
  if (known == names_.end() || known->second == kNothing) {
    files_.emplace_back();
    rename_in_story({{*name, static_cast<Node>(files_.size()) - 1}});
  } else if (flags & O_TRUNC) {
    files_[static_cast<std::size_t>(known->second)].clear();
    story_.push_back({.file = known->second, .contents = ""});
  }
  open_files_[fd] = names_.at(*name);
  return fd;
}

ssize_t RecordedDisk::write(int fd, const void* data, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto file = open_files_.find(fd);
  if (file == open_files_.end()) return FileCalls::write(fd, data, bytes);
  if (is_dead()) return -1;
  const ssize_t count = FileCalls::write(fd, data, bytes);
  if (count <= 0) return count;
  std::string& contents = files_[static_cast<std::size_t>(file->second)];
  const auto end = static_cast<std::size_t>(::lseek(fd, 0, SEEK_CUR));
  const std::size_t begin = end - static_cast<std::size_t>(count);
  if (contents.size() < end) contents.resize(end);
  contents.replace(begin, end - begin, static_cast<const char*>(data), end - begin);
  story_.push_back({.file = file->second, .contents = contents});
  return count;
}

int RecordedDisk::fsync(int fd) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_dead()) return -1;
  if (const auto file = open_files_.find(fd); file != open_files_.end())
    story_.push_back({.file = file->second});
  if (const auto directory = open_directories_.find(fd); directory != open_directories_.end())
    story_.push_back({.flushed = directory->second});
  return 0;
}

int RecordedDisk::close(int fd) {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_files_.erase(fd);
  open_directories_.erase(fd);
  return FileCalls::close(fd);
}

int RecordedDisk::mkdir(const char* path, mode_t mode) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto name = below_root(path);
  if (name && is_dead()) return -1;
  const int result = FileCalls::mkdir(path, mode);
  if (name && result == 0) rename_in_story({{*name, kDirectory}});
  return result;
}

int RecordedDisk::rename(const char* from, const char* to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto before = below_root(from), after = below_root(to);
  if (before && is_dead()) return -1;
  const int result = FileCalls::rename(from, to);
  if (before && after && result == 0)
    rename_in_story({{*after, names_.at(*before)}, {*before, kNothing}});
  return result;
}

int RecordedDisk::unlink(const char* path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto name = below_root(path);
  if (name && is_dead()) return -1;
  const int result = FileCalls::unlink(path);
  if (name && result == 0) rename_in_story({{*name, kNothing}});
  return result;
}

RecordedDisk::Moment RecordedDisk::moment_after(std::size_t calls) const {
  Moment moment;
  moment.files.resize(files_.size());
  for (std::size_t i = 0; i < std::min(calls, story_.size()); ++i) {
    const Call& call = story_[i];
    for (const NameChange& name : call.names) moment.pending.push_back(name);
    if (call.file != kNothing) {
      Contents& file = moment.files[static_cast<std::size_t>(call.file)];
      if (call.contents)
        file.latest = *call.contents;
      else
        file.safe = file.latest;
    }
    if (!call.flushed) continue;
    std::vector<NameChange> others;
    for (NameChange& name : moment.pending) {
      if (directory_of(name.path) == *call.flushed)
        moment.safe[name.path] = name.now;
      else
        others.push_back(std::move(name));
    }
    moment.pending = std::move(others);
  }
  return moment;
}

// Returns what the disk may hold of a file that was written and not fsynced. Each block may be
// there or be zeros, and the file may end anywhere.
std::string RecordedDisk::some_of(const Contents& contents, Rng& rng) {
  if (contents.safe == contents.latest) return contents.safe;
  std::string some = contents.latest;
  for (std::size_t at = 0; at < some.size(); at += kBlockBytes) {
    if (rng.chance(0.5)) continue;
    const std::size_t end = std::min(at + kBlockBytes, some.size());
    for (std::size_t i = at; i < end; ++i)
      some[i] = i < contents.safe.size() ? contents.safe[i] : '\0';
  }
  if (rng.chance(0.5)) some.resize(rng.below(some.size() + 1));
  return some;
}

std::vector<RecordedDisk::Image> RecordedDisk::images_after(std::size_t calls, Rng& rng) const {
  constexpr int kRandomImages = 4;
  const Moment moment = moment_after(calls);
  const std::size_t changes = moment.pending.size();
  std::vector<Image> images;
  const auto add = [&](const auto& has_happened, const auto& contents_of) {
    std::map<std::string, Node> names = moment.safe;
    for (std::size_t i = 0; i < changes; ++i)
      if (has_happened(i)) names[moment.pending[i].path] = moment.pending[i].now;
    Image image;
    for (const auto& [path, node] : names) {  // a directory comes before its entries
      const std::string directory = directory_of(path);
      const auto parent = image.find(directory);
      if (node == kNothing || (!directory.empty() && parent == image.end())) continue;
      image[path] = node == kDirectory ? std::nullopt
                                       : std::optional<std::string>(contents_of(
                                             moment.files[static_cast<std::size_t>(node)]));
    }
    images.push_back(std::move(image));
  };
  const auto none = [](std::size_t) { return false; };
  const auto all = [](std::size_t) { return true; };
  const auto safe = [](const Contents& file) { return file.safe; };
  const auto latest = [](const Contents& file) { return file.latest; };
  const auto zeros = [](const Contents& file) {
    return file.safe == file.latest ? file.safe : std::string(file.latest.size(), '\0');
  };
  const auto some = [&](const Contents& file) { return some_of(file, rng); };
  add(none, safe);
  add(none, latest);
  add(all, latest);
  add(all, safe);
  add(all, zeros);
  for (std::size_t which = 0; which < changes; ++which) {
    add([&](std::size_t i) { return i == which; }, some);
    add([&](std::size_t i) { return i != which; }, some);
  }
  for (int i = 0; i < kRandomImages; ++i) add([&](std::size_t) { return rng.chance(0.5); }, some);
  return images;
}

void RecordedDisk::write(const Image& image, const std::string& directory) {
  for (const auto& [path, contents] : image) {
    const std::string whole = directory + "/" + path;
    if (contents)
      std::ofstream(whole, std::ios::binary) << *contents;
    else
      std::filesystem::create_directory(whole);
  }
}

}  // namespace ddprun::testing_support
