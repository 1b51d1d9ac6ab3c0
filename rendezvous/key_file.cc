#include "rendezvous/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/unique_fd.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

Error invalid(std::string doing, std::string cause) {
  return Error{
      .kind = ErrorKind::kInvalidArgument, .doing = std::move(doing), .cause = std::move(cause)};
}

std::string taken_from_environment() {
  char* value = std::getenv(kKeyVariable);
  if (!value) return "";
  std::string text(value);
  explicit_bzero(value, std::strlen(value));
  unsetenv(kKeyVariable);
  return text;
}

Result<std::string> contents_of(const UniqueFd& file, const std::string& doing) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(doing, errno);
    if (count == 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > kMaxFileBytes) {
      return invalid(doing, "more than " + std::to_string(kMaxFileBytes) + " bytes are no keys");
    }
  }
}

}  // namespace

Result<FoundKeys> find_keys(const std::string& path) {
  const std::string variable = taken_from_environment();
  FoundKeys found;
  if (path.empty()) {
    if (variable.empty()) return found;
    Result<Keyring> keys = Keyring::parse(variable);
    if (!keys) return std::move(keys).error().within(kKeyVariable);
    found.keys = std::move(*keys);
    return found;
  }
  const std::string doing = "read the keys in " + path;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return system_error(doing, errno);
  Result<std::string> text = contents_of(file, doing);
  if (!text) return std::move(text).error();
  Result<Keyring> keys = Keyring::parse(*text);
  if (!keys) return std::move(keys).error().within(doing);
  found.keys = std::move(*keys);
  struct stat status {};
  if (fstat(file.get(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    found.remark = "others can read the keys in " + path + ": chmod 600 " + path;
  }
  return found;
}

std::string exposure_of(const HostPort& listening, const Keyring& keys) {
  if (!keys.empty() || is_loopback_host(listening.host)) return "";
  return "ANYONE who can reach " + to_text(listening) +
         " can join jobs, read their addresses and end them: give every node and the service the "
         "same --rdzv-key-file";
}

}  // namespace ddprun
