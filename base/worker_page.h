// WorkerPage: the memory that a worker shares with its agent and the other ranks of its node.
// Without a system call, the worker writes its progress and its collectives there. The readers
// can read this even if the worker is stopped, hangs or is dead. docs/how-to/hangs.md describes the
// bytes for programs in other languages.
//
// The agent makes one memory file for all its workers (base/worker_page_file.h); worker n of
// the node finds its page at n * kWorkerPageBytes. The agent writes the first two fields before
// the worker starts, and nothing afterwards. All other fields begin as zero and are written by
// the worker. A worker without an agent makes its page itself. Readers may see the record of a
// call while it is written: its `number` is 0 then.
//
// Plain memory; any thread may report, one thread per group issues calls. Times are those of
// BootClock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/fnv1a.h"

namespace ddprun {

inline constexpr std::uint32_t kWorkerPageMagic = 0x50524444;  // "DDRP", little endian
// A worker that was built for another version runs without its page.
inline constexpr std::uint32_t kWorkerPageVersion = 2;
inline constexpr std::size_t kStepMarks = 64;
inline constexpr std::size_t kCheckpointMarks = 32;
inline constexpr std::size_t kFlightRecords = 1024;
inline constexpr std::size_t kFlightGroups = 128;
inline constexpr std::size_t kFlightGroupRanks = 112;
inline constexpr std::size_t kFlightGroupNameBytes = 40;
inline constexpr std::size_t kFlightOrigins = 256;
inline constexpr std::size_t kFlightOriginBytes = 512;
// Most of a page is never touched, and then takes no memory.
inline constexpr std::size_t kWorkerPageBytes = std::size_t{260} * 1024;

enum class FlightCall : std::uint8_t {
  kNone = 0,
  kAllReduce = 1,
  kReduce = 2,
  kBroadcast = 3,
  kAllGather = 4,
  kReduceScatter = 5,
  kGather = 6,
  kScatter = 7,
  kBarrier = 8,
  kSend = 9,
  kRecv = 10,
  kAllToAll = 11,
  kMonitoredBarrier = 12,
  kAllReduceCoalesced = 13,
  kReduceScatterCoalesced = 14,
  kAllGatherCoalesced = 15,
  kBroadcastCoalesced = 16,
};

// FlightType: the type of the elements: the number of PyTorch's ScalarType plus 1.
enum class FlightType : std::uint8_t {
  kNone = 0,  // unknown, or there are no elements
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kComplex32 = 9,
  kComplex64 = 10,
  kComplex128 = 11,
  kBool = 12,
  kBfloat16 = 16,
  kFloat8E5m2 = 24,
  kFloat8E4m3 = 25,
  kUint16 = 28,
  kUint32 = 29,
  kUint64 = 30,
};

// FlightOp: how the elements are reduced: the number of ddprun's ReduceOp plus 1.
enum class FlightOp : std::uint8_t {
  kNone = 0,
  kSum = 1,
  kAvg = 2,
  kProduct = 3,
  kMin = 4,
  kMax = 5,
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8,
  kPremulSum = 9,
};

// FlightRecord: one call into a group. The name is PyTorch's.
struct FlightRecord {
  // Numbers all calls of this process, from 1. 0: the record is being written.
  std::atomic<std::uint64_t> number;
  std::atomic<std::uint64_t> begun_ns;
  std::atomic<std::uint64_t> ended_ns;  // 0: it is in progress
  // The number of this collective in its group, from 1. For a send or recv: how many collectives
  // came before it.
  std::atomic<std::uint64_t> collective;
  std::atomic<std::uint64_t> bytes;    // of this rank's tensor
  std::atomic<std::uint64_t> group;    // 0: the world
  std::atomic<std::int32_t> peer{-1};  // root, source or destination; -1: none
  std::atomic<FlightCall> call;
  std::atomic<std::uint8_t> failed;
  std::atomic<FlightType> dtype;
  std::atomic<FlightOp> op;
  std::atomic<std::int32_t> tag;  // of a message
  // The place from which it was called: index into WorkerPage::origins plus 1; 0: unknown.
  std::atomic<std::uint32_t> origin;
};
static_assert(sizeof(FlightRecord) == 64);

// FlightGroup: a group of ranks, so that readers can name it. It is written once.
struct FlightGroup {
  std::uint64_t id = 0;
  std::uint32_t size = 0;
  std::uint32_t listed = 0;  // valid entries of `ranks`: the first ones of a larger group
  std::uint64_t digest = 0;  // of all ranks, in the group's order (flight_digest)
  std::array<char, kFlightGroupNameBytes> name{};  // ends at the first 0 or at the end of the field
  std::array<std::uint32_t, kFlightGroupRanks> ranks{};  // of the world, in the group's order
};
static_assert(sizeof(FlightGroup) == 512);

// FlightOrigin: the place from which calls were made, as text, the innermost function first. It
// ends at the first 0 or at the end of the field. It is written once.
using FlightOrigin = std::array<char, kFlightOriginBytes>;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// StepMark: when a step was reported.
struct StepMark {
  // Numbers the reports of this process, from 1. 0: the mark is being written.
  std::atomic<std::uint64_t> number;
  std::atomic<std::int64_t> step;
  std::atomic<std::uint64_t> ns;
  std::atomic<std::uint64_t> waited_ns;  // WorkerPage::waited_ns at that time
};
static_assert(sizeof(StepMark) == 32);

// CheckpointMark: when the training waited for a checkpoint.
struct CheckpointMark {
  // Numbers the waits of this process, from 1. 0: the mark is being written.
  std::atomic<std::uint64_t> number;
  std::atomic<std::uint64_t> begun_ns;
  std::atomic<std::uint64_t> ended_ns;
};
static_assert(sizeof(CheckpointMark) == 24);

struct WorkerPage {
  std::atomic<std::uint32_t> magic;
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint64_t> reports;  // number of step reports; 0: no step was reported
  std::atomic<std::int64_t> step;      // the last step that was reported, if any was
  // Grows whenever the worker made progress: a call into a group ended, or a checkpoint or an
  // evaluation went on.
  std::atomic<std::uint64_t> activity;
  std::atomic<std::uint64_t> calls;  // the number of the newest record
  // Above 0: the worker waits while another rank does something that takes long (a checkpoint,
  // an evaluation). That rank itself reports that it makes progress.
  std::atomic<std::uint64_t> patient;
  // How many entries of `groups` and `origins` below were written.
  std::atomic<std::uint32_t> group_count;
  std::atomic<std::uint32_t> origin_count;
  // The rank in the world and on the node. Written only if the worker has made its page itself.
  std::atomic<std::uint32_t> rank;
  std::atomic<std::uint32_t> local_rank;
  // 1: the program has reported that it reached its end. If the process fails afterwards, no
  // work is lost.
  std::atomic<std::uint32_t> finished;
  std::uint32_t unused = 0;
  // The time and the number of the first report of a step. Time 0: no step was reported.
  std::atomic<std::uint64_t> first_step_ns;
  std::atomic<std::int64_t> first_step;
  std::atomic<std::uint64_t> checkpoint_ns;  // for which the training waited for checkpoints
  std::atomic<std::uint64_t> waited_ns;      // for which threads were blocked in calls into groups
  std::array<StepMark, kStepMarks> marks{};  // report n is at (n - 1) % kStepMarks
  // How many steps the whole training has. 0 or less: not known.
  std::atomic<std::int64_t> total_steps;
  // What the rank spends its steps on (base/step_shares.h), in hundredths of a percent plus 1.
  // 0: not known.
  std::atomic<std::uint32_t> data_share;
  std::atomic<std::uint32_t> forward_share;
  std::atomic<std::uint32_t> backward_share;
  std::atomic<std::uint32_t> communication_share;
  std::atomic<std::uint32_t> checkpoint_share;
  std::uint32_t unused_after_shares = 0;
  // How many waits for checkpoints were reported. A wait is counted before its mark is written.
  std::atomic<std::uint64_t> checkpoints;
  // Wait n is at (n - 1) % kCheckpointMarks.
  std::array<CheckpointMark, kCheckpointMarks> checkpoint_marks{};
  std::array<std::uint64_t, 142> spare{};
  std::array<FlightRecord, kFlightRecords> records{};
  std::array<FlightGroup, kFlightGroups> groups{};
  std::array<FlightOrigin, kFlightOrigins> origins{};

