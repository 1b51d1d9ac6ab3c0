#include "worker_lib/cpu/call_header.h"

#include <algorithm>
#include <vector>

#include "worker_lib/cpu/rank_names.h"

namespace ddprun {
namespace {

const char* name_of(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce: return "all_reduce";
    case CallKind::kReduce: return "reduce";
    case CallKind::kBroadcast: return "broadcast";
    case CallKind::kAllGather: return "all_gather";
    case CallKind::kReduceScatter: return "reduce_scatter";
    case CallKind::kGather: return "gather";
    case CallKind::kScatter: return "scatter";
    case CallKind::kBarrier: return "barrier";
  }
  return "?";
}

bool reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduce ||
         kind == CallKind::kReduceScatter;
}

}  // namespace

std::string describe(const CallHeader& call) {
  std::string text = name_of(call.kind);
  text += " #" + std::to_string(call.sequence);
  if (call.kind == CallKind::kBarrier) return text;
  text += " of " + std::to_string(call.count) + " ";
  text += reduces(call.kind) ? to_text(call.type) : "B";
  if (reduces(call.kind)) text += std::string(" (") + to_text(call.op) + ")";
  if (call.root >= 0) {
    const bool outward = call.kind == CallKind::kBroadcast || call.kind == CallKind::kScatter;
    text += (outward ? " from " : " to ") + name_rank(call.root);
  }
  return text;
}

Result<void> check_agreement(const CallHeader& mine, std::span<const CallHeader> by_rank) {
  if (std::all_of(by_rank.begin(), by_rank.end(), [&](const auto& call) { return call == mine; })) {
    return {};
  }
  std::string table = "the ranks disagree:";
  std::vector<bool> told(by_rank.size(), false);
  for (std::size_t first = 0; first < by_rank.size(); ++first) {
    if (told[first]) continue;
    std::vector<int> same;
    for (std::size_t rank = first; rank < by_rank.size(); ++rank) {
      if (by_rank[rank] != by_rank[first]) continue;
      told[rank] = true;
      same.push_back(static_cast<int>(rank));
    }
    table += (first == 0 ? " " : "; ") + name_ranks(same) + " called " + describe(by_rank[first]);
  }
  return invalid_argument(table).within(describe(mine));
}

}  // namespace ddprun
