#include "rendezvous/membership/core/node_order.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Removes the leading digits from `text` and returns them without leading zeros.
std::string_view take_number(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

}  // namespace

bool natural_less(std::string_view left, std::string_view right) {
  std::string_view a = left;
  std::string_view b = right;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return left < right;
}

namespace {

bool by_name(const NodeCandidate& a, const NodeCandidate& b) {
  if (a.host != b.host) return natural_less(a.host, b.host);
  return a.agent_id < b.agent_id;
}

// Returns the candidates that may get one of the n ranks: all without failures, and as many
// with failures as are needed.
std::vector<std::size_t> pool_of(const std::vector<NodeCandidate>& candidates, std::size_t n) {
  std::vector<std::size_t> pool;
  std::vector<std::size_t> failed;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    (candidates[i].failures > 0 ? failed : pool).push_back(i);
  }
  std::ranges::sort(failed, [&](std::size_t x, std::size_t y) {
    const NodeCandidate& a = candidates[x];
    const NodeCandidate& b = candidates[y];
    if (a.failures != b.failures) return a.failures < b.failures;
    if (a.previous_rank.has_value() != b.previous_rank.has_value()) {
      return a.previous_rank.has_value();
    }
    return by_name(a, b);
  });
  for (const std::size_t i : failed) {
    if (pool.size() < n) pool.push_back(i);
  }
  std::sort(pool.begin(), pool.end());
  return pool;
}

}  // namespace

std::vector<std::size_t> order_nodes(const std::vector<NodeCandidate>& candidates, int max_nodes) {
  DDPRUN_ASSERT(max_nodes >= 1, "a generation has at least one node");
  const std::size_t n = std::min(candidates.size(), static_cast<std::size_t>(max_nodes));
  constexpr std::size_t kNobody = static_cast<std::size_t>(-1);
  std::vector<std::size_t> place(n, kNobody);
  std::vector<std::size_t> newcomers;
  std::vector<std::size_t> displaced;  // of the last generation; their rank is gone or taken

  const auto claim = [&](std::size_t candidate, int rank) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= n) return false;
    std::size_t& holder = place[static_cast<std::size_t>(rank)];
    if (holder != kNobody) return false;
    holder = candidate;
    return true;
  };

  const std::vector<std::size_t> pool = pool_of(candidates, n);
  for (const std::size_t i : pool) {
    const std::optional<int> previous = candidates[i].previous_rank;
    if (previous && !claim(i, *previous)) displaced.push_back(i);
  }
  for (const std::size_t i : pool) {
    if (candidates[i].previous_rank) continue;
    const std::optional<int> wanted = candidates[i].wanted_rank;
    if (!wanted || !claim(i, *wanted)) newcomers.push_back(i);
  }

  std::ranges::sort(newcomers, [&](std::size_t x, std::size_t y) {
    return by_name(candidates[x], candidates[y]);
  });
  std::ranges::sort(displaced, [&](std::size_t x, std::size_t y) {
    return *candidates[x].previous_rank > *candidates[y].previous_rank;
  });

  std::vector<std::size_t> queue = newcomers;
  queue.insert(queue.end(), displaced.begin(), displaced.end());
  std::size_t next = 0;
  for (std::size_t& holder : place) {
    if (holder == kNobody) holder = queue[next++];
  }
  return place;
}

}  // namespace ddprun
