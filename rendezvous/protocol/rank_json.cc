#include "rendezvous/protocol/rank_json.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/concat.h"
#include "base/printed.h"
#include "rendezvous/protocol/core/progress.h"
#include "rendezvous/protocol/shared_fields.h"

namespace ddprun {
namespace {

// Returns the shares of a step that are 1 % or more, the largest first: "data 62 %, backward 30 %".
// Empty: there are none.
std::string limits_of(const StepShares& shares) {
  using Part = std::pair<const char*, double>;
  const double data = shares.data.value_or(0);
  const double other =
      100 - data - shares.forward - shares.backward - shares.communication - shares.checkpoint;
  std::array<Part, 6> parts{{{"data", data},
                             {"forward", shares.forward},
                             {"backward", shares.backward},
                             {"communication", shares.communication},
                             {"checkpoint", shares.checkpoint},
                             {"other", other}}};
  std::ranges::stable_sort(parts, std::ranges::greater(), &Part::second);
  std::string text;
  for (const auto& [name, percent] : parts) {
    // Agents may send any number.
    if (!(percent >= 1) || percent > 100) continue;
    text += concat(text.empty() ? "" : ", ", name, " ", printed("%.0f", percent), " %");
  }
  return text;
}

}  // namespace

nlohmann::json rank_json(const RankRow& row, const RankPlace& place) {
  nlohmann::json json(row);
  json["host"] = place.host;
  json["restarts"] = place.restarts;
  if (place.node) json["node"] = place.node->value;
  if (row.step && place.foremost_step) {
    // Programs may report any number. The difference of two of them fits only if it is unsigned.
    const auto lag =
        static_cast<std::uint64_t>(*place.foremost_step) - static_cast<std::uint64_t>(*row.step);
    json["lag"] = *row.step <= *place.foremost_step ? lag : 0;
  }
  const Progress progress{
      .step = row.step, .total_steps = row.total_steps, .steps_per_second = row.steps_per_second};
  if (const auto left = time_left(progress); left && row.state == "running") {
    json["left_s"] = *left / std::chrono::seconds(1);
  }
  if (row.step_percent) {
    if (const std::string limits = limits_of(*row.step_percent); !limits.empty())
      json["limits"] = limits;
  }
  return json;
}

}  // namespace ddprun
