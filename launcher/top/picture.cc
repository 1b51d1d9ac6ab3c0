#include "launcher/top/picture.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/counted.h"
#include "launcher/control/json_fields.h"
#include "launcher/control/text.h"
#include "rendezvous/protocol/core/rank_row.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

TopRow row_of(const Json& json) {
  TopRow row;
  row.rank = integer_field(json, "rank").value_or(0);
  row.node = integer_field(json, "node");
  row.local_rank = integer_field(json, "local_rank");
  row.pid = integer_field(json, "pid");
  row.step = integer_field(json, "step");
  row.lag = integer_field(json, "lag");
  row.memory_bytes = integer_field(json, "memory_bytes");
  row.gpu_memory_bytes = integer_field(json, "gpu_memory_bytes");
  row.gpu_own_memory_bytes = integer_field(json, "gpu_own_memory_bytes");
  row.restarts = integer_field(json, "restarts");
  row.steps_per_second = number_field(json, "steps_per_second");
  row.waiting_s = number_field(json, "waiting_s");
  row.cpu_percent = number_field(json, "cpu_percent");
  row.gpu_percent = number_field(json, "gpu_percent");
  row.host = text_field(json, "host");
  row.state = text_field(json, "state");
  row.collective = text_field(json, "collective");
  row.slow = text_field(json, "slow");
  row.limits = text_field(json, "limits");
  return row;
}

// Returns the first line of a text, as text_field() does.
std::string first_line(const Json& text) {
  if (!text.is_string()) return "";
  const std::string all = text;
  return in_one_line(all.substr(0, all.find('\n')));
}

// Returns what failed and, if it is known, why: the first line of the message, or the last line
// that the worker wrote to stderr.
std::string failure_text(const Json& failure) {
  std::string what = text_field(failure, "what");
  if (const auto generation = integer_field(failure, "generation"))
    what = concat("generation ", *generation, ": ", what);
  const Json& first = list_field(failure, "first");
  if (first.empty() || !first.front().is_object()) return what;
  const Json& end = first.front();
  const Json& lines = list_field(end, "stderr");
  std::string why = first_line(end.value("message", Json()));
  if (why.empty() && !lines.empty()) why = first_line(lines.back());
  return why.empty() || what.find(why) != std::string::npos ? what : concat(what, ": ", why);
}

// Returns what is wrong with the log files of the first node that has such trouble, and how many
// others have.
std::string log_trouble_of(const Json& nodes) {
  std::string trouble;
  std::int64_t others = -1;
  for (const Json& node : nodes) {
    const std::string one = text_field(node, "log_trouble");
    if (!one.empty() && ++others == 0) trouble = concat(text_field(node, "host"), ": ", one);
  }
  return others > 0 ? concat(trouble, "; also on ", counted(others, "other node")) : trouble;
}

}  // namespace

JobView view_of(const Json& picture) {
  const Json& job = object_field(picture, "job");
  const Json& agents = list_field(picture, "agents");
  JobView view;
  if (!job.empty()) {
    view.id = text_field(job, "id");
    view.phase = text_field(job, "phase");
    view.generation = integer_field(job, "generation");
    view.restarts_used = integer_field(job, "restarts_used");
    view.max_restarts = integer_field(job, "max_restarts");
    if (const auto age = integer_field(job, "generation_since_ms_ago");
        age && view.phase == "running" && *age >= 0) {
      view.generation_age = std::chrono::milliseconds(std::min(*age, to_ms(kLongestTimeout)));
    }
    view.goodput = text_field(object_field(job, "times"), "what");
    const Json& failures = list_field(job, "failures");
    if (!failures.empty()) view.last_failure = failure_text(failures.back());
    view.log_trouble = log_trouble_of(list_field(job, "nodes"));
    const Json& verdict = object_field(job, "verdict");
    if (!verdict.empty()) {
      view.outcome =
          concat("ended with exit code ", integer_field(verdict, "exit_code").value_or(0), ": ",
                 text_field(verdict, "headline"));
    }
  } else if (!agents.empty()) {
    const Json& agent = agents.front();
    view.id = text_field(agent, "job");
    view.phase = text_field(agent, "phase") + ", as known to this node";
    view.generation = integer_field(agent, "generation");
  }
  if (view.generation && *view.generation < 0) view.generation.reset();
  for (const Json& rank : list_field(job, "ranks")) view.ranks.push_back(row_of(rank));
  for (const Json& node : list_field(job, "nodes")) {
    if (!node.contains("first_rank")) continue;
    view.ranks_expected += static_cast<std::size_t>(integer_field(node, "slots").value_or(0));
  }
  view.ranks_expected = std::min(view.ranks_expected, kMaxRankRows);
  std::vector<TopRow> here;
  for (const Json& agent : agents) {
    // Older agents describe their workers only.
    const Json& rows = list_field(agent, agent.contains("ranks") ? "ranks" : "workers");
    for (const Json& rank : rows) here.push_back(row_of(rank));
  }
  // What agents say is newer than what the service knows. They may have a part of the ranks only.
  if (here.size() >= view.ranks.size()) {
    view.ranks = std::move(here);
  } else {
    view.ranks_left_out = integer_field(job, "ranks_left_out").value_or(0);
  }
  view.progress = progress_of(picture);
  // Agents say how far a rank is behind their own ranks only. Programs may report any number: the
  // difference of two of them fits only if it is unsigned.
  constexpr std::uint64_t kMostLag = std::numeric_limits<std::int64_t>::max();
  for (TopRow& row : view.ranks) {
    if (!row.step) continue;
    const auto lag =
        static_cast<std::uint64_t>(*view.progress.step) - static_cast<std::uint64_t>(*row.step);
    row.lag = static_cast<std::int64_t>(std::min(lag, kMostLag));
  }
  return view;
}

}  // namespace ddprun
