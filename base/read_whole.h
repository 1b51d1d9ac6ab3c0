// read_whole(): all of a regular file, where there is a bound to what it may hold. Any thread.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "base/read_all.h"
#include "base/result.h"

namespace ddprun {

// How many bytes the file has. path: for the error. kCorrupt where it has more than `limit`.
inline Result<std::size_t> size_within(int fd, const std::string& path, std::uint64_t limit) {
  const std::string doing = "read " + path;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return system_error(doing, errno);
  if (static_cast<std::uint64_t>(status.st_size) <= limit)
    return static_cast<std::size_t>(status.st_size);
  return Error{.kind = ErrorKind::kCorrupt,
               .doing = doing,
               .cause = "it has " + std::to_string(status.st_size) + " bytes, " +
                        std::to_string(limit) + " is the most it can have"};
}

// From where the descriptor stands: as many bytes as the file had when it was looked at, or fewer
// if it has shrunk since. Bytes: std::string, std::vector<char>. Errors are those of size_within(),
// for which no memory is taken, and of the disk.
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
