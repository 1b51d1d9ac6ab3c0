#include "launcher/machine/core/cpu_set.h"

#include <algorithm>
#include <iterator>

#include "base/parse_number.h"

namespace ddprun {
namespace {

// Linux supports at most 8192 CPUs. A file with a larger number than this is damaged.
constexpr int kMaxCpu = 1 << 16;

}  // namespace

std::string to_text(const CpuSet& cpus) {
  if (cpus.empty()) return "none";
  std::string text;
  for (auto first = cpus.begin(); first != cpus.end();) {
    int last = *first;
    auto next = std::next(first);
    for (; next != cpus.end() && *next == last + 1; ++next) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(*first);
    if (last > *first) text += "-" + std::to_string(last);
    first = next;
  }
  return text;
}

std::optional<CpuSet> parse_cpu_list(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  CpuSet cpus;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), range.size() + 1));
    const std::size_t dash = range.find('-');
    const std::optional<int> first = parse_number<int>(range.substr(0, dash));
    const std::optional<int> last =
        dash == std::string_view::npos ? first : parse_number<int>(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMaxCpu) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

CpuSet common(const CpuSet& one, const CpuSet& other) {
  CpuSet both;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                        std::inserter(both, both.end()));
  return both;
}

}  // namespace ddprun
