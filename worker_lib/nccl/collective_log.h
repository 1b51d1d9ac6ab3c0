// CollectiveLog: records the collectives that a rank has called. It is for calls that the ranks
// carry out without exchanging messages about them, as NCCL's. The functions below compare the
// logs of all ranks.
//
// A rank shows the others a note. It has the number of collectives that the rank has called. It
// has the entries around the oldest call that has not ended, or the latest entries if all have
// ended. Each entry has a chain: a digest of all calls up to it. So ranks whose notes share a
// call know whether they have made the same calls since the beginning, even if one rank is far
// ahead. The sizes of an all_to_all may differ by pair of ranks. For them each entry has a
// balance of all calls up to it, whose sum over all ranks is zero if the pairs agree.
//
// Messages are counted separately, by pair of ranks and direction. The logs of both ends have
// their sizes, and a chain of the sizes.
//
// Values and functions, pure except for read_notes(); any thread.
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
// The notes of all ranks, by rank; nullopt: the rank shows none.
using CallNotes = std::vector<std::optional<CallNote>>;
using CallNotesView = std::span<const std::optional<CallNote>>;

struct CollectiveLogEntry {
  CallHeader call;
  std::uint64_t chain = 0;
  PairBalance pairs;
};

// A send or receive.
struct MessageEntry {
  std::uint64_t number = 0;  // among those to, or from, this peer; from 1
  std::uint64_t bytes = 0;
  std::uint64_t chain = 0;
  std::int32_t peer = -1;
  std::uint16_t place = 0;  // see CollectiveLog::enter()
  std::uint16_t is_send = 0;
};

class CollectiveLog {
 public:
  static constexpr std::size_t kShown = 20;          // entries in a note
  static constexpr std::size_t kShownMessages = 18;  // the same for messages

  // Records a call and returns its number, from 1. place: the index of the device, in the order
  // in which the rank came to use its devices. pairs: for an all_to_all.
  std::uint64_t enter(CallHeader call, int place, const PairBalance& pairs = {});
  // Marks all calls before this one as ended.
  void end_before(std::uint64_t number);

  // Records a message; number and chain are filled in. call: its number among all calls, where a
  // batch is one call.
  void enter_message(std::uint64_t call, MessageEntry message);
  void end_messages_before(std::uint64_t call);
  // Returns the messages of a call that has not ended.
  std::vector<MessageEntry> messages_of(std::uint64_t call) const;
  // Returns whether a message has not ended whose peer's note is missing.
  bool awaits_unseen(CallNotesView by_rank) const;

  std::uint64_t called() const { return called_; }
  // Returns a number that grows with every entry.
  std::uint64_t entered() const { return called_ + messages_called_; }
  // Returns the note; at most kMaxNoteBytes.
  std::string note() const;

 private:
  std::uint64_t called_ = 0;
  std::uint64_t oldest_ = 1;                // that has not ended
  std::uint64_t chain_ = 0;                 // of all calls
  PairBalance pairs_;                       // of all calls
  std::deque<CollectiveLogEntry> entries_;  // up to the last call

  struct Message {
    std::uint64_t call = 0;
    MessageEntry entry;
  };
  std::uint64_t messages_called_ = 0;
  std::uint64_t messages_over_ = 0;  // all messages of calls before this one have ended
  std::deque<Message> messages_;     // up to the last one
  std::map<std::tuple<int, int, bool>, MessageEntry> last_messages_;  // by peer, place and
                                                                      // direction
};

struct CallNote {
  std::uint64_t called = 0;
  std::uint64_t first = 1;  // number of entries[0]
  std::vector<CollectiveLogEntry> entries;
  std::vector<MessageEntry> messages;

  const CollectiveLogEntry* find(std::uint64_t number) const;
};

// Parses a note; nullopt if it is empty or invalid.
std::optional<CallNote> read_note(std::string_view note);
// Timeout for notes of other nodes.
inline constexpr Duration kNotePatience = std::chrono::milliseconds(200);
// Returns the notes of all ranks; see CpuGroup::notes().
CallNotes read_notes(CpuGroup& peers, Duration patience);

// Describes the first disagreement of the ranks, if there is one:
// - a call that differs among the ranks that have called it, as a table of the ranks' calls;
// - an all_to_all, of those in the notes of all ranks, in which one rank sends another size than
//   its peer expects;
// - a message of a pair, of those in the notes of both, with two sizes.
std::optional<std::string> find_disagreement(CallNotesView by_rank);

// The ranks that have not called the collective of this number, and their last calls as text. No
// ranks: all have called it. A rank without a note has called nothing.
struct MissingRanks {
  std::vector<int> ranks;
  std::string text;
};
MissingRanks find_missing(std::uint64_t number, CallNotesView by_rank);

// The ranks whose ends of this rank's messages have not come. A rank without a note has called
// nothing.
struct MissingEnds {
  std::vector<int> ranks;
  bool is_sure = true;  // false: the ends may be older than the notes
};
MissingEnds find_missing_ends(std::span<const MessageEntry> messages, int own,
                              CallNotesView by_rank);

// Describes which of these ranks have made calls that this one has not: "rank 0 has called nccl
// all_reduce #1 of 4 f32 (sum)". Empty: none.
std::string find_ahead(std::span<const int> ranks, int own, CallNotesView by_rank);

}  // namespace ddprun
