#include "rendezvous/protocol/verdict_json.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/signal_names.h"
#include "rendezvous/protocol/core/hints.h"

namespace ddprun {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const WorkerEnd& end) {
  OrderedJson json{{"kind", kind_word(end)}, {"what", describe(end)}, {"host", end.host}};
  if (!end.host.empty()) json["node_rank"] = end.node_rank.value;
  if (end.kind != EndKind::kNodeLost) {
    json["rank"] = end.rank.value;
    json["local_rank"] = end.local_rank.value;
    json["pid"] = end.pid;
  }
  if (end.kind == EndKind::kExited) json["exit_code"] = end.code;
  if (end.kind == EndKind::kNotStarted) json["errno"] = end.code;
  if (end.kind == EndKind::kSignaled) {
    json["signal"] = end.code;
    json["signal_name"] = signal_name(end.code);
    json["core_dumped"] = end.core_dumped;
    if (end.out_of_memory != OutOfMemory::kNo) {
      json["evidence"] = enum_name(kOutOfMemoryWords, end.out_of_memory);
    }
  }
  if (!end.message.empty()) json["message"] = end.message;
  if (!end.frames.empty()) json["frames"] = end.frames;
  if (!end.stderr_tail.empty()) json["stderr"] = end.stderr_tail;
  if (end.blames >= 0) json["victim_of_rank"] = end.blames;
  if (end.step) json["step"] = *end.step;
  if (end.on_request) json["signal_on_request"] = true;
  if (end.finished) json["after_context"] = true;
  if (end.after_stop) json["stopped_by_ddprun"] = true;
  if (const std::string hint = hint_for(end); !hint.empty()) json["hint"] = hint;
  return json;
}

}  // namespace

OrderedJson verdict_json(const Verdict& failed) {
  OrderedJson json{{"generation", failed.generation.value},
                   {"restarts_used", failed.restarts_used}};
  json["what"] = failed.headline;
  const std::size_t firsts = count_possible_firsts(failed.ends);
  OrderedJson first = OrderedJson::array();
  OrderedJson blamed = OrderedJson::array();
  OrderedJson same = OrderedJson::array();
  OrderedJson victims = OrderedJson::array();
  for (std::size_t i = 0; i < failed.ends.size(); ++i) {
    OrderedJson end = json_of(failed.ends[i]);
    if (i < firsts) {
      first.push_back(std::move(end));
      continue;
    }
    const auto after = std::chrono::duration<double>(failed.ends.front().age - failed.ends[i].age);
    end["seconds_after_first"] = after.count();
    if (is_blamed(failed.ends[i], failed.ends, firsts)) {
      blamed.push_back(std::move(end));
    } else {
      const bool is_same = is_same_failure(failed.ends[i], failed.ends.front());
      (is_same ? same : victims).push_back(std::move(end));
    }
  }
  json["first"] = std::move(first);
  if (!blamed.empty()) json["blamed"] = std::move(blamed);
  if (!same.empty()) json["failed_in_the_same_way"] = std::move(same);
  json["victims"] = std::move(victims);
  json["victims_not_listed"] = failed.more_ends;
  if (!failed.seen.empty()) json["seen"] = failed.seen;
  return json;
}

OrderedJson times_json(const JobTimes& times) {
  OrderedJson causes = OrderedJson::object();
  std::int64_t wall_ms = 0;
  for (const auto& [cause, word] : kTimeCauseWords) {
    causes[std::string(word)] = to_ms(times[cause]);
    wall_ms += to_ms(times[cause]);
  }
  return {{"what", goodput_text(times)},
          {"goodput", times.goodput()},
          {"wall_ms", wall_ms},
          {"restarts", times.restarts()},
          {"steps_reported", times.has_steps},
          {"causes_ms", std::move(causes)}};
}

}  // namespace ddprun
