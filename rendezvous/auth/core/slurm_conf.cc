#include "rendezvous/auth/core/slurm_conf.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "base/parse_number.h"

namespace ddprun {
namespace {

constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

bool is_same(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// Returns what follows `name=` in `text`; nullopt if `text` does not begin so.
std::optional<std::string_view> value_of(std::string_view text, std::string_view name) {
  const std::size_t equals = text.find('=');
  if (equals == text.npos) return std::nullopt;
  if (!is_same(trimmed(text.substr(0, equals)), name)) return std::nullopt;
  return trimmed(text.substr(equals + 1));
}

// Removes the first part of `text`, up to `separator`, and returns it.
std::string_view take_part(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

// Returns whether the file has a line `Include PATH`.
bool includes_files(std::string_view text) {
  constexpr std::string_view kInclude = "include ";
  while (!text.empty()) {
    const std::string_view line = trimmed(take_part(text, '\n'));
    if (is_same(line.substr(0, kInclude.size()), kInclude)) return true;
  }
  return false;
}

// Returns the value on the last line that sets `name`.
std::optional<std::string_view> setting_of(std::string_view text, std::string_view name) {
  std::optional<std::string_view> setting;
  while (!text.empty()) {
    std::string_view rest = take_part(text, '\n');
    if (const auto value = value_of(take_part(rest, '#'), name)) setting = value;
  }
  return setting;
}

}  // namespace

std::string munge_socket_of(std::string_view text) {
  std::string socket;
  if (std::optional<std::string_view> info = setting_of(text, "AuthInfo")) {
    while (!info->empty()) {
      const auto path = value_of(take_part(*info, ','), "socket");
      if (path && path->starts_with('/')) socket = *path;
    }
  }
  return socket;
}

std::optional<Duration> kill_wait_of(std::string_view text) {
  constexpr int kDefault = 30;
  const std::optional<std::string_view> setting = setting_of(text, "KillWait");
  if (!setting && includes_files(text)) return std::nullopt;
  return std::chrono::seconds(setting ? parse_number<std::uint16_t>(*setting).value_or(kDefault)
                                      : kDefault);
}

}  // namespace ddprun
