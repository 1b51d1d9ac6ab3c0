#include "worker_lib/store/init_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <sstream>
#include <utility>

#include "base/parse_number.h"
#include "base/read_whole.h"
#include "base/unique_fd.h"
#include "base/write_all.h"

namespace ddprun {
namespace {

constexpr std::string_view kVersion = "ddprun-meeting-1";
constexpr std::uint64_t kMostBytes = 1024;

std::string text_of(const StoreAddress& note) {
  return std::string(kVersion) + "\n" + note.address.host + "\n" +
         std::to_string(note.address.port) + "\n" + note.token + "\n";
}

Error not_ours(const std::string& path,
               const char* why = "it was not written by this version of ddprun") {
  return Error{.kind = ErrorKind::kCorrupt,
               .doing = "read " + path,
               .cause = std::string(why) + "; give another path"};
}

// Writes a file with a new name next to `path`, and returns that name. The file is closed,
// because on NFS other hosts then see what was written. It need not survive a power failure.
Result<std::string> write_beside(const std::string& path, const std::string& text) {
  std::string name = path + ".XXXXXX";
  const std::string doing = "write " + path;
  UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return system_error(doing, errno);
  if (write_all(file.get(), text) && ::close(file.release()) == 0) return name;
  const int sys_errno = errno;
  ::unlink(name.c_str());
  return system_error(doing, sys_errno);
}

}  // namespace

Result<std::optional<StoreAddress>> read_init_file(const std::string& path) {
  // Otherwise a link, a pipe or a device that reads as empty would be replaced.
  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return not_ours(path, "not a regular file");
  }
  const UniqueFd file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW));
  if (!file.valid()) {
    if (errno == ENOENT || errno == ESTALE) return std::optional<StoreAddress>();
    return system_error("read " + path, errno);
  }
  const Result<std::string> text = read_whole<std::string>(file.get(), path, kMostBytes);
  if (!text) {
    if (text.error().kind == ErrorKind::kCorrupt) return not_ours(path);
    // It was replaced, on NFS.
    if (text.error().sys_errno == ESTALE) return std::optional<StoreAddress>();
    return text.error();
  }
  if (text->empty()) return std::optional<StoreAddress>();
  std::istringstream lines(*text);
  std::string version;
  std::string port;
  StoreAddress note;
  std::getline(lines, version);
  std::getline(lines, note.address.host);
  std::getline(lines, port);
  std::getline(lines, note.token);
  const auto number = parse_number<std::uint16_t>(port);
  if (!lines || version != kVersion || !number || note.token.empty()) return not_ours(path);
  note.address.port = *number;
  return std::optional<StoreAddress>(std::move(note));
}

Result<PublishedAddress> PublishedAddress::publish(const std::string& path,
                                                   const StoreAddress& note) {
  const Result<std::string> beside = write_beside(path, text_of(note));
  if (!beside) return beside.error();
  if (std::rename(beside->c_str(), path.c_str()) != 0) {
    const int sys_errno = errno;
    ::unlink(beside->c_str());
    return system_error("write " + path, sys_errno);
  }
  return PublishedAddress(path, note.token);
}

PublishedAddress::PublishedAddress(PublishedAddress&& other) noexcept
    : path_(std::move(other.path_)), token_(std::exchange(other.token_, {})) {}

PublishedAddress::~PublishedAddress() {
  if (token_.empty()) return;
  const auto note = read_init_file(path_);
  if (note && *note && (*note)->token == token_) ::unlink(path_.c_str());
}

}  // namespace ddprun
