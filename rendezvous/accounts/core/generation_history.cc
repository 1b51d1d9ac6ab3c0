#include "rendezvous/accounts/core/generation_history.h"

#include <utility>

#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

GenerationHistory::GenerationHistory(std::vector<GenerationRecord> records)
    : records_(std::move(records)) {}

void GenerationHistory::add(GenerationRecord record) {
  if (!records_.empty() && records_.back().end == GenerationEnd::kNone) {
    records_.back().end = GenerationEnd::kUnknown;
  }
  records_.push_back(std::move(record));
  if (records_.size() > kKept) records_.erase(records_.begin());
}

void GenerationHistory::form(Generation number, int nodes, int ranks, TimePoint now) {
  add({.number = number, .nodes = nodes, .ranks = ranks, .formed = now});
}

void GenerationHistory::recall(Generation number, int nodes, int ranks) {
  if (records_.empty() || records_.back().number != number) {
    add({.number = number, .nodes = nodes, .ranks = ranks});
  } else if (records_.back().nodes == 0) {
    records_.back().nodes = nodes;
    records_.back().ranks = ranks;
  }
}

void GenerationHistory::leave(GenerationEnd end, std::string what, TimePoint when) {
  if (records_.empty() || records_.back().end != GenerationEnd::kNone) return;
  records_.back().ended = when;
  judge(end, std::move(what));
}

void GenerationHistory::go_on() {
  if (records_.empty()) return;
  records_.back().ended.reset();
  records_.back().end = GenerationEnd::kNone;
  records_.back().what.clear();
}

void GenerationHistory::judge(GenerationEnd end, std::string what) {
  if (records_.empty()) return;
  records_.back().end = end;
  records_.back().what = clipped(std::move(what), kTextBytes);
}

}  // namespace ddprun
