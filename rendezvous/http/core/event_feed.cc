#include "rendezvous/http/core/event_feed.h"

#include <algorithm>

namespace ddprun {

std::string event_text(std::string_view text) {
  std::string event = "data: ";
  event.reserve(text.size() + text.size() / 16 + 16);
  for (const char c : text) {
    event += c;
    if (c == '\n') event += "data: ";  // each line of the text begins so
  }
  return event + "\n\n";
}

void EventFeed::remove(Reader reader) {
  readers_.erase(reader);
  if (readers_.empty()) made_at_.reset();  // the edition is not kept, and grows old
}

void EventFeed::idle(Reader reader) {
  if (const auto found = readers_.find(reader); found != readers_.end()) found->second.busy = false;
}

std::optional<TimePoint> EventFeed::deadline(TimePoint now) const {
  bool has_idle = false;
  for (const auto& [reader, state] : readers_) {
    if (state.busy) continue;
    if (made_at_ && state.seen < edition_) return now;
    has_idle = true;
  }
  if (!has_idle) return std::nullopt;
  const TimePoint wanted = !made_at_ || has_changed_ ? now : *made_at_ + kRefresh;
  return std::max({now, wanted, not_before_.value_or(now)});
}

EventFeed::Turn EventFeed::turn(TimePoint now) {
  Turn turn;
  const bool has_idle = std::any_of(readers_.begin(), readers_.end(),
                                    [](const auto& reader) { return !reader.second.busy; });
  const bool is_due = !made_at_ || has_changed_ || now >= *made_at_ + kRefresh;
  if (has_idle && is_due && (!not_before_ || now >= *not_before_)) {
    turn.make = true;
    ++edition_;
    made_at_ = now;
    has_changed_ = false;
  }
  if (!made_at_) return turn;
  for (auto& [reader, state] : readers_) {
    if (state.busy || state.seen == edition_) continue;
    state = {.busy = true, .seen = edition_};
    turn.to.push_back(reader);
  }
  return turn;
}

void EventFeed::made(TimePoint begun, TimePoint done, std::size_t bytes, std::size_t readers) {
  const Duration cost = (done - begun) + kPerByte * static_cast<Duration::rep>(bytes * readers);
  not_before_ = done + std::max(kMinPause, kRest * cost);
}

}  // namespace ddprun
