#include "launcher/output/core/line_prefix.h"

#include <array>
#include <utility>

namespace ddprun {
namespace {

// Colours of neighbours differ clearly. Red is left for errors.
constexpr std::array kColours{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};

}  // namespace

std::string rank_prefix(Rank rank, bool coloured) {
  const std::string text = "[rank " + to_text(rank) + "]";
  if (!coloured) return text + " ";
  const int colour = kColours[static_cast<std::size_t>(rank.value) % kColours.size()];
  return "\x1b[" + std::to_string(colour) + "m" + text + "\x1b[0m ";
}

std::string tee_prefix(const TeePrefix& parts) {
  std::string_view left = parts.pattern.empty() ? "[${role_name}${local_rank}]:" : parts.pattern;
  const std::array<std::pair<std::string_view, std::string>, 3> macros{
      {{"${role_name}", std::string(parts.role)},
       {"${local_rank}", to_text(parts.local_rank)},
       {"${rank}", to_text(parts.rank)}}};
  std::string text;
  while (!left.empty()) {
    bool found = false;
    for (const auto& [macro, value] : macros) {
      if (!left.starts_with(macro)) continue;
      text += value;
      left.remove_prefix(macro.size());
      found = true;
      break;
    }
    if (found) continue;
    text += left.front();
    left.remove_prefix(1);
  }
  return text;
}

}  // namespace ddprun
