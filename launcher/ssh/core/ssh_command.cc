#include "launcher/ssh/core/ssh_command.h"

#include <algorithm>

#include "base/concat.h"
#include "launcher/process/core/shell_words.h"

namespace ddprun {
namespace {

std::int64_t whole_seconds(Duration time) {
  return std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::seconds>(time).count());
}

}  // namespace

std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host) {
  constexpr int kUnanswered = 3;
  std::vector<std::string> command = options.words;
  const std::string program = in_shell_words(options.program);
  command.insert(
      command.end(),
      {"-T", "-o", "BatchMode=yes", "-o",
       concat("ConnectTimeout=", whole_seconds(options.connect_timeout)), "-o",
       concat("ServerAliveInterval=", whole_seconds(options.lease / 2)), "-o",
       concat("ServerAliveCountMax=", kUnanswered),
       // The user's configuration may have them for people. A ControlPath stays.
       "-o", "ControlMaster=no", "-o", "ControlPersist=no", "-o", "ClearAllForwardings=yes", "-o",
       "RemoteCommand=none", "-o", "PermitLocalCommand=no", "--", host,
       // Any login shell reads this: sh, bash, zsh, fish, csh.
       concat("test -x ", program, " && exec ", program, " ", kNodeCommand, "; exec ddprun ",
              kNodeCommand)});
  return command;
}

}  // namespace ddprun
