#include "worker_lib/collective/call_header.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/concat.h"
#include "worker_lib/collective/rank_names.h"

namespace ddprun {
namespace {

bool reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduce ||
         kind == CallKind::kReduceScatter;
}

}  // namespace

const char* to_text(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce: return "all_reduce";
    case CallKind::kReduce: return "reduce";
    case CallKind::kBroadcast: return "broadcast";
    case CallKind::kAllGather: return "all_gather";
    case CallKind::kReduceScatter: return "reduce_scatter";
    case CallKind::kGather: return "gather";
    case CallKind::kScatter: return "scatter";
    case CallKind::kAllToAll: return "all_to_all";
    case CallKind::kBarrier: return "barrier";
    case CallKind::kMonitoredBarrier: return "monitored_barrier";
  }
  return "?";
}

// FNV-1a over the sizes.
std::uint32_t digest_of(std::span<const std::size_t> sizes) {
  std::uint64_t digest = 14695981039346656037u;
  for (const std::size_t size : sizes) digest = (digest ^ size) * 1099511628211u;
  return static_cast<std::uint32_t>(digest ^ digest >> 32);
}

std::string describe(const CallHeader& call) {
  std::string text = concat(to_text(call.kind), " #", call.sequence);
  // An all_to_all has no common size: its sizes are known only to each rank.
  const bool is_barrier =
      call.kind == CallKind::kBarrier || call.kind == CallKind::kMonitoredBarrier;
  if (is_barrier) return text;
  const bool are_bytes = !reduces(call.kind) && call.type == ElementType::kU8;
  if (call.kind == CallKind::kAllToAll)
    return are_bytes ? text : text + " of " + to_text(call.type);
  text += concat(" of ", call.count, " ", are_bytes ? "B" : to_text(call.type));
  if (call.tensors != 1) text += concat(" in ", call.tensors, " tensors");
  if (reduces(call.kind)) text += concat(" (", to_text(call.op), ")");
  if (call.root >= 0) {
    const bool outward = call.kind == CallKind::kBroadcast || call.kind == CallKind::kScatter;
    text += (outward ? " from " : " to ") + name_rank(call.root);
  }
  return text;
}

std::string disagreement(std::span<const CallHeader> calls, std::span<const int> ranks) {
  std::string table = "the ranks disagree:";
  std::vector<bool> described(calls.size(), false);
  std::vector<std::string> texts;
  for (std::size_t first = 0; first < calls.size(); ++first) {
    if (described[first]) continue;
    std::vector<int> same;
    for (std::size_t at = first; at < calls.size(); ++at) {
      if (calls[at] != calls[first]) continue;
      described[at] = true;
      same.push_back(ranks[at]);
    }
    const std::string call = describe(calls[first]);
    table += (first == 0 ? " " : "; ") + name_ranks(same) + " called " + call;
    if (std::ranges::find(texts, call) != texts.end()) table += " whose sizes or dtypes are others";
    texts.push_back(call);
  }
  return table;
}

Result<void> check_agreement(const CallHeader& mine, std::span<const CallHeader> by_rank) {
  if (std::all_of(by_rank.begin(), by_rank.end(), [&](const auto& call) { return call == mine; })) {
    return {};
  }
  std::vector<int> ranks(by_rank.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return invalid_argument(disagreement(by_rank, ranks)).within(describe(mine));
}

}  // namespace ddprun
