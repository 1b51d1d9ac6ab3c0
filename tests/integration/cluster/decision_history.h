// DecisionHistory: checks the history of the keys that services keep in etcd. Every decision on a
// job is a revision there. One thread.
//
// - Each write is of the term that the leader key has. Terms grow. The writes of a term are
//   numbered without a gap.
// - A job's generation and its count of restarts never fall. A generation is followed by at most
//   one restart. An assignment does not change within its generation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "base/concat.h"
#include "rendezvous/persistence/core/journal.h"
#include "rendezvous/persistence/state_codec.h"

namespace ddprun::testing_support {

struct HistoryEvent {
  std::int64_t revision = 0;
  std::int64_t created = 0;          // revision at which the key was created
  std::string key;                   // below the prefix: "leader", "chain", "state/job/ID"
  std::optional<std::string> value;  // nullopt: the key was removed
};

// Returns the events that a watch of PREFIX/ has printed, a JSON object in each line.
inline std::vector<HistoryEvent> history_events(const std::string& prefix,
                                                const std::string& lines) {
  std::vector<HistoryEvent> all;
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.contains("result")) continue;
    for (const auto& event : json["result"].value("events", nlohmann::json::array())) {
      const auto& kv = event.at("kv");
      HistoryEvent one;
      one.revision = std::stoll(kv.at("mod_revision").get<std::string>());
      one.created = std::stoll(kv.value("create_revision", "0"));
      one.key = from_base64(kv.at("key").get<std::string>()).value_or("").substr(prefix.size() + 1);
      if (event.value("type", "PUT") == "PUT") one.value = from_base64(kv.value("value", ""));
      all.push_back(std::move(one));
    }
  }
  return all;
}

class DecisionHistory {
 public:
  // Takes all events, the oldest first. Returns what is wrong with the first bad one; empty:
  // nothing.
  std::string check(const std::vector<HistoryEvent>& events) {
    for (auto first = events.begin(); first != events.end();) {
      const auto last = std::find_if(
          first, events.end(), [&](const auto& one) { return one.revision != first->revision; });
      const std::string wrong = take({first, last});
      if (!wrong.empty()) return concat("revision ", first->revision, ": ", wrong);
      first = last;
    }
    return "";
  }
  // Returns the count of restarts of a generation; nullopt: there was none of this number.
  std::optional<int> restarts_of(const std::string& job, std::int64_t generation) const {
    const auto found = restarts_.find({job, generation});
    return found == restarts_.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t terms() const { return terms_; }
  std::int64_t decisions() const { return decisions_; }

 private:
  // Takes the events of one revision.
  std::string take(const std::vector<HistoryEvent>& events) {
    bool has_state = false, has_chain = false;
    for (const HistoryEvent& one : events) {
      std::string wrong;
      if (one.key == "leader") {
        wrong = take_leader(one);
      } else if (one.key == "chain") {
        has_chain = true;
        wrong = take_chain(one.value.value_or(""));
      } else if (one.key.starts_with("state/")) {
        has_state = true;
        wrong = take_state(one.key.substr(6), one.value);
      } else {
        wrong = "an unknown key " + one.key;
      }
      if (!wrong.empty()) return wrong;
    }
    return has_state && !has_chain ? "a write without the chain key" : "";
  }
  std::string take_leader(const HistoryEvent& one) {
    if (!one.value) {
      leader_.reset();
      return "";
    }
    if (leader_) return "a second leader";
    if (one.created <= term_) return "a term that is not newer";
    leader_ = term_ = one.created;
    written_ = 0;
    ++terms_;
    return "";
  }
  std::string take_chain(const std::string& value) {
    std::istringstream words(value);
    std::int64_t term = 0, number = 0;
    words >> term >> number;
    if (!leader_ || term != *leader_) return "a write of term " + value + ", which does not lead";
    if (number != ++written_) return "write " + value + " is not the next one";
    return "";
  }
  std::string take_state(const std::string& key, const std::optional<std::string>& value) {
    ++decisions_;
    if (!value) {
      jobs_.erase(key);
      return "";
    }
    JournalImage image{{key, *value}};
    if (key == "service") service_ = *value;
    image["service"] = service_;
    const auto state = decode_state(image);
    if (!state) return state.error().message();
    if (key == "service") return "";
    if (state->jobs.size() != 1) return "no job in " + key;
    const JobRecord& now = state->jobs.begin()->second;
    std::string wrong;
    if (const auto before = jobs_.find(key);
        before != jobs_.end() && before->second.instance == now.instance) {
      wrong = compare(before->second.state, now.state);
    }
    for (const Place& place : now.state.places) {
      const auto [at, is_new] =
          restarts_.emplace(std::pair(now.state.spec.id, place.assignment.generation.value),
                            place.assignment.restart_count);
      if (wrong.empty() && at->second != place.assignment.restart_count)
        wrong = "two counts in one generation";
      // A restart is counted when the generation fails, before the next one is formed.
      if (wrong.empty() && now.state.restarts_used > place.assignment.restart_count + 1)
        wrong = "two restarts in one generation";
    }
    jobs_.insert_or_assign(key, now);
    return wrong;
  }
  static std::string compare(const JobState& before, const JobState& now) {
    const std::int64_t generations = now.generation.value - before.generation.value;
    const int restarts = now.restarts_used - before.restarts_used;
    if (generations < 0) return "an older generation";
    if (restarts < 0) return "fewer restarts";
    if (restarts > generations + 1) return "restarts without generations";
    if (generations > 0) return "";
    for (const Place& place : now.places) {
      for (const Place& old : before.places) {
        if (old.node.agent_id == place.node.agent_id &&
            (old.assignment.first_rank != place.assignment.first_rank ||
             old.assignment.world_size != place.assignment.world_size ||
             old.assignment.store != place.assignment.store)) {
          return "another assignment in one generation";
        }
      }
    }
    return "";
  }

  std::optional<std::int64_t> leader_;
  std::int64_t term_ = 0, written_ = 0, terms_ = 0, decisions_ = 0;
  std::string service_;
  std::map<std::string, JobRecord> jobs_;
  std::map<std::pair<std::string, std::int64_t>, int> restarts_;
};

}  // namespace ddprun::testing_support
