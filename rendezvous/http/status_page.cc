#include "rendezvous/http/status_page.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/version.h"
#include "rendezvous/protocol/control_json.h"
#include "rendezvous/protocol/rank_json.h"
#include "rendezvous/protocol/verdict_json.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kHeadlineBytes = 1024;
constexpr std::size_t kFailureMessageBytes = 256;
// Of a job the first nodes with trouble have its whole text. A full shared disk concerns all nodes,
// which must not leave the page for that.
constexpr std::size_t kTroublesInFull = 16;
constexpr std::size_t kShortTroubleBytes = 32;
constexpr std::size_t kAroundRanks = 64;  // what with_array() adds

// BoundedArray: a JSON array with as many elements as its room permits.
class BoundedArray {
 public:
  explicit BoundedArray(std::size_t room) : room_(room) {}

  // Returns false if the element does not fit.
  bool add(std::string_view element) {
    if (text_.size() + element.size() + 1 > room_) return false;
    if (!text_.empty()) text_ += ",\n";
    text_ += element;
    return true;
  }
  const std::string& elements() const { return text_; }

 private:
  std::size_t room_;
  std::string text_;
};

// Returns the object `text`, which must have fields, with the array and the number of its
// missing elements added.
std::string with_array(std::string text, const std::string& name, const BoundedArray& array,
                       std::size_t left_out) {
  text.pop_back();
  text += ",\"" + name + "_left_out\":" + std::to_string(left_out);
  text += ",\"" + name + "\":[\n" + array.elements() + "]}";
  return text;
}

}  // namespace

std::string calendar_text(const Moment& now, TimePoint when) {
  using namespace std::chrono;
  const auto time = floor<milliseconds>(now.calendar - (now.boot - when));
  const auto day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(time - day);
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
                static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()),
                static_cast<int>(clock.subseconds().count()));
  return text.data();
}

