#include "launcher/process/core/shell_words.h"

#include <utility>

namespace ddprun {

std::string in_shell_words(const std::string& text) {
  const bool is_plain =
      !text.empty() && text.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                           "-_=+:,./@%") == std::string::npos;
  if (is_plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

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

}  // namespace ddprun
