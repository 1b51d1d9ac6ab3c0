#include "worker_lib/group/every_rank.h"

#include <algorithm>

#include "base/concat.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {

using nlohmann::json;

json to_json_report(const std::optional<DistError>& failure) {
  if (!failure) return nullptr;
  return {{"kind", failure->kind()}, {"what", failure->what()}};
}

void throw_reported(const json& report, const std::string& prefix) {
  if (report.is_null()) return;
  refuse(prefix + report.at("what").get<std::string>(), report.at("kind").get<DistError::Kind>());
}

std::vector<json> on_every_rank(ProcessGroup& group, const char* doing, Timeout timeout,
                                const std::function<json()>& part) {
  json own{{"failure", nullptr}, {"value", nullptr}};
  try {
    with_dist_errors(doing, [&] { own["value"] = part(); });
  } catch (const DistError& failure) {
    own["failure"] = to_json_report(failure);
  }
  const LongWait no_hang(group);
  const std::vector<json> all = group.all_gather_object(own, timeout);
  // Ranks that fail alike need no name: the cause is common.
  const auto fails_as_first = [&](const json& one) {
    return one.at("failure") == all[0].at("failure");
  };
  if (std::ranges::all_of(all, fails_as_first)) throw_reported(all[0].at("failure"));
  std::vector<json> values;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    throw_reported(all[rank].at("failure"), concat(doing, ": rank ", rank, ": "));
    values.push_back(all[rank].at("value"));
  }
  return values;
}

}  // namespace ddprun
