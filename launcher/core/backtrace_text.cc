#include "launcher/core/backtrace_text.h"

#include <algorithm>
#include <cctype>

namespace ddprun {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::string_view without_spaces_ahead(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// Behind "#12 " and an address; empty: the line is no frame of gdb's.
std::string_view gdb_frame(std::string_view line) {
  if (line.size() < 2 || line[0] != '#' || !is_digit(line[1])) return {};
  std::string_view rest = line.substr(std::min(line.find(' '), line.size()));
  rest = without_spaces_ahead(rest);
  if (!rest.starts_with("0x")) return rest;
  const std::size_t in = rest.find(" in ");
  return in == std::string_view::npos ? rest : rest.substr(in + 4);
}

std::string_view kernel_frame(std::string_view line) {
  constexpr std::string_view kMark = "[<0>] ";
  if (!line.starts_with(kMark)) return {};
  line.remove_prefix(kMark.size());
  return line.substr(0, line.find('+'));
}

}  // namespace

std::vector<std::string> frames_in(std::string_view text) {
  std::vector<std::string> frames;
  bool in_thread = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with("Thread ")) {
      if (in_thread && !frames.empty()) break;
      in_thread = true;
      continue;
    }
    std::string_view frame = gdb_frame(line);
    if (line.starts_with("#0 ") && !frames.empty()) break;
    if (frame.empty()) frame = kernel_frame(line);
    if (frame.empty() && in_thread && line.starts_with("    ")) frame = without_spaces_ahead(line);
    if (!frame.empty()) frames.emplace_back(frame);
  }
  std::reverse(frames.begin(), frames.end());
  return frames;
}

}  // namespace ddprun
