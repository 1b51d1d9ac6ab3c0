// EventFeed: decides when a new edition of the status is made, and which readers are sent it.
//
// A reader is an open page. It is idle, or busy with taking an edition. A busy reader misses
// editions: when it is idle again, it is sent the newest one. So no queue grows, and a slow reader
// costs the others nothing.
//
//   - After a change, a new edition is made, but not before the pause after the former one is over.
//   - Without a change one is made every kRefresh, because ages and times grow. It also shows
//     readers that the service lives.
//   - The pause is kMinPause, or kRest times as long as the former edition took. So all readers
//     together use at most one part in kRest of the thread.
//   - Without an idle reader nothing is made.
//
// Owner: HttpEntry, on its one thread. Pure; times are arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// Returns the text as one event of a text/event-stream, for EventSource.
std::string event_text(std::string_view text);

class EventFeed {
 public:
  using Reader = std::uint64_t;

  static constexpr Duration kMinPause = std::chrono::milliseconds(500);
  static constexpr Duration kRefresh = std::chrono::seconds(5);
  static constexpr int kRest = 40;
  // The time that sending takes, for each byte and reader: an upper bound with TLS.
  static constexpr Duration kPerByte = std::chrono::nanoseconds(2);

  // Adds an idle reader, which has seen no edition. REQUIRES: it is none yet.
  void add(Reader reader) { readers_[reader] = {}; }
  void remove(Reader reader);
  // Reports that the reader has taken all that it was sent.
  void idle(Reader reader);
  // Reports that a new edition would differ.
  void changed() { has_changed_ = true; }
  // Ends the pause after the newest edition.
  void hurry() { not_before_.reset(); }

  std::size_t size() const { return readers_.size(); }
  // Returns when turn() has something to do; nullopt: not before another call.
  std::optional<TimePoint> deadline(TimePoint now) const;

  // Turn: make a new edition if `make` says so, call made(), and send the newest edition to these
  // readers, which are busy now.
  struct Turn {
    bool make = false;
    std::vector<Reader> to;
  };
  Turn turn(TimePoint now);
  // Reports that the edition of the last turn was made, and is sent to that many readers.
  void made(TimePoint begun, TimePoint done, std::size_t bytes, std::size_t readers);

 private:
  struct State {
    bool busy = false;
    std::uint64_t seen = 0;  // the edition that it was sent last; 0: none
  };

  std::map<Reader, State> readers_;
  bool has_changed_ = false;
  std::uint64_t edition_ = 0;         // the newest one; they are counted from 1
  std::optional<TimePoint> made_at_;  // nullopt: there is no edition that could be sent
  std::optional<TimePoint> not_before_;
};

}  // namespace ddprun
