#include "launcher/control/stacks.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/concat.h"
#include "base/split.h"
#include "launcher/output/core/backtrace_text.h"
#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

std::vector<std::string> places_of(const std::vector<std::string>& frames) {
  std::vector<std::string> places;
  for (const std::string& frame : frames) places.push_back(without_arguments(frame));
  return places;
}

std::string_view why_no_stack(bool is_stopped) {
  if (is_stopped) return "a debugger would let the stopped process continue";
  return "gdb (Python: py-spy) must be on PATH, be allowed to attach (kernel.yama.ptrace_scope), "
         "and "
         "answer within 30 s";
}

}  // namespace

void StackShow::take(std::string_view json_line) {
  const Json json = Json::parse(json_line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  try {
    if (json.contains("missing")) missing_.push_back(json.at("missing").get<std::string>());
    if (json.contains("dropped_bytes")) {
      missing_.push_back("stacks are missing: a node has more of them than it keeps for a reader");
    }
    if (!json.contains("frames")) return;
    Worker worker{.rank = json.at("rank").get<int>(),
                  .doing = json.value("doing", ""),
                  .is_stopped = json.value("is_stopped", false),
                  .frames = json.at("frames").get<std::vector<std::string>>(),
                  .line = std::string(json_line)};
    if (json.contains("call")) {
      const std::chrono::milliseconds waited(json.value("waited_ms", std::int64_t{0}));
      worker.doing = concat("in ", json.at("call").get<std::string>(), " for ", to_text(waited));
    }
    workers_.push_back(std::move(worker));
  } catch (const Json::exception&) {
  }
}

void StackShow::take_page(std::string_view lines) {
  for (const std::string_view line : split(lines, '\n')) take(line);
}

bool StackShow::has_interpreter() const {
  return std::ranges::any_of(workers_, [](const Worker& worker) {
    return std::ranges::any_of(worker.frames, [](const std::string& frame) {
      return frame.starts_with("_PyEval_EvalFrameDefault");
    });
  });
}

std::vector<StackShow::Worker> StackShow::by_rank() const {
  std::vector<Worker> all = workers_;
  std::ranges::stable_sort(all, {}, &Worker::rank);
  return all;
}

Json StackShow::as_json() const {
  Json ranks = Json::array();
  for (const Worker& worker : by_rank()) ranks.push_back(Json::parse(worker.line));
  return {{"ok", true}, {"ranks", std::move(ranks)}};
}

std::string StackShow::as_text() const {
  struct Group {
    std::vector<std::string> places;
    std::vector<Worker> workers;
  };
  std::vector<Group> groups;
  for (Worker& worker : by_rank()) {
    std::vector<std::string> places = places_of(worker.frames);
    const auto same = std::ranges::find(groups, places, &Group::places);
    // Workers without a stack are told apart by what they do.
    const bool joins =
        same != groups.end() && (!places.empty() || same->workers.front().doing == worker.doing);
    if (!joins) groups.push_back({std::move(places), {}});
    (joins ? *same : groups.back()).workers.push_back(std::move(worker));
  }
  std::ranges::stable_sort(groups, std::ranges::greater(),
                           [](const Group& one) { return one.workers.size(); });
  std::string text;
  for (const Group& group : groups) {
    std::vector<int> ranks;
    for (const Worker& worker : group.workers) ranks.push_back(worker.rank);
    const Worker& first = group.workers.front();
    text += concat(text.empty() ? "" : "\n", ranks.size() == 1 ? "rank " : "ranks ",
                   rank_ranges(ranks), ": ", first.doing, "\n");
    if (first.frames.empty())
      text += concat("    no stack: ", why_no_stack(first.is_stopped), "\n");
    for (const std::string& frame : group.workers.size() == 1 ? first.frames : group.places) {
      text += "    " + frame + "\n";
    }
  }
  return text;
}

}  // namespace ddprun
