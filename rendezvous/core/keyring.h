// Keyring: the keys by which agents and the rendezvous service know each other.
//
// Text, as files hold it and DDPRUN_RDZV_KEY: one key to a line; lines that begin with # and empty
// ones say nothing.
//   KEY         for every job that has none of its own; one such line at most
//   JOB KEY     for the job of that id alone
// A key is one word of kMinKeyBytes or more: 32 random bytes in hexadecimal, say. The same text
// serves the service and the agents.
//
// A value type; any thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddprun {

class Keyring {
 public:
  static constexpr std::size_t kMinKeyBytes = 16;

  // kInvalidArgument names the line and what is wrong with it, never what is written there.
  static Result<Keyring> parse(std::string_view text);

  bool empty() const { return !for_all_ && by_job_.empty(); }
  // The job's own key, else the one for every job; nullopt: neither.
  std::optional<std::string> key_of(const std::string& job) const;
  const std::optional<std::string>& for_every_job() const { return for_all_; }

 private:
  std::optional<std::string> for_all_;
  std::map<std::string, std::string> by_job_;
};

}  // namespace ddprun
