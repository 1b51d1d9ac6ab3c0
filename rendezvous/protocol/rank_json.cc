#include "rendezvous/protocol/rank_json.h"

#include <nlohmann/json.hpp>

#include "rendezvous/protocol/core/progress.h"
#include "rendezvous/protocol/core/step_part.h"
#include "rendezvous/protocol/shared_fields.h"

namespace ddprun {
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
    if (const std::string limits = parts_text(parts_of(*row.step_percent)); !limits.empty())
      json["limits"] = limits;
  }
  return json;
}

}  // namespace ddprun
