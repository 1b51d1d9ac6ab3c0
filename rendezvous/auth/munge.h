// Munge: authenticates users between the nodes of a Slurm cluster. It loads libmunge.so.2 at run
// time, so that ddprun needs neither the headers nor the library. munged does the work.
//
// It is immutable after find_munge(); any thread. Every call blocks on munged. If munged hangs,
// it blocks for as long as libmunge waits (10 s and more). Event loops therefore use AsyncMunge
// (rendezvous/auth/async_munge.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/clock.h"
#include "rendezvous/auth/core/credential.h"

namespace ddprun {

inline constexpr const char* kNoMunge = "none";  // value of --munge-socket

// Returns true if the user has named munged's socket. Then a warning says why munge is not used.
inline bool is_named(const std::string& munge_socket) {
  return !munge_socket.empty() && munge_socket != kNoMunge;
}

struct MungeOptions {
  // The socket of munged. Empty: the one that AuthInfo in slurm.conf names, or else munge's own
  // default.
  std::string socket;
  std::string library = "libmunge.so.2";  // tests name one that does not exist
  // Lifetime of a credential. Its nonces prevent replays, so the lifetime only has to cover the
  // difference between the clocks of two nodes.
  std::chrono::seconds lifetime{30};
};

struct MungeFunctions;  // of libmunge

class Munge {
 public:
  Munge(const Munge&) = delete;
  Munge& operator=(const Munge&) = delete;

  // Lets munged do the task.
  // - kProtocol: the credential was made with another key, was altered, has expired, was read
  //   here before, or is for another user.
  // - kConnection: munged does not answer, or its answer is invalid.
  MungeOutcome carry_out(const MungeTask& task) const;

  // Returns the user that munge takes this process for.
  UserId user() const { return user_; }

 private:
  friend struct FoundMunge ask_munge(const MungeOptions& options);
  Munge(std::shared_ptr<const MungeFunctions> functions, MungeOptions options)
      : functions_(std::move(functions)), options_(std::move(options)) {}
  MungeOutcome make(const MakeCredential& task) const;
  MungeOutcome read(const std::string& credential) const;

  std::shared_ptr<const MungeFunctions> functions_;
  MungeOptions options_;
  UserId user_;
};

struct FoundMunge {
  std::shared_ptr<const Munge> munge;  // null: it cannot be used here
  std::string why_not;                 // if munge is null: the reason, on one line
};

// Returns the contents of slurm.conf: the file that SLURM_CONF names, or else that of /etc/slurm or
// /run/slurm/conf. Empty: the file does not exist or cannot be read.
std::string slurm_conf();

// Returns munge for use by default. It is usable if the library can be loaded, and munged makes
// a credential and reads it again. Blocks for at most `allowed`. A munged that hangs counts as
// absent; a thread that waits for it stays. For main threads.
FoundMunge find_munge(const MungeOptions& options, Duration allowed = std::chrono::seconds(1));

}  // namespace ddprun
