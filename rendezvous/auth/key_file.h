// Where keys come from: --rdzv-key-file, or DDPRUN_RDZV_KEY in the environment. For main threads,
// before others are started.
#pragma once

#include <string>

#include "base/host_port.h"
#include "base/result.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/munge.h"

namespace ddprun {

inline constexpr const char* kKeyVariable = "DDPRUN_RDZV_KEY";

struct FoundKeys {
  Keyring keys;        // empty: none was given
  std::string remark;  // for the log; empty: nothing is odd about them
};

// path: of a file, which may be a pipe; empty for none, then the environment counts. The variable is taken out of the
// environment, and wiped where this process was given it, so that no child and no reader of
// /proc/<pid>/environ finds it there. kInvalidArgument, or the kernel's word about the file; never
// what is in it.
Result<FoundKeys> find_keys(const std::string& path);

// What whoever runs a service that listens there should know; empty: only those with a key can
// join, or munge keeps users apart, or only this host can come.
std::string exposure_of(const HostPort& listening, const Keyring& keys, const FoundMunge& munge);

}  // namespace ddprun
