#include "launcher/options/config_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/nearest_word.h"
#include "base/read_whole.h"
#include "base/split.h"
#include "base/unique_fd.h"
#include "launcher/options/option_table.h"

namespace ddprun {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

// Returns "line 3, column 5" for a byte of the text. Bytes are numbered from 1.
std::string place_of(const std::string& text, std::size_t byte) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size() + 1) - 1);
  const auto line = std::count(text.begin(), end, '\n') + 1;
  const auto begin = std::find(std::make_reverse_iterator(end), text.rend(), '\n').base();
  return "line " + std::to_string(line) + ", column " + std::to_string(end - begin + 1);
}

// Returns the reason in the parser's message, such as "unexpected '}'; expected string
// literal". The message begins with "[its name] parse error at line 1, column 8: syntax error
// while parsing object key - ", which is removed. What the parser has read last is removed,
// too, because it may be anything.
std::string reason_of(const Json::parse_error& error) {
  std::string text = error.what();
  for (const std::string_view before : {"] ", " - "}) {
    const std::size_t found = text.find(before);
    if (found != std::string::npos) text.erase(0, found + before.size());
  }
  const std::size_t read = text.find("; last read: ");
  if (read == std::string::npos) return text;
  const std::size_t expected = text.rfind("; expected ");
  const bool is_behind = expected != std::string::npos && expected > read;
  return text.substr(0, read) + (is_behind ? text.substr(expected) : "");
}

// Returns one value as the command line would have it. Fails if it is an object, a list or
// null.
Result<std::string> text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  const char* const what = value.is_object() ? "an object" : value.is_array() ? "a list" : "null";
  return invalid_argument(std::string("found ") + what +
                          " (expected a string, a number, true or false)");
}

Result<std::vector<std::string>> texts_of(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& one : list) {
    Result<std::string> text = text_of(one);
    if (!text) return text.error();
    texts.push_back(std::move(*text));
  }
  return texts;
}

Result<void> read_option(const std::string& name, const Json& value, ConfigFile& file) {
  const OptionSpec* option = find_option("--" + name);
  if (!option) {
    const std::string nearest = nearest_word(with_dashes(name), option_names());
    return invalid_argument("unknown option" + (nearest.empty()
                                                    ? "; ddprun --print-config lists them"
                                                    : ": did you mean '" + nearest + "'?"));
  }
  if (option->where != OptionSpec::Where::kAnywhere) {
    return invalid_argument("allowed on the command line only");
  }
  if (file.texts.contains(option->name)) return invalid_argument("given twice");
  if (value.is_array() && !option->repeats) {
    return invalid_argument("found a list (expected one value, as on the command line)");
  }
  Result<std::vector<std::string>> texts =
      texts_of(value.is_array() ? value : Json::array({value}));
  if (!texts) return texts.error();
  file.texts[option->name] = std::move(*texts);
  return {};
}

Result<void> read_entry(const std::string& name, const Json& value, ConfigFile& file) {
  if (name == "program") {
    if (!value.is_string()) return invalid_argument("expected a string");
    file.program = value.get<std::string>();
    return {};
  }
  if (name == "args") {
    if (!value.is_array()) return invalid_argument("expected a list of strings");
    Result<std::vector<std::string>> texts = texts_of(value);
    if (!texts) return texts.error();
    file.args = std::move(*texts);
    return {};
  }
  return read_option(name, value, file);
}

}  // namespace

Result<ConfigFile> parse_config_file(const std::string& path, const std::string& text) {
  ConfigFile file{.path = path, .texts = {}, .program = {}, .args = {}};
  std::vector<std::pair<std::string, Json>> entries;
  try {
    const Json json = Json::parse(text);
    if (!json.is_object()) {
      return invalid_argument("expected a JSON object, such as {\"nproc-per-node\": 8}")
          .within(path);
    }
    for (const auto& [name, value] : json.items()) entries.emplace_back(name, value);
  } catch (const Json::parse_error& error) {
    return invalid_argument("invalid JSON at " + place_of(text, error.byte) + ": " +
                            reason_of(error))
        .within(path);
  } catch (const Json::out_of_range& error) {  // "... number overflow parsing '1e999'"
    const std::vector<std::string_view> parts = split(error.what(), '\'');
    return invalid_value(parts.size() > 1 ? parts[1] : "", "expected a number in range")
        .within(path);
  }
  for (const auto& [name, value] : entries) {
    Result<void> read = read_entry(name, value, file);
    if (!read) return std::move(read).error().within(path + ": '" + name + "'");
  }
  if (file.program.empty() && !file.args.empty()) {
    return invalid_argument("'args' without 'program'").within(path);
  }
  return file;
}

Result<ConfigFile> read_config_file(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return system_error("open " + path, errno);
  Result<std::string> text = read_whole<std::string>(fd.get(), path, kMaxFileBytes);
  if (!text) return text.error();
  return parse_config_file(path, *text);
}

}  // namespace ddprun