  bool is_ours() const {
    return magic.load(std::memory_order_relaxed) == kWorkerPageMagic &&
           version.load(std::memory_order_relaxed) == kWorkerPageVersion;
  }
  // Returns the last step that was reported; nullopt: none was.
  std::optional<std::int64_t> last_step() const {
    if (reports.load(std::memory_order_acquire) == 0) return std::nullopt;
    return step.load(std::memory_order_relaxed);
  }
  StepMark& mark_of(std::uint64_t number) { return marks[(number - 1) % kStepMarks]; }
  const StepMark& mark_of(std::uint64_t number) const { return marks[(number - 1) % kStepMarks]; }
  CheckpointMark& checkpoint_of(std::uint64_t number) {
    return checkpoint_marks[(number - 1) % kCheckpointMarks];
  }
  const CheckpointMark& checkpoint_of(std::uint64_t number) const {
    return checkpoint_marks[(number - 1) % kCheckpointMarks];
  }
  FlightRecord& record_of(std::uint64_t number) { return records[(number - 1) % kFlightRecords]; }
  const FlightRecord& record_of(std::uint64_t number) const {
    return records[(number - 1) % kFlightRecords];
  }
};
static_assert(sizeof(WorkerPage) == kWorkerPageBytes);
// Programs in other languages write here, and so do programs of an older ddprun.
static_assert(offsetof(WorkerPage, data_share) == 2160 &&
              offsetof(WorkerPage, checkpoint_share) == 2176 &&
              offsetof(WorkerPage, checkpoints) == 2184 &&
              offsetof(WorkerPage, checkpoint_marks) == 2192 &&
              offsetof(WorkerPage, spare) == 2960 && offsetof(WorkerPage, records) == 4096);

// FlightEntry: a copy of a record, read consistently.
struct FlightEntry {
  std::uint64_t number = 0;
  std::uint64_t begun_ns = 0;
  std::uint64_t ended_ns = 0;
  std::uint64_t collective = 0;
  std::uint64_t bytes = 0;
  std::uint64_t group = 0;
  std::int32_t peer = -1;
  FlightCall call = FlightCall::kNone;
  bool failed = false;
  FlightType dtype = FlightType::kNone;
  FlightOp op = FlightOp::kNone;
  std::int32_t tag = 0;
  std::uint32_t origin = 0;

