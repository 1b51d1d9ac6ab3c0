// CollectiveLog: a rank's book of the collectives that it has called, for calls that the ranks carry
// out without a word between them, as NCCL's are; and what can be read from the books of all ranks.
//
// A rank shows the others a note: how many collectives it has called, and those around the oldest
// that is not over, the latest where all are. Beside each stands a chain: a digest of all calls up
// to it. So ranks that have a call of one number in view know whether they have called the same
// since the beginning, however far one of them is ahead. How much goes where in an all_to_all need
// not be the same: of that stands a balance there, of all calls up to it, which is nothing over all
// ranks if their pairs agree.
//
// Messages are counted by themselves, those of a pair of ranks one way: the log of either has
// their sizes, and a chain of these.
//
// Values and functions, pure but for read_notes(); any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "worker_lib/collective/call_header.h"
#include "worker_lib/nccl/core/pair_balance.h"

namespace ddprun {

class CpuGroup;
struct CallNote;

struct CollectiveLogEntry {
  CallHeader call;
  std::uint64_t chain = 0;
  PairBalance pairs;
};

// A send or receive.
struct MessageEntry {
  std::uint64_t number = 0;  // of those to, or from, this peer, from 1
  std::uint64_t bytes = 0;
  std::uint64_t chain = 0;
  std::int32_t peer = -1;
  std::uint16_t place = 0;  // see CollectiveLog::enter()
  std::uint16_t is_send = 0;
};

class CollectiveLog {
 public:
  static constexpr std::size_t kShown = 20;          // entries in a note
  static constexpr std::size_t kShownMessages = 18;  // likewise

  // Writes a call down and returns its number, from 1. place: which of its devices the rank uses,
  // in the order in which it came to use them. pairs: of an all_to_all.
  std::uint64_t enter(CallHeader call, int place, const PairBalance& pairs = {});
  // All calls before this one are over.
  void end_before(std::uint64_t number);

  // The same for a message; number and chain are filled in. call: of all calls, a batch being one.
  void enter_message(std::uint64_t call, MessageEntry message);
  void end_messages_before(std::uint64_t call);
  // Those of a call that is not over.
  std::vector<MessageEntry> messages_of(std::uint64_t call) const;
  // Whether a message is not over whose peer's note is not there.
  bool awaits_unseen(std::span<const std::optional<CallNote>> by_rank) const;

  std::uint64_t called() const { return called_; }
  // Grows with every entry.
  std::uint64_t entered() const { return called_ + messages_called_; }
  // At most CpuGroup::kMaxNoteBytes.
  std::string note() const;

 private:
  std::uint64_t called_ = 0;
  std::uint64_t oldest_ = 1;         // that is not over
  std::uint64_t chain_ = 0;          // of all calls
  PairBalance pairs_;                // of all calls
  std::deque<CollectiveLogEntry> entries_;  // up to the last call

  struct Message {
    std::uint64_t call = 0;
    MessageEntry entry;
  };
  std::uint64_t messages_called_ = 0;
  std::uint64_t messages_over_ = 0;  // those of calls before this one
  std::deque<Message> messages_;     // up to the last one
  std::map<std::tuple<int, int, bool>, MessageEntry> last_messages_;  // by peer, place and way
};

struct CallNote {
  std::uint64_t called = 0;
  std::uint64_t first = 1;  // number of entries[0]
  std::vector<CollectiveLogEntry> entries;
  std::vector<MessageEntry> messages;

  const CollectiveLogEntry* find(std::uint64_t number) const;
};

// nullopt: it is empty, or none.
std::optional<CallNote> read_note(std::string_view note);
// Other nodes tell their notes within.
inline constexpr Duration kNotePatience = std::chrono::milliseconds(200);
// Those of all ranks, see CpuGroup::notes().
std::vector<std::optional<CallNote>> read_notes(CpuGroup& peers, Duration patience);

// How the ranks disagree, where they do: the first call, of those in view, that is not the same on
// all ranks that have called it, as a table of who called what; or the first all_to_all, of those
// that all ranks have in view, in which one sends what another does not await; or the first message
// of a pair, of those that both have in view, that is not of one size.
std::optional<std::string> find_disagreement(std::span<const std::optional<CallNote>> by_rank);

// Who has not called the collective of this number, and what they called last, in words; no ranks:
// everybody has. A rank without a note has called nothing.
struct MissingRanks {
  std::vector<int> ranks;
  std::string text;
};
MissingRanks find_missing(std::uint64_t number, std::span<const std::optional<CallNote>> by_rank);

// Whose ends of this rank's messages have not come. A rank without a note has called nothing.
struct MissingEnds {
  std::vector<int> ranks;
  bool is_sure = true;  // false: they may be out of view
};
MissingEnds find_missing_ends(std::span<const MessageEntry> messages, int own,
                              std::span<const std::optional<CallNote>> by_rank);

// Which of these ranks have called what this one has not, in words: "rank 0 has called nccl
// all_reduce #1 of 4 f32 (sum)"; empty: none has.
std::string find_ahead(std::span<const int> ranks, int own,
                       std::span<const std::optional<CallNote>> by_rank);

}  // namespace ddprun
