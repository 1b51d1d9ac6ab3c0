#include "rendezvous/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/late_openssl.h"
#include "base/read_all.h"
#include "base/unique_fd.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

std::string taken_from_environment() {
  char* value = std::getenv(kKeyVariable);
  if (!value) return "";
  std::string text(value);
  explicit_bzero(value, std::strlen(value));
  unsetenv(kKeyVariable);
  return text;
}

// The file may be a pipe, whose size nobody knows before its end.
Result<std::string> contents_of(const UniqueFd& file, const std::string& doing) {
  std::string text(kMaxFileBytes + 1, '\0');
  const ssize_t size = read_all(file.get(), text.data(), text.size());
  if (size < 0) return system_error(doing, errno);
  if (static_cast<std::size_t>(size) > kMaxFileBytes) {
    return invalid_argument("more than " + std::to_string(kMaxFileBytes) + " bytes are no keys")
        .within(doing);
  }
  text.resize(static_cast<std::size_t>(size));
  return text;
}

// What is proved with them needs OpenSSL.
Result<Keyring> read_keys(const std::string& text) {
  Result<Keyring> keys = Keyring::parse(text);
  if (!keys) return keys;
  if (Result<void> there = load_openssl(); !there) return std::move(there).error();
  return keys;
}

}  // namespace

Result<FoundKeys> find_keys(const std::string& path) {
  const std::string variable = taken_from_environment();
  FoundKeys found;
  if (path.empty()) {
    if (variable.empty()) return found;
    Result<Keyring> keys = read_keys(variable);
    if (!keys) return std::move(keys).error().within(kKeyVariable);
    found.keys = std::move(*keys);
    return found;
  }
  const std::string doing = "--rdzv-key-file: read the keys in " + path;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return system_error(doing, errno);
  Result<std::string> text = contents_of(file, doing);
  if (!text) return std::move(text).error();
  Result<Keyring> keys = read_keys(*text);
  if (!keys) return std::move(keys).error().within(doing);
  found.keys = std::move(*keys);
  struct stat status {};
  if (fstat(file.get(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    found.remark = "others can read the keys in " + path + ": chmod 600 " + path;
  }
  return found;
}

std::string exposure_of(const HostPort& listening, const Keyring& keys, const FoundMunge& munge) {
  if (!keys.empty() || munge.munge || is_loopback_host(listening.host)) return "";
  return "ANYONE who can reach " + to_text(listening) +
         " can join jobs, read their addresses and end them: give every node and the service the "
         "same --rdzv-key-file (munge is not used: " +
         munge.why_not + ")";
}

}  // namespace ddprun