  friend bool operator==(const FlightEntry&, const FlightEntry&) = default;
};

// Returns the call of that number. nullopt: it was overwritten, or is being written.
inline std::optional<FlightEntry> read_record(const WorkerPage& page, std::uint64_t number) {
  const FlightRecord& record = page.record_of(number);
  // A sequence lock without fences, which ThreadSanitizer does not support. Each field is
  // written with release and read with acquire. A reader that sees a field of a newer call
  // therefore also sees that the number has changed.
  constexpr auto kAcquire = std::memory_order_acquire;
  if (record.number.load(kAcquire) != number) return std::nullopt;
  FlightEntry entry{.number = number,
                    .begun_ns = record.begun_ns.load(kAcquire),
                    .ended_ns = record.ended_ns.load(kAcquire),
                    .collective = record.collective.load(kAcquire),
                    .bytes = record.bytes.load(kAcquire),
                    .group = record.group.load(kAcquire),
                    .peer = record.peer.load(kAcquire),
                    .call = record.call.load(kAcquire),
                    .failed = record.failed.load(kAcquire) != 0,
                    .dtype = record.dtype.load(kAcquire),
                    .op = record.op.load(kAcquire),
                    .tag = record.tag.load(kAcquire),
                    .origin = record.origin.load(kAcquire)};
  if (record.number.load(kAcquire) != number) return std::nullopt;
  return entry;
}

// StepEntry: a copy of a mark, read consistently.
struct StepEntry {
  std::uint64_t number = 0;
  std::int64_t step = 0;
  std::uint64_t ns = 0;
  std::uint64_t waited_ns = 0;

