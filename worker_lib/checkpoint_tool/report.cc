#include "worker_lib/checkpoint_tool/report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/joined.h"
#include "base/terminal_text.h"

namespace ddprun {
namespace {

// Makes the text of a file safe for a terminal: no escape sequences, not even colours.
std::string plain(std::string text) {
  std::ranges::replace(text, '\x1b', '?');
  return terminal_line(text);
}

}  // namespace

void refuse_files(std::string why) { throw Failed{ExitCode::kFiles, std::move(why)}; }

void refuse_damaged(const std::string& path, const Error& error) {
  throw Failed{error.kind == ErrorKind::kSystem ? ExitCode::kFiles : ExitCode::kUnwell,
               path + ": " + error.message()};
}

void refuse_damaged(const std::string& path, const std::string& why) {
  throw Failed{ExitCode::kUnwell, path + ": " + why};
}

void print_line(std::string line) { std::printf("%s\n", plain(std::move(line)).c_str()); }

void print_left_out(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 6;
  if (!names.empty()) print("left out: ", joined_up_to(names, kShown));
}

void complain(const std::string& what) {
  std::fprintf(stderr, "ddprun-ckpt: %s\n", plain(what).c_str());
}

std::string size_text(std::uint64_t bytes) {
  char text[32];
  if (bytes < 1 << 20)
    std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / 1024);
  else
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

}  // namespace ddprun
