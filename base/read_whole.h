// read_whole(): reads all of a regular file whose size is limited. Any thread.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "base/read_all.h"
#include "base/result.h"

namespace ddprun {

// Returns how many bytes the file has. path: for the error. kCorrupt: it has more than `limit`.
inline Result<std::size_t> size_within(int fd, const std::string& path, std::uint64_t limit) {
  const std::string doing = "read " + path;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return system_error(doing, errno);
  if (static_cast<std::uint64_t>(status.st_size) <= limit)
    return static_cast<std::size_t>(status.st_size);
  return Error{.kind = ErrorKind::kCorrupt,
               .doing = doing,
               .cause = "it has " + std::to_string(status.st_size) + " bytes (at most " +
                        std::to_string(limit) + " are allowed)"};
}

// Reads from the descriptor's current position: as many bytes as the file had when its size was
// read, or fewer if it has shrunk since. Bytes: std::string, std::vector<char>. Fails as
// size_within(), before any memory is taken, or with the disk's error.
template <class Bytes>
Result<Bytes> read_whole(int fd, const std::string& path, std::uint64_t limit) {
  const Result<std::size_t> expected = size_within(fd, path, limit);
  if (!expected) return expected.error();
  Bytes bytes;
  bytes.resize(*expected);
  const ssize_t size = read_all(fd, bytes.data(), bytes.size());
  if (size < 0) return system_error("read " + path, errno);
  bytes.resize(static_cast<std::size_t>(size));
  return bytes;
}

}  // namespace ddprun
