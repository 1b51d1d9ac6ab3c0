// Munge: what a Slurm cluster's nodes know each other by. libmunge.so.2 is loaded where it is, so
// that ddprun neither needs its headers nor its presence; munged does the work.
//
// Immutable after find_munge(); any thread. Every call blocks on munged, for as long as libmunge is
// patient with one that hangs (10 s and more): event loops use MungeDesk (rendezvous/auth/munge_desk.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/clock.h"
#include "rendezvous/auth/core/credential.h"

namespace ddprun {

inline constexpr const char* kNoMunge = "none";  // of --munge-socket

// Whether somebody has said where munged is, and so wants it.
inline bool is_named(const std::string& munge_socket) {
  return !munge_socket.empty() && munge_socket != kNoMunge;
}

struct MungeOptions {
  // munged's; empty: the one that AuthInfo in slurm.conf names, else munge's own default.
  std::string socket;
  std::string library = "libmunge.so.2";  // tests name one that does not exist
  // Of a credential. The nonces in it keep replays out, so this is only for how far the clocks of
  // two nodes may be apart.
  std::chrono::seconds lifetime{30};
};

class Munge {
 public:
  Munge(const Munge&) = delete;
  Munge& operator=(const Munge&) = delete;

  // Has munged do the task. kProtocol: the credential was made with another key, or altered, has
  // expired, was read here before, or is for another user's eyes. kConnection: munged does not
  // answer, or not as it should.
  MungeOutcome carry_out(const MungeTask& task) const;

  // The user that munge takes this process for.
  UserId user() const { return user_; }

 private:
  friend struct FoundMunge ask_munge(const MungeOptions& options);
  struct Functions;
  Munge(std::shared_ptr<const Functions> functions, MungeOptions options)
      : functions_(std::move(functions)), options_(std::move(options)) {}
  MungeOutcome make(const MakeCredential& task) const;
  MungeOutcome read(const std::string& credential) const;

  std::shared_ptr<const Functions> functions_;
  MungeOptions options_;
  UserId user_;
};

struct FoundMunge {
  std::shared_ptr<const Munge> munge;  // null: it is of no use here
  std::string why_not;                 // then: one line
};

// Returns munged's socket as slurm.conf has it: the file that SLURM_CONF names, else /etc/slurm/slurm.conf.
// Empty where there is no such file, or it names none.
std::string munge_socket_of_slurm();

// Munge as it is used without being asked for: usable if the library can be loaded and munged there
// makes a credential and reads it again. Blocks for `allowed` at most; a munged that hangs counts as
// none, and leaves a thread behind that waits for it. For main threads.
FoundMunge find_munge(const MungeOptions& options, Duration allowed = std::chrono::seconds(1));

}  // namespace ddprun
