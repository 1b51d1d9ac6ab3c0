// GenerationHistory: when the latest generations of a job were formed, when they ended, and why.
// It is for people: docs/how-to/monitoring.md describes what they see of it.
//
// Owner: Membership, on the service's thread. Pure; times are arguments.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/enum_names.h"
#include "base/ids.h"

namespace ddprun {

enum class GenerationEnd {
  kNone,         // it has not ended, as far as is known
  kUnknown,      // the next generation was formed, but how this one ended was not recorded
  kFailed,       // a worker or a node failed
  kResized,      // a node joined or left
  kRestarted,    // a person asked for a restart
  kInterrupted,  // the service did not run
  kStopped,      // the job was stopped
  kSucceeded,
};

// Names in pages and in the journal.
inline constexpr EnumNames<GenerationEnd, 8> kGenerationEndWords{
    {{GenerationEnd::kNone, "none"},
     {GenerationEnd::kUnknown, "unknown"},
     {GenerationEnd::kFailed, "failed"},
     {GenerationEnd::kResized, "resized"},
     {GenerationEnd::kRestarted, "restarted"},
     {GenerationEnd::kInterrupted, "interrupted"},
     {GenerationEnd::kStopped, "stopped"},
     {GenerationEnd::kSucceeded, "succeeded"}}};

struct GenerationRecord {
  Generation number;
  int nodes = 0;                         // 0: not known
  int ranks = 0;                         // 0: not known
  std::optional<TimePoint> formed = {};  // nullopt: not known
  std::optional<TimePoint> ended = {};   // its first failure, or since when it is being ended
  GenerationEnd end = GenerationEnd::kNone;
  std::string what = {};  // why it ended; at most GenerationHistory::kTextBytes

  friend bool operator==(const GenerationRecord&, const GenerationRecord&) = default;
};

class GenerationHistory {
 public:
  static constexpr std::size_t kKept = 16;
  static constexpr std::size_t kTextBytes = 256;

  GenerationHistory() = default;
  // Continues the history of an earlier run of the service.
  explicit GenerationHistory(std::vector<GenerationRecord> records);

  // Records that a generation is formed.
  void form(Generation number, int nodes, int ranks, TimePoint now);
  // Records a generation that an earlier run of the service has formed, if it is not the newest
  // one already. nodes, ranks: 0 if they are not known.
  void recall(Generation number, int nodes, int ranks);
  // Records since when the newest generation is being ended, and why. The first call counts.
  void leave(GenerationEnd end, std::string what, TimePoint when);
  // Records that the newest generation runs, also if an earlier run of the service has begun to end
  // it.
  void go_on();
  // Replaces the reason of leave() by the one that was found later.
  void judge(GenerationEnd end, std::string what);

  // Returns the last kKept generations, the oldest first.
  const std::vector<GenerationRecord>& records() const { return records_; }

 private:
  void add(GenerationRecord record);

  std::vector<GenerationRecord> records_;
};

}  // namespace ddprun
