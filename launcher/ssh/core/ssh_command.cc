#include "launcher/ssh/core/ssh_command.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"

namespace ddprun {
namespace {

std::int64_t whole_seconds(Duration time) {
  return std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::seconds>(time).count());
}

// Returns the path as one word for any shell.
std::string quoted(std::string_view path) {
  std::string word = "'";
  for (const char c : path) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace

Result<std::vector<std::string>> split_shell_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool has_word = false;
  char quote = 0;  // the quote that is open
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool escapes = quote != '\'' && c == '\\' && i + 1 < text.size();
    if (escapes && (quote == 0 || std::string_view("\\\"$`").find(text[i + 1]) != text.npos)) {
      word += text[++i];
      has_word = true;
    } else if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      has_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (has_word) words.push_back(std::exchange(word, ""));
      has_word = false;
    } else {
      word += c;
      has_word = true;
    }
  }
  if (quote != 0) return invalid_value(text, "a quote is not closed");
  if (has_word) words.push_back(word);
  if (words.empty()) return invalid_value(text, "expected a command, such as ssh -p 2222");
  return words;
}

std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host) {
  constexpr int kUnanswered = 3;
  std::vector<std::string> command = options.words;
  const std::string program = quoted(options.program);
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
