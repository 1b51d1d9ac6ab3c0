// What munge is asked to do, and what it says, as plain values: the handshake hands out tasks, its
// shell has them done on a thread that may wait (rendezvous/auth/munge_desk.h). Value types; any thread.
//
// A credential is a text that the munged of one node has made. Every munged with the same key says
// which user had it made, and what he stated in it.
#pragma once

#include <string>
#include <variant>

#include "base/ids.h"
#include "base/result.h"

namespace ddprun {

struct MakeCredential {
  std::string statement;
  UserId reader;  // no other user can have it read
};
struct ReadCredential {
  std::string credential;
};
using MungeTask = std::variant<MakeCredential, ReadCredential>;

struct MungeAnswer {
  std::string text;  // the credential that was made, or the statement of one that was read
  UserId maker;      // of one that was read
};
// An error of kind kProtocol: munge does not vouch for that credential. Any other: munge itself is
// in trouble, and nothing is known of the credential.
using MungeOutcome = Result<MungeAnswer>;

}  // namespace ddprun
