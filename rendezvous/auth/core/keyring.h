// Keyring: the keys by which agents and the rendezvous service authenticate each other.
//
// The text of key files and of DDPRUN_RDZV_KEY has one key per line. Empty lines and lines that
// begin with # are ignored.
//   KEY         for every job that has no key of its own; at most one such line
//   JOB KEY     for the job of that id only
//
// A key is one word of at least kMinKeyBytes, for example 32 random bytes in hexadecimal. The
// service and the agents use the same text.
//
// Keys are kept out of core dumps (base/secret.h). A value type; any thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/secret.h"

namespace ddprun {

class Keyring {
 public:
  static constexpr std::size_t kMinKeyBytes = 16;

  // Parses such a text. kInvalidArgument: the error names the line and what is wrong, but never
  // shows the text.
  static Result<Keyring> parse(const Secret& text);

  bool empty() const { return !for_all_ && by_job_.empty(); }
  // Returns the job's own key, or else the key for every job; nullopt: there is neither.
  std::optional<Secret> key_of(const std::string& job) const;
  const std::optional<Secret>& for_every_job() const { return for_all_; }

 private:
  std::optional<Secret> for_all_;
  std::map<std::string, Secret> by_job_;
};

}  // namespace ddprun
