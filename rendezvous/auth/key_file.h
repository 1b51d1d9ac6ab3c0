// Reads keys from --rdzv-key-file, or from DDPRUN_RDZV_KEY in the environment. For main threads,
// before other threads start.
#pragma once

#include <string>

#include "base/host_port.h"
#include "base/result.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/munge.h"

namespace ddprun {

inline constexpr const char* kKeyVariable = "DDPRUN_RDZV_KEY";

struct FoundKeys {
  Keyring keys;        // empty: no key was given
  std::string remark;  // warning for the log; empty: there is none
};

// Reads the keys from the file at `path`, which may be a pipe. If `path` is empty, reads the
// variable. Removes the variable from the environment in both cases, and overwrites its memory,
// so that neither a child nor a reader of /proc/<pid>/environ finds it. Errors are
// kInvalidArgument or the kernel's error about the file. They never show the contents.
Result<FoundKeys> find_keys(const std::string& path);

// Reads a password from the file at `path` or, if that is empty, from the variable of this name.
// A line break at its end does not count. Does the rest as find_keys().
inline constexpr const char* kEtcdPasswordVariable = "DDPRUN_ETCD_PASSWORD";
struct FoundPassword {
  Secret password;     // empty: none was given
  std::string remark;  // as in FoundKeys
};
Result<FoundPassword> find_etcd_password(const std::string& path);

// Returns a warning for the operator of a service that listens at `listening`. Empty: there is
// no exposure, because clients need a key, munge separates users, or only this host can connect.
std::string exposure_of(const HostPort& listening, const Keyring& keys, const FoundMunge& munge);

}  // namespace ddprun
