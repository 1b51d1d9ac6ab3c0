// Tasks for munge and their outcomes, as plain values. The handshake returns tasks. Its caller
// has them done on a thread that may block (rendezvous/auth/async_munge.h). Value types; any
// thread.
//
// A credential is a text that the munged of one node has made. Every munged with the same key
// can tell which user had it made, and the statement in it.
#pragma once

#include <string>
#include <variant>

#include "base/ids.h"
#include "base/result.h"

namespace ddprun {

struct MakeCredential {
  std::string statement;
  UserId reader;  // only this user can read it
};
struct ReadCredential {
  std::string credential;
};
using MungeTask = std::variant<MakeCredential, ReadCredential>;

struct MungeAnswer {
  std::string text;  // the credential that was made, or the statement of one that was read
  UserId maker;      // of a credential that was read
};
// kProtocol: munge rejects the credential. Other errors: munge itself failed, and nothing is
// known about the credential.
using MungeOutcome = Result<MungeAnswer>;

}  // namespace ddprun
