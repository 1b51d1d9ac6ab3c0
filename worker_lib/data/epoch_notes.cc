#include "worker_lib/data/epoch_notes.h"

#include <algorithm>
#include <mutex>
#include <ranges>
#include <utility>

#include "base/concat.h"

namespace ddprun::detail {
namespace {

struct NotesOfProcess {
  std::mutex mutex;
  std::vector<std::weak_ptr<const EpochNote>> notes = {};  // the newest one is the last
};

NotesOfProcess& notes_of_process() {
  static NotesOfProcess notes;
  return notes;
}

bool is_alike(const EpochNote& a, const EpochNote& b) {
  return a.choice.sampler == b.choice.sampler && a.rank == b.rank && a.world_size == b.world_size;
}

bool does_count(const EpochNote& note, const ProcessGroup& group) {
  return (note.rank == group.rank() && note.world_size == group.size()) ||
         std::ranges::count(note.groups, group.notes()) > 0;
}

}  // namespace

void replace_note(std::shared_ptr<const EpochNote>& own, EpochNote next) {
  NotesOfProcess& all = notes_of_process();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.notes, [&](const auto& one) {
    const auto note = one.lock();
    return !note || note == own;
  });
  next.number = 0;
  if (own && is_alike(*own, next)) {
    next.number = own->number;
  } else {
    for (const auto& one : all.notes)
      if (const auto note = one.lock(); note && is_alike(*note, next))
        next.number = std::max(next.number, note->number + 1);
  }
  own = std::make_shared<const EpochNote>(std::move(next));
  all.notes.push_back(own);
}

ChosenEpochs chosen_epochs(const ProcessGroup& group) {
  NotesOfProcess& all = notes_of_process();
  const std::lock_guard lock(all.mutex);
  ChosenEpochs result;
  for (const auto& one : all.notes | std::views::reverse) {
    const auto note = one.lock();
    if (!note || !does_count(*note, group)) continue;
    result.push_back(note->choice);
    if (note->number > 0) result.back().sampler += concat(" #", note->number);
  }
  return result;
}

}  // namespace ddprun::detail
