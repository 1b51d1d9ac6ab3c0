#include "rendezvous/persistence/core/fenced_writes.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace ddprun {

Result<void> FencedWrites::keep(std::uint64_t number, JournalEntry entry) {
  DDPRUN_ASSERT(number > newest_, "changes are numbered in their order");
  newest_ = number;
  if (entry.key.size() + entry.value.size() > kMostBytes) {
    too_large_.try_emplace(entry.key, number);
    return invalid_argument("the change of " + entry.key + " has " +
                            std::to_string(entry.value.size()) + " bytes, more than etcd takes (" +
                            std::to_string(kMostBytes) + ")");
  }
  const auto replaced = too_large_.find(entry.key);
  const std::uint64_t first = replaced == too_large_.end() ? number : replaced->second;
  if (replaced != too_large_.end()) too_large_.erase(replaced);
  const auto [at, is_new] = waiting_.try_emplace(std::move(entry.key), Change{first, 0, {}});
  at->second.last = number;
  at->second.value = std::move(entry.value);
  return {};
}

std::optional<FencedWrite> FencedWrites::next() {
  if (is_under_way_ || is_lost_) return std::nullopt;
  if (!write_) {
    if (waiting_.empty()) return std::nullopt;
    // The oldest changes first, because messages wait for them.
    std::vector<decltype(waiting_)::const_iterator> oldest;
    for (auto at = waiting_.cbegin(); at != waiting_.cend(); ++at) oldest.push_back(at);
    std::ranges::sort(oldest, {}, [](const auto& at) { return at->second.first; });
    write_.emplace();
    write_->term = term_;
    write_->last = last_;
    write_->chain_value = std::to_string(term_) + " " + std::to_string(++writes_);
    std::size_t bytes = 0;
    for (const auto& at : oldest) {
      const auto& [key, change] = *at;
      bytes += key.size() + change.value.size();
      if (!write_->entries.empty() && bytes > kMostBytes) break;
      write_->entries.push_back({key, change.value});
      written_numbers_[key] = change.last;
      if (write_->entries.size() == kMostEntries) break;
    }
  }
  is_under_way_ = true;
  return write_;
}

void FencedWrites::written(EtcdRevision revision) {
  DDPRUN_ASSERT(write_ && revision > last_, "a write has made a new revision");
  last_ = revision;
  is_under_way_ = false;
  write_.reset();
  for (const auto& [key, number] : std::exchange(written_numbers_, {})) {
    const auto at = waiting_.find(key);
    if (at->second.last == number) {
      waiting_.erase(at);
    } else {
      at->second.first = number + 1;  // at the earliest
    }
  }
  durable_ = newest_;
  for (const auto& [key, change] : waiting_) durable_ = std::min(durable_, change.first - 1);
  for (const auto& [key, first] : too_large_) durable_ = std::min(durable_, first - 1);
}

void FencedWrites::unknown() { is_under_way_ = false; }

void FencedWrites::refused(const FenceState& found) {
  DDPRUN_ASSERT(write_.has_value(), "only a write is refused");
  is_under_way_ = false;
  if (found.leader_created != term_) {
    is_lost_ = true;
  } else if (found.chain_value == write_->chain_value) {
    written(found.chain_modified);
  } else {
    // Only the leader of this term writes the chain key, so it was changed by hand.
    is_lost_ = found.chain_modified != last_;
  }
}

}  // namespace ddprun
