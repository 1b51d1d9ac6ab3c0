#include "worker_lib/nccl/collective_log.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/concat.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {
namespace {

constexpr std::uint64_t kLookBack = 8;  // entries before the oldest one that has not ended
constexpr std::size_t kMostParted = 3;  // missing ranks whose last calls are listed

// Both ends run the same build on machines of the same kind.
struct NoteHead {
  std::uint64_t called = 0;
  std::uint64_t first = 1;
  std::uint64_t count = 0;
  std::uint64_t messages = 0;
};
static_assert(sizeof(NoteHead) + CollectiveLog::kShown * sizeof(CollectiveLogEntry) +
                  CollectiveLog::kShownMessages * sizeof(MessageEntry) <=
              kMaxNoteBytes);

std::uint64_t mixed(std::uint64_t chain, std::uint64_t value) {
  chain = (chain ^ value) * 0x9e3779b97f4a7c15u;
  return chain ^ chain >> 29;
}

// Digests the fields that must be equal, as operator== of CallHeader does.
std::uint64_t chain_of(std::uint64_t before, const CallHeader& call, int place) {
  std::uint64_t chain = mixed(before, call.sequence);
  chain = mixed(chain, call.count);
  chain = mixed(chain, std::uint64_t(call.kind) | std::uint64_t(call.type) << 8 |
                           std::uint64_t(call.op) << 16 | std::uint64_t(call.phase) << 24 |
                           std::uint64_t(static_cast<std::uint32_t>(call.root)) << 32);
  return mixed(chain, std::uint64_t(call.digest) | std::uint64_t(call.tensors) << 32 |
                          std::uint64_t(place) << 48);
}

std::string too_long_ago(const char* what, const CallHeader& seen) {
  return concat("the ranks disagree in ", what, " ", describe(seen),
                ", which is too long ago to be shown");
}

// Returns "24 B (6 f32)".
std::string amount(std::uint64_t bytes, ElementType type) {
  const std::size_t each = size_of(type);
  const bool is_whole = each > 1 && bytes % each == 0;
  return concat(bytes, " B", is_whole ? concat(" (", bytes / each, " ", to_text(type), ")") : "");
}

std::string excess_text(const CallHeader& call, const PairExcess& excess) {
  const std::string text = "the ranks disagree in " + describe(call) + ": ";
  const std::string from = name_rank(excess.from), to = name_rank(excess.to);
  const std::uint64_t bytes = excess.bytes;
  const std::string difference =
      excess.bytes > 0 ? amount(bytes, call.type) + " more" : amount(-bytes, call.type) + " less";
  if (excess.from >= 0 && excess.to >= 0)
    return concat(text, from, " sends ", to, " ", difference, " than ", to, " awaits");
  const std::string in_all =
      excess.bytes == 0 ? ", but the same amount in all" : ", " + difference + " in all";
  if (excess.from >= 0)
    return concat(text, from, " sends several ranks what they do not expect", in_all);
  if (excess.to >= 0)
    return concat(text, "several ranks send ", to, " what it does not expect", in_all);
  return text + "several ranks send several others what these do not expect";
}

std::string unequal_text(int from, const MessageEntry& sent, const MessageEntry& awaited) {
  const std::string sender = name_rank(from), receiver = name_rank(sent.peer);
  if (sent.bytes == awaited.bytes) {
    return concat("the ranks disagree in the size of a message of ", sender, " to ", receiver,
                  " before #", sent.number, ", which is too long ago to be shown");
  }
  return concat("the ranks disagree: ", sender, "'s send #", sent.number, " to ", receiver,
                " is of ", sent.bytes, " B, ", receiver, "'s recv #", sent.number, " from ", sender,
                " of ", awaited.bytes, " B");
}

std::optional<std::string> find_unequal_message(CallNotesView by_rank) {
  for (int from = 0; from < static_cast<int>(by_rank.size()); ++from) {
    const auto& sender = by_rank[from];
    if (!sender) continue;
    for (const MessageEntry& sent : sender->messages) {
      const auto& receiver = by_rank[sent.peer];
      if (!sent.is_send || !receiver) continue;
      const auto is_same = [&](const MessageEntry& other) {
        return !other.is_send && other.peer == from && other.place == sent.place &&
               other.number == sent.number;
      };
      const auto awaited = std::ranges::find_if(receiver->messages, is_same);
      if (awaited == receiver->messages.end() || awaited->chain == sent.chain) continue;
      return unequal_text(from, sent, *awaited);
    }
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t CollectiveLog::enter(CallHeader call, int place, const PairBalance& pairs) {
  call.sequence = ++called_;
  chain_ = chain_of(chain_, call, place);
  pairs_ += of_call(called_, pairs);
  entries_.push_back({call, chain_, pairs_});
  // While all calls have ended, end_before() does not trim the entries.
  if (oldest_ == called_ && entries_.size() > kShown) entries_.pop_front();
  return called_;
}

void CollectiveLog::end_before(std::uint64_t number) {
  oldest_ = number;
  while (entries_.size() > kShown && called_ - entries_.size() + 1 + kLookBack < oldest_) {
    entries_.pop_front();
  }
}

void CollectiveLog::enter_message(std::uint64_t call, MessageEntry message) {
  MessageEntry& last = last_messages_[{message.peer, message.place, message.is_send != 0}];
  message.number = last.number + 1;
  message.chain = mixed(last.chain, message.bytes);
  last = message;
  messages_.push_back({call, message});
  ++messages_called_;
}

void CollectiveLog::end_messages_before(std::uint64_t call) {
  messages_over_ = call;
  while (messages_.size() > kShownMessages && messages_[kLookBack].call < call) {
    messages_.pop_front();
  }
}

std::vector<MessageEntry> CollectiveLog::messages_of(std::uint64_t call) const {
  std::vector<MessageEntry> found;
  for (const Message& one : messages_) {
    if (one.call == call) found.push_back(one.entry);
  }
  return found;
}

bool CollectiveLog::awaits_unseen(CallNotesView by_rank) const {
  return std::ranges::any_of(messages_, [&](const Message& one) {
    return one.call >= messages_over_ && !by_rank[one.entry.peer];
  });
}

std::string CollectiveLog::note() const {
  // The last entries, but beginning no later than the oldest call that has not ended.
  const std::uint64_t in_view = called_ - entries_.size() + 1;
  std::uint64_t first = called_ < kShown ? 1 : called_ - kShown + 1;
  first = std::min(first, oldest_ > kLookBack ? oldest_ - kLookBack : 1);
  first = std::max(first, in_view);
  const std::uint64_t count = std::min<std::uint64_t>(kShown, called_ + 1 - first);
  const std::uint64_t messages = std::min(kShownMessages, messages_.size());
  std::string note;
  const auto add = [&note](const auto& value) {
    note.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  add(NoteHead{.called = called_, .first = first, .count = count, .messages = messages});
  for (std::uint64_t i = 0; i < count; ++i) add(entries_[first - in_view + i]);
  for (std::uint64_t i = 0; i < messages; ++i) add(messages_[i].entry);
  return note;
}

const CollectiveLogEntry* CallNote::find(std::uint64_t number) const {
  if (number < first || number - first >= entries.size()) return nullptr;
  return &entries[number - first];
}

std::optional<CallNote> read_note(std::string_view note) {
  NoteHead head;
  if (note.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, note.data(), sizeof head);
  if (head.count > CollectiveLog::kShown || head.messages > CollectiveLog::kShownMessages ||
      note.size() != sizeof head + head.count * sizeof(CollectiveLogEntry) +
                         head.messages * sizeof(MessageEntry)) {
    return std::nullopt;
  }
  CallNote read{.called = head.called, .first = head.first, .entries = {}, .messages = {}};
  note.remove_prefix(sizeof head);
  const auto take = [&note](auto& values, std::uint64_t count) {
    values.resize(count);
    for (auto& one : values) {
      std::memcpy(static_cast<void*>(&one), note.data(), sizeof one);
      note.remove_prefix(sizeof one);
    }
  };
  take(read.entries, head.count);
  take(read.messages, head.messages);
  return read;
}

CallNotes read_notes(CpuGroup& peers, Duration patience) {
  CallNotes notes;
  for (const std::string& one : peers.notes(patience)) notes.push_back(read_note(one));
  return notes;
}

std::optional<std::string> find_disagreement(CallNotesView by_rank) {
  std::uint64_t first = UINT64_MAX;
  std::uint64_t last = 0;
  for (const auto& note : by_rank) {
    if (!note) continue;
    first = std::min(first, note->first);
    last = std::max(last, note->first + note->entries.size());
  }
  bool agreed_before = first == 1;  // all ranks agreed up to the previous call
  for (std::uint64_t number = first; number < last; ++number) {
    std::vector<int> ranks;
    std::vector<int> absent;
    std::vector<CallHeader> calls;
    std::vector<std::uint64_t> chains;
    PairBalance pairs;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      const auto& note = by_rank[rank];
      const CollectiveLogEntry* entry = note ? note->find(number) : nullptr;
      if (!entry) {
        if (!note || note->called < number) absent.push_back(rank);
        continue;
      }
      ranks.push_back(rank);
      calls.push_back(entry->call);
      chains.push_back(entry->chain);
      pairs += entry->pairs;
    }
    if (calls.empty()) continue;
    if (std::ranges::count(chains, chains[0]) == std::ssize(chains)) {
      const bool are_all = ranks.size() == by_rank.size();
      const auto excess = are_all ? excess_in(alone(number, pairs), ranks.size()) : std::nullopt;
      if (excess && agreed_before) return excess_text(calls[0], *excess);
      if (excess) return too_long_ago("an all_to_all up to", calls[0]);
      agreed_before = are_all;
      continue;
    }
    if (std::ranges::count(calls, calls[0]) != std::ssize(calls)) {
      std::string table = disagreement(calls, ranks);
      if (!absent.empty()) table += "; " + name_ranks(absent) + " called nothing there yet";
      return table;
    }
    if (agreed_before) {
      return concat("the ranks disagree: ", name_ranks(ranks), " called ", describe(calls[0]),
                    " with tensors on devices that do not belong together: each rank must use its "
                    "devices in the same order");
    }
    return too_long_ago("a call before", calls[0]);
  }
  return find_unequal_message(by_rank);
}

MissingRanks find_missing(std::uint64_t number, CallNotesView by_rank) {
  MissingRanks missing;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!by_rank[rank] || by_rank[rank]->called < number) missing.ranks.push_back(rank);
  }
  if (missing.ranks.empty()) return missing;
  missing.text =
      name_ranks(missing.ranks) + (missing.ranks.size() == 1 ? " has" : " have") + " not come";
  for (std::size_t i = 0; i < std::min(missing.ranks.size(), kMostParted); ++i) {
    const auto& note = by_rank[missing.ranks[i]];
    const CollectiveLogEntry* last = note && note->called > 0 ? note->find(note->called) : nullptr;
    missing.text += (i == 0 ? " (" : "; ") + name_rank(missing.ranks[i]);
    missing.text += last ? " called last " + describe(last->call) : " has called nothing yet";
  }
  missing.text += missing.ranks.size() > kMostParted ? "; ...)" : ")";
  return missing;
}

MissingEnds find_missing_ends(std::span<const MessageEntry> messages, int own,
                              CallNotesView by_rank) {
  std::set<int> ranks;
  bool is_sure = true;
  for (const MessageEntry& one : messages) {
    const auto& note = by_rank[one.peer];
    const auto is_there = [&](const MessageEntry& other) {
      return other.peer == own && other.place == one.place && other.is_send != one.is_send &&
             other.number >= one.number;
    };
    if (note && std::ranges::any_of(note->messages, is_there)) continue;
    ranks.insert(one.peer);
    if (note && note->messages.size() == CollectiveLog::kShownMessages) is_sure = false;
  }
  return {{ranks.begin(), ranks.end()}, is_sure};
}

std::string find_ahead(std::span<const int> ranks, int own, CallNotesView by_rank) {
  const auto called_by = [&](int rank) {
    const auto& note = by_rank[rank];
    return note ? note->called : 0;
  };
  std::string text;
  std::size_t named = 0;
  for (const int rank : ranks) {
    if (called_by(rank) <= called_by(own)) continue;
    if (++named > kMostParted) return text + "; ...";
    const CallNote& note = *by_rank[rank];
    const CollectiveLogEntry* beyond = note.find(called_by(own) + 1);
    if (!beyond) beyond = note.find(note.called);
    if (!beyond) continue;
    text +=
        (text.empty() ? "" : "; ") + name_rank(rank) + " has called nccl " + describe(beyond->call);
  }
  return text;
}

}  // namespace ddprun
