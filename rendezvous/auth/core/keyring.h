// Keyring: the keys by which agents and the rendezvous service know each other.
//
// Text, as files hold it and DDPRUN_RDZV_KEY: one key to a line; lines that begin with # and empty
// ones say nothing.
//   KEY         for every job that has none of its own; one such line at most
//   JOB KEY     for the job of that id alone
// A key is one word of kMinKeyBytes or more: 32 random bytes in hexadecimal, say. The same text
// serves the service and the agents.
//
// Keys are kept out of core dumps (base/secret.h). A value type; any thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"

namespace ddprun {

class Keyring {
 public:
  static constexpr std::size_t kMinKeyBytes = 16;

  // kInvalidArgument names the line and what is wrong with it, never what is written there.
  static Result<Keyring> parse(const Secret& text);

  bool empty() const { return !for_all_ && by_job_.empty(); }
  // The job's own key, else the one for every job; nullopt: neither.
  std::optional<Secret> key_of(const std::string& job) const;
  const std::optional<Secret>& for_every_job() const { return for_all_; }

 private:
  std::optional<Secret> for_all_;
  std::map<std::string, Secret> by_job_;
};

}  // namespace ddprun
