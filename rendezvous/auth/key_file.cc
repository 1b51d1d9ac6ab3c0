#include "rendezvous/auth/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/concat.h"
#include "base/openssl_loader.h"
#include "base/read_all.h"
#include "base/unique_fd.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

Secret taken_from_environment(const char* variable) {
  char* value = std::getenv(variable);
  if (!value) return {};
  Secret text(value);
  explicit_bzero(value, std::strlen(value));
  unsetenv(variable);
  return text;
}

struct Contents {
  Secret text;
  bool is_open_to_others = false;
};

// Reads the file in one call, because the size of a pipe is not known before its end.
Result<Contents> contents_of(const std::string& path, const std::string& doing) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return system_error(doing, errno);
  int failed = 0;
  Secret text = Secret::filled(kMaxFileBytes + 1, [&](char* place) {
    const ssize_t size = read_all(file.get(), place, kMaxFileBytes + 1);
    if (size < 0) failed = errno;
    return static_cast<std::size_t>(std::max<ssize_t>(0, size));
  });
  if (failed != 0) return system_error(doing, failed);
  if (text.view().size() > kMaxFileBytes) {
    return invalid_argument(concat("the file has more than ", kMaxFileBytes, " bytes"))
        .within(doing);
  }
  struct stat status {};
  const bool is_open =
      fstat(file.get(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0;
  return Contents{std::move(text), is_open};
}

std::string open_to_others(const char* what, const std::string& path) {
  return concat("other users can read the ", what, " in ", path, ": chmod 600 ", path);
}

// Parses the keys, and loads OpenSSL, because proofs need it.
Result<Keyring> read_keys(const Secret& text) {
  Result<Keyring> keys = Keyring::parse(text);
  if (!keys) return keys;
  if (Result<void> there = load_openssl(); !there) return std::move(there).error();
  return keys;
}

}  // namespace

Result<FoundKeys> find_keys(const std::string& path) {
  const Secret variable = taken_from_environment(kKeyVariable);
  FoundKeys found;
  if (path.empty()) {
    if (variable.empty()) return found;
    Result<Keyring> keys = read_keys(variable);
    if (!keys) return std::move(keys).error().within(kKeyVariable);
    found.keys = std::move(*keys);
    return found;
  }
  const std::string doing = "--rdzv-key-file: read the keys in " + path;
  const Result<Contents> contents = contents_of(path, doing);
  if (!contents) return contents.error();
  Result<Keyring> keys = read_keys(contents->text);
  if (!keys) return std::move(keys).error().within(doing);
  found.keys = std::move(*keys);
  if (contents->is_open_to_others) found.remark = open_to_others("keys", path);
  return found;
}

Result<FoundPassword> find_etcd_password(const std::string& path) {
  FoundPassword found{taken_from_environment(kEtcdPasswordVariable), {}};
  if (path.empty()) return found;
  const std::string doing = "--etcd-password-file: read the password in " + path;
  const Result<Contents> contents = contents_of(path, doing);
  if (!contents) return contents.error();
  std::string_view password = contents->text.view();
  if (password.ends_with('\n')) password.remove_suffix(1);
  if (password.empty()) return invalid_argument("the file is empty").within(doing);
  found.password = contents->text.part(password);
  if (contents->is_open_to_others) found.remark = open_to_others("password", path);
  return found;
}

std::string exposure_of(const HostPort& listening, const Keyring& keys, const FoundMunge& munge) {
  if (!keys.empty() || munge.munge || is_loopback_host(listening.host)) return "";
  return concat(
      "anyone who can reach ", listening,
      " can join jobs, read their addresses and end them: give every node and the service the "
      "same --rdzv-key-file (munge is not used: ",
      munge.why_not, ")");
}

}  // namespace ddprun
