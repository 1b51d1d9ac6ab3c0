#include "worker_lib/store/init_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <sstream>
#include <utility>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/read_whole.h"
#include "base/unique_fd.h"
#include "base/write_all.h"

namespace ddprun {
namespace {

constexpr std::string_view kVersion = "ddprun-meeting-1";
constexpr std::uint64_t kMostBytes = 1024;

std::string text_of(const StoreAddress& address) {
  return concat(kVersion, "\n", address.endpoint.host, "\n", address.endpoint.port, "\n",
                address.token, "\n");
}

Error not_an_init_file(const std::string& path,
                       const char* why = "it was not written by this version of ddprun") {
  return Error{.kind = ErrorKind::kCorrupt,
               .doing = "read " + path,
               .cause = concat(why, "; give another path")};
}

}  // namespace

Result<std::optional<StoreAddress>> read_init_file(const std::string& path) {
  // Otherwise a link, a pipe or a device that reads as empty would be replaced.
  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return not_an_init_file(path, "not a regular file");
  }
  const UniqueFd file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW));
  if (!file.valid()) {
    if (errno == ENOENT || errno == ESTALE) return std::optional<StoreAddress>();
    return system_error("read " + path, errno);
  }
  const Result<std::string> text = read_whole<std::string>(file.get(), path, kMostBytes);
  if (!text) {
    if (text.error().kind == ErrorKind::kCorrupt) return not_an_init_file(path);
    // On NFS: the file was replaced while it was read.
    if (text.error().sys_errno == ESTALE) return std::optional<StoreAddress>();
    return text.error();
  }
  if (text->empty()) return std::optional<StoreAddress>();
  std::istringstream lines(*text);
  std::string version;
  std::string port;
  StoreAddress address;
  for (std::string* const line : {&version, &address.endpoint.host, &port, &address.token}) {
    std::getline(lines, *line);
  }
  const auto number = parse_number<std::uint16_t>(port);
  if (!lines || version != kVersion || !number || address.token.empty()) {
    return not_an_init_file(path);
  }
  address.endpoint.port = *number;
  return std::optional<StoreAddress>(std::move(address));
}

// Writes a file with a new name next to `path`, and renames it. The file is closed before, because
// on NFS other hosts then see what was written. It need not survive a power failure.
Result<PublishedAddress> PublishedAddress::publish(const std::string& path,
                                                   const StoreAddress& address) {
  std::string temporary = path + ".XXXXXX";
  UniqueFd file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.valid()) return system_error("write " + path, errno);
  if (write_all(file.get(), text_of(address)) && ::close(file.release()) == 0 &&
      std::rename(temporary.c_str(), path.c_str()) == 0) {
    return PublishedAddress(path, address.token);
  }
  const int sys_errno = errno;
  ::unlink(temporary.c_str());
  return system_error("write " + path, sys_errno);
}

PublishedAddress::PublishedAddress(PublishedAddress&& other) noexcept
    : path_(std::move(other.path_)), token_(std::exchange(other.token_, {})) {}

PublishedAddress::~PublishedAddress() {
  if (token_.empty()) return;
  const auto address = read_init_file(path_);
  if (address && *address && (*address)->token == token_) ::unlink(path_.c_str());
}

}  // namespace ddprun
