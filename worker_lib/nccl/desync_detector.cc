#include "worker_lib/nccl/desync_detector.h"

#include <algorithm>

namespace ddprun {
namespace {

constexpr Duration kLookInterval = std::chrono::milliseconds(80);
constexpr Duration kQuestionInterval = std::chrono::milliseconds(250);
constexpr Duration kPartnerInterval = std::chrono::milliseconds(500);
constexpr Duration kCalmQuestionInterval = std::chrono::milliseconds(500);
constexpr Duration kLongestPartnerInterval = std::chrono::seconds(5);

}  // namespace

std::optional<std::string> DesyncDetector::look(TimePoint now, bool has_moved, const Sight& sight) {
  if (has_moved) moved_at_ = now;
  if (now - looked_at_ < kLookInterval) return std::nullopt;
  looked_at_ = now;
  CallNotes notes = sight.read(Duration::zero());
  std::optional<std::string> seen = find_disagreement(notes);
  // The message is a table of all ranks' calls, so the notes of other nodes are needed, too.
  if (seen || is_suspected_ || asks(now, notes, sight)) {
    asked_at_ = now;
    notes = sight.read(kNotePatience);
    seen = find_disagreement(notes);
  }
  const bool is_believed = is_suspected_ || now - moved_at_ >= kLookInterval;
  is_suspected_ = seen.has_value();
  return is_believed ? seen : std::nullopt;
}

bool DesyncDetector::asks(TimePoint now, const CallNotes& notes, const Sight& sight) const {
  const Duration stuck = now - moved_at_;
  const Duration since = now - asked_at_;
  const auto first = std::ranges::find_if(notes, [](const auto& note) { return note.has_value(); });
  if (first - notes.begin() == rank_) {
    return since >= (stuck < kQuestionInterval ? kCalmQuestionInterval : kQuestionInterval);
  }
  return stuck >= kPartnerInterval &&
         since >= std::clamp(stuck / 4, kPartnerInterval, kLongestPartnerInterval) &&
         sight.awaits_unseen(notes);
}

}  // namespace ddprun