namespace {

// trouble_bytes: limit of what is wrong with log files.
Json describe(const Membership::Member& member, TimePoint now, std::size_t trouble_bytes) {
  Json json{{"host", clipped(member.node.host, kHostBytesShown)},
            {"slots", member.node.slots},
            {"connected", member.connected},
            {"phase", enum_name(kAgentPhaseWords, member.status.phase)},
            {"generation", member.status.generation.value}};
  // An agent in the service's own process has no lease.
  if (!member.local) {
    json["silent_ms"] = to_ms(now - member.last_heard);
  }
  if (member.status.step) json["step"] = *member.status.step;
  if (member.status.leaving != 0) json["leaving"] = member.status.leaving;
  if (!member.status.unfit.empty()) {
    json["unfit"] = clipped(member.status.unfit, kFailureMessageBytes);
  }
  if (!member.status.log_trouble.empty()) {
    json["log_trouble"] = clipped(member.status.log_trouble, trouble_bytes);
  }
  if (member.assignment) {
    const int first_rank = member.assignment->first_rank.value;
    json["node_rank"] = member.assignment->node_rank.value;
    json["first_rank"] = first_rank;
    json["last_rank"] = first_rank + member.node.slots - 1;
  }
  return json;
}

// What is not known is left out.
Json describe(const GenerationRecord& one, const Moment& now) {
  Json json{{"number", one.number.value}};
  if (one.nodes > 0) json["nodes"] = one.nodes;
  if (one.ranks > 0) json["ranks"] = one.ranks;
  if (one.formed) json["since"] = calendar_text(now, *one.formed);
  if (one.ended) json["until"] = calendar_text(now, *one.ended);
  if (one.end != GenerationEnd::kNone) json["end"] = enum_name(kGenerationEndWords, one.end);
  if (!one.what.empty()) json["what"] = one.what;
  return json;
}

// Returns the job without its ranks.
std::string describe(const Membership& job, const Moment& now) {
  Json json{{"id", job.spec().id},
            {"phase", enum_name(kJobPhaseWords, job.phase())},
            {"generation", job.generation().value},
            {"min_nodes", job.spec().nodes.min},
            {"max_nodes", job.spec().nodes.max},
            {"restarts_used", job.restarts_used()},
            {"max_restarts", job.spec().max_restarts}};
  Json& events = json["events"] = Json::array();
  for (const JobEvent& event : job.events()) {
    events.push_back({{"time", calendar_text(now, event.when)}, {"what", event.what}});
  }
  Json& failures = json["failures"] = Json::array();
  for (const FailedGeneration& failure : job.failed_generations()) {
    Verdict verdict = failure.verdict;
    for (WorkerEnd& end : verdict.ends) {
      end.message = clipped(std::move(end.message), kFailureMessageBytes);
    }
    Json entry = verdict_json(verdict);
    entry["what"] = clipped(std::move(verdict.headline), Membership::kEventBytes);
    entry["time"] = calendar_text(now, failure.when);
    entry["kind"] = kind_word(verdict.ends.front());
    failures.push_back(std::move(entry));
  }
  Json& generations = json["generations"] = Json::array();
  for (const GenerationRecord& one : job.generations()) generations.push_back(describe(one, now));
  if (const std::optional<TimePoint>& formed = job.formed_at()) {
    json["generation_since"] = calendar_text(now, *formed);
    json["generation_since_ms_ago"] = to_ms(now.boot - *formed);
  }
  json["since"] = calendar_text(now, job.known_since());
  json["since_ms_ago"] = to_ms(now.boot - job.known_since());
  if (const std::optional<JobTimes> times = job.times(now.boot)) json["times"] = times_json(*times);
  if (const std::optional<Verdict>& verdict = job.verdict()) {
    json["verdict"] = {{"success", verdict->success},
                       {"exit_code", verdict->exit_code},
                       {"headline", clipped(verdict->headline, kHeadlineBytes)}};
  }
  std::string head = text_of(json);
  BoundedArray nodes(kMaxJobBytes - std::min(kMaxJobBytes, head.size()));
  std::size_t left_out = job.members().size();
  std::size_t troubles = 0;
  for (const auto& [id, member] : job.members()) {
    if (!member.status.log_trouble.empty()) ++troubles;
    const std::size_t bytes =
        troubles > kTroublesInFull ? kShortTroubleBytes : kFailureMessageBytes;
    if (!nodes.add(text_of(describe(member, now.boot, bytes)))) break;
    --left_out;
  }
  return with_array(std::move(head), "nodes", nodes, left_out);
}

// Returns the job with what its connected nodes have lately said about their ranks. The ranks take
// bytes from `room`.
std::string with_ranks(std::string job_text, const Membership& job, const Moment& now,
                       std::size_t& room) {
  using Member = Membership::Member;
  std::map<int, const Member*> by_first_rank;
  RankPlace place;
  std::size_t left_out = 0;
  for (const auto& [id, member] : job.members()) {
    const bool is_recent = now.boot - member.ranks_when <= Membership::kRanksLast;
    if (!member.assignment || !member.connected || !is_recent) continue;
    if (member.ranks.generation != job.generation() || member.ranks.rows.empty()) continue;
    by_first_rank[member.assignment->first_rank.value] = &member;
    place.foremost_step = std::max(place.foremost_step, foremost_step(member.ranks.rows));
    left_out += member.ranks.rows.size();
  }
  BoundedArray ranks(std::min(room, kMaxRanksBytes));
  bool fits = true;
  for (const auto& [first_rank, member] : by_first_rank) {
    place.host = clipped(member->node.host, kHostBytesShown);
    place.node = member->assignment->node_rank;
    place.restarts = member->assignment->restart_count;
    for (const RankRow& row : member->ranks.rows) {
      fits = fits && ranks.add(text_of(rank_json(row, place)));
      if (fits) --left_out;
    }
  }
  room -= ranks.elements().size();
  return with_array(std::move(job_text), "ranks", ranks, left_out);
}

}  // namespace

std::string status_page(const JobTable& table, const Moment& now,
                        const StatusPageOptions& options) {
  const Json head{{"version", kVersion},
                  {"host", table.options().host},
                  {"embedded", table.options().embedded},
                  {"time", calendar_text(now, now.boot)}};
  std::vector<const Membership*> all;
  if (options.only.empty()) {
    all = table.jobs();
  } else if (const Membership* job = table.find(options.only)) {
    all = {job};
  }
  std::size_t room = options.max_bytes - 1024;
  std::vector<std::string> shown;
  for (const Membership* job : all) {
    std::string text = describe(*job, now);
    const std::size_t bytes = text.size() + kAroundRanks;
    if (bytes > room) break;
    room -= bytes;
    shown.push_back(std::move(text));
  }
  BoundedArray jobs(options.max_bytes - 1024);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    jobs.add(with_ranks(std::move(shown[i]), *all[i], now, room));
  }
  return with_array(text_of(head), "jobs", jobs, all.size() - shown.size()) + "\n";
}

}  // namespace ddprun