  friend bool operator==(const StepEntry&, const StepEntry&) = default;
};

// Returns the mark of that report. nullopt: it was overwritten, or is being written.
inline std::optional<StepEntry> read_mark(const WorkerPage& page, std::uint64_t number) {
  const StepMark& mark = page.mark_of(number);
  constexpr auto kAcquire = std::memory_order_acquire;  // see read_record()
  if (mark.number.load(kAcquire) != number) return std::nullopt;
  const StepEntry entry{.number = number,
                        .step = mark.step.load(kAcquire),
                        .ns = mark.ns.load(kAcquire),
                        .waited_ns = mark.waited_ns.load(kAcquire)};
  if (mark.number.load(kAcquire) != number) return std::nullopt;
  return entry;
}

// CheckpointSpan: a copy of a CheckpointMark, read consistently.
struct CheckpointSpan {
  std::uint64_t begun_ns = 0;
  std::uint64_t ended_ns = 0;

  friend bool operator==(const CheckpointSpan&, const CheckpointSpan&) = default;
};

// Returns that wait for a checkpoint. nullopt: it was overwritten, or is being written.
inline std::optional<CheckpointSpan> read_checkpoint(const WorkerPage& page, std::uint64_t number) {
  const CheckpointMark& mark = page.checkpoint_of(number);
  constexpr auto kAcquire = std::memory_order_acquire;  // see read_record()
  if (mark.number.load(kAcquire) != number) return std::nullopt;
  const CheckpointSpan span{.begun_ns = mark.begun_ns.load(kAcquire),
                            .ended_ns = mark.ended_ns.load(kAcquire)};
  if (mark.number.load(kAcquire) != number) return std::nullopt;
  return span;
}

// Returns the oldest call in progress; nullopt: there is none among the records that are kept.
inline std::optional<FlightEntry> oldest_in_progress(const WorkerPage& page) {
  const std::uint64_t newest = page.calls.load(std::memory_order_acquire);
  // Counts down to 0 so that the loop ends, because the worker's memory may hold anything.
  for (std::uint64_t left = std::min<std::uint64_t>(newest, kFlightRecords); left > 0; --left) {
    const std::optional<FlightEntry> entry = read_record(page, newest - left + 1);
    if (entry && entry->ended_ns == 0) return entry;
  }
  return std::nullopt;
}

inline std::uint64_t to_page_time(TimePoint time) {
  return static_cast<std::uint64_t>(time.time_since_epoch().count());
}

// Returns FNV-1a over the ranks, 8 bytes each, the lowest byte first. It identifies groups that
// are too large to list.
inline std::uint64_t flight_digest(std::span<const int> ranks) {
  std::uint64_t digest = kEmptyFnv1a;
  for (const int rank : ranks) {
    std::array<char, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(static_cast<std::uint64_t>(rank) >> (8 * i) & 0xff);
    }
    digest = fnv1a({bytes.data(), bytes.size()}, digest);
  }
  return digest;
}

// Returns the text of a field, which ends at the first 0 or at the end of the field.
template <std::size_t N>
std::string text_in(const std::array<char, N>& field) {
  return std::string(field.begin(), std::find(field.begin(), field.end(), '\0'));
}

}  // namespace ddprun
