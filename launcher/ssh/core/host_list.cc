#include "launcher/ssh/core/host_list.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <utility>

#include "base/concat.h"
#include "base/is_control.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {
namespace {

constexpr const char* kExample = "expected hosts, such as node0:4,me@node1,[2001:db8::1]:2";
constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = std::min(text.find_first_not_of(kSpaces), text.size());
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    words.push_back(text.substr(0, text.find_first_of(kSpaces)));
    text.remove_prefix(words.back().size());
  }
  return words;
}

Result<int> parse_count(std::string_view text) {
  const std::optional<int> count = parse_number<int>(text);
  if (count && *count >= 1 && *count <= kMaxSlots) return *count;
  return invalid_value(text, concat("slots: expected a number of workers from 1 to ", kMaxSlots));
}

// Returns why ssh must not get this name. Empty: it may.
std::string why_no_host(std::string_view name) {
  const std::string_view host = without_user(name);
  if (host.empty() || host.size() == name.size() - 1) return kExample;
  // ssh would take the name for an option.
  if (name.front() == '-' || host.front() == '-') return "a host's name does not begin with '-'";
  const bool is_good = std::ranges::none_of(name, [](char c) {
    return is_control(c) || std::string_view(" '\"/;|&$`<>()[]{},=").find(c) != std::string::npos;
  });
  // A user may have a backslash: "DOMAIN\\me".
  return is_good && host.find_first_of("*?\\") == host.npos ? "" : kExample;
}

// Parses "host", "host:4", "me@host:4" or "[2001:db8::1]:4".
Result<HostEntry> parse_entry(std::string_view text) {
  HostEntry entry;
  std::string_view slots;
  const std::size_t at = text.rfind('@') + 1;  // 0: no user
  const std::string_view user = text.substr(0, at);
  std::string_view host = text.substr(at);
  bool has_slots = false;
  if (host.starts_with('[')) {
    const std::size_t close = host.find(']');
    if (close == host.npos) return invalid_value(text, "']' is missing");
    const std::string_view rest = host.substr(close + 1);
    host = host.substr(1, close - 1);
    has_slots = rest.starts_with(':');
    if (!rest.empty() && !has_slots) return invalid_value(text, kExample);
    if (has_slots) slots = rest.substr(1);
  } else if (const std::size_t colon = host.find(':'); colon != host.npos) {
    has_slots = true;
    slots = host.substr(colon + 1);
    host = host.substr(0, colon);
    if (slots.find(':') != slots.npos) {
      return invalid_value(text, "an IPv6 address needs brackets: [2001:db8::1]:4");
    }
  }
  entry.name = std::string(user) + std::string(host);
  if (std::string why = why_no_host(entry.name); !why.empty()) return invalid_value(text, why);
  if (has_slots) {
    const Result<int> count = parse_count(slots);
    if (!count) return Error(count.error()).within(entry.name);
    entry.slots = *count;
  }
  return entry;
}

// Hosts: a list that refuses the same host twice.
class Hosts {
 public:
  // place: where the entry is, for the error about the next one of this host.
  Result<void> add(HostEntry entry, std::string place) {
    std::string key(without_user(entry.name));
    std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto [before, is_new] = places_.try_emplace(key, std::move(place));
    if (!is_new) {
      return invalid_argument(concat("host '", without_user(entry.name), "' is named twice",
                                     before->second, ": give it once, with all its slots"));
    }
    if (entries_.size() == kMaxNodes)
      return invalid_argument(concat("a job has at most ", kMaxNodes, " hosts"));
    entries_.push_back(std::move(entry));
    return {};
  }
  std::vector<HostEntry> take() { return std::move(entries_); }

 private:
  std::vector<HostEntry> entries_;
  std::map<std::string, std::string> places_;  // by host
};

// Returns the line without the spaces around '='. Open MPI takes them.
std::string with_whole_settings(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '=') {
      text.erase(text.find_last_not_of(kSpaces) + 1);
      i = std::min(line.find_first_not_of(kSpaces, i + 1), line.size()) - 1;
      text += '=';
    } else {
      text += line[i];
    }
  }
  return text;
}

// Parses a line of a host file that is not empty.
Result<HostEntry> parse_line(std::string_view text) {
  const std::string line = with_whole_settings(text);
  const std::vector<std::string_view> words = words_of(line);
  Result<HostEntry> entry = parse_entry(words.front());
  if (!entry) return entry;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = std::min(words[i].find('='), words[i].size());
    const std::string_view key = words[i].substr(0, equals);
    const std::string_view value = words[i].substr(std::min(equals + 1, words[i].size()));
    const bool is_most = key == "max_slots" || key == "max-slots";
    if ((key != "slots" && !is_most) || equals == words[i].size())
      return invalid_value(words[i], "expected HOST [slots=N]");
    const Result<int> count = parse_count(value);
    if (!count) return count.error();
    if (is_most) continue;
    if (entry->slots) return invalid_value(line, "slots are given twice");
    entry->slots = *count;
  }
  return entry;
}

}  // namespace

std::string_view without_user(std::string_view name) { return name.substr(name.rfind('@') + 1); }

bool is_link_local(std::string_view address) {
  // fe80::/10, in the form of the kernel.
  return address.size() > 4 && address.starts_with("fe") && address[4] == ':' &&
         std::string_view("89ab").find(address[2]) != std::string_view::npos;
}

Result<std::vector<HostEntry>> parse_hosts(std::string_view text) {
  Hosts hosts;
  for (const std::string_view part : split(text, ',')) {
    if (trimmed(part).empty()) {
      return text.empty() ? invalid_argument(concat("no hosts (", kExample, ")"))
                          : invalid_value(text, "a host is empty");
    }
    Result<HostEntry> entry = parse_entry(trimmed(part));
    if (!entry) return entry.error();
    if (Result<void> added = hosts.add(std::move(*entry), ""); !added) return added.error();
  }
  return hosts.take();
}

Result<std::vector<HostEntry>> parse_hostfile(std::string_view text) {
  // Editors of Windows begin a file with this mark.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  Hosts hosts;
  int number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    line = trimmed(line.substr(0, std::min(line.find('#'), line.find("//"))));
    if (line.empty()) continue;
    Result<HostEntry> entry = parse_line(line);
    Result<void> added;
    if (!entry) {
      added = entry.error();
    } else {
      added = hosts.add(std::move(*entry), concat(", first in line ", number));
    }
    if (!added) return std::move(added).error().within(concat("line ", number));
  }
  std::vector<HostEntry> entries = hosts.take();
  if (entries.empty()) return invalid_argument("it has no hosts (expected lines HOST [slots=N])");
  return entries;
}

}  // namespace ddprun
