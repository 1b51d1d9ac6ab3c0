#include "base/flight_words.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/clock.h"
#include "base/concat.h"
#include "base/enum_names.h"
#include "base/is_control.h"
#include "base/parse_number.h"

namespace ddprun {
namespace {

constexpr EnumNames<FlightCall, 16> kCallWords{
    {{FlightCall::kAllReduce, "all_reduce"},
     {FlightCall::kReduce, "reduce"},
     {FlightCall::kBroadcast, "broadcast"},
     {FlightCall::kAllGather, "all_gather"},
     {FlightCall::kReduceScatter, "reduce_scatter"},
     {FlightCall::kGather, "gather"},
     {FlightCall::kScatter, "scatter"},
     {FlightCall::kBarrier, "barrier"},
     {FlightCall::kSend, "send"},
     {FlightCall::kRecv, "recv"},
     {FlightCall::kAllToAll, "all_to_all"},
     {FlightCall::kMonitoredBarrier, "monitored_barrier"},
     {FlightCall::kAllReduceCoalesced, "all_reduce_coalesced"},
     {FlightCall::kReduceScatterCoalesced, "reduce_scatter_coalesced"},
     {FlightCall::kAllGatherCoalesced, "all_gather_coalesced"},
     {FlightCall::kBroadcastCoalesced, "broadcast_coalesced"}}};

constexpr EnumNames<FlightType, 19> kTypeWords{{{FlightType::kNone, ""},
                                                {FlightType::kUint8, "uint8"},
                                                {FlightType::kInt8, "int8"},
                                                {FlightType::kInt16, "int16"},
                                                {FlightType::kInt32, "int32"},
                                                {FlightType::kInt64, "int64"},
                                                {FlightType::kFloat16, "float16"},
                                                {FlightType::kFloat32, "float32"},
                                                {FlightType::kFloat64, "float64"},
                                                {FlightType::kComplex32, "complex32"},
                                                {FlightType::kComplex64, "complex64"},
                                                {FlightType::kComplex128, "complex128"},
                                                {FlightType::kBool, "bool"},
                                                {FlightType::kBfloat16, "bfloat16"},
                                                {FlightType::kFloat8E5m2, "float8_e5m2"},
                                                {FlightType::kFloat8E4m3, "float8_e4m3fn"},
                                                {FlightType::kUint16, "uint16"},
                                                {FlightType::kUint32, "uint32"},
                                                {FlightType::kUint64, "uint64"}}};

constexpr EnumNames<FlightOp, 10> kOpWords{{{FlightOp::kNone, ""},
                                            {FlightOp::kSum, "sum"},
                                            {FlightOp::kAvg, "avg"},
                                            {FlightOp::kProduct, "product"},
                                            {FlightOp::kMin, "min"},
                                            {FlightOp::kMax, "max"},
                                            {FlightOp::kBitAnd, "band"},
                                            {FlightOp::kBitOr, "bor"},
                                            {FlightOp::kBitXor, "bxor"},
                                            {FlightOp::kPremulSum, "premul_sum"}}};

// Returns the word of a value, or "call 77", for example: a page may come from a newer library,
// or hold garbage.
template <class Enum, std::size_t N>
std::string name_in(const EnumNames<Enum, N>& words, Enum value, std::string_view kind) {
  for (const auto& [known, word] : words) {
    if (known == value) return std::string(word);
  }
  return concat(kind, " ", static_cast<int>(value));
}

template <class Enum, std::size_t N>
Enum value_of(const EnumNames<Enum, N>& words, std::string_view name, std::string_view kind) {
  if (const std::optional<Enum> known = parse_enum(words, name)) return *known;
  if (!name.starts_with(concat(kind, " "))) return Enum{};
  const auto number = parse_number<std::uint8_t>(name.substr(kind.size() + 1));
  return number ? static_cast<Enum>(*number) : Enum{};
}

// Returns " in group tp", for example. Empty: the world, or a group without a name.
std::string group_words(const WorkerPage& page, std::uint64_t id) {
  const std::size_t known =
      std::min<std::size_t>(page.group_count.load(std::memory_order_acquire), page.groups.size());
  for (std::size_t i = 0; i < known; ++i) {
    if (id == 0 || page.groups[i].id != id) continue;
    const std::string name = in_one_line(text_in(page.groups[i].name));
    return name.empty() ? "" : " in group " + name;
  }
  return "";
}

// Returns ", called from train_epoch(int) < train+0x1a2b", for example. Empty: it was not
// recorded.
std::string origin_words(const WorkerPage& page, std::uint32_t origin) {
  const std::size_t known =
      std::min<std::size_t>(page.origin_count.load(std::memory_order_acquire), page.origins.size());
  if (origin == 0 || origin > known) return "";
  const std::string text = in_one_line(text_in(page.origins[origin - 1]));
  return std::string(kCalledFrom) + text;
}

}  // namespace

std::string name_of(FlightCall call) { return name_in(kCallWords, call, "call"); }
FlightCall call_named(std::string_view name) { return value_of(kCallWords, name, "call"); }

std::string name_of(FlightType type) { return name_in(kTypeWords, type, "dtype"); }
FlightType type_named(std::string_view name) { return value_of(kTypeWords, name, "dtype"); }

std::string name_of(FlightOp op) { return name_in(kOpWords, op, "op"); }
FlightOp op_named(std::string_view name) { return value_of(kOpWords, name, "op"); }

bool is_message(FlightCall call) { return call == FlightCall::kSend || call == FlightCall::kRecv; }

bool is_barrier(FlightCall call) {
  return call == FlightCall::kBarrier || call == FlightCall::kMonitoredBarrier;
}

std::string words_of(const FlightEntry& entry) {
  std::string text = name_of(entry.call);
  if (is_barrier(entry.call)) return text;
  text += concat(" of ", entry.bytes, " bytes");
  const std::string type = name_of(entry.dtype);
  const std::string op = name_of(entry.op);
  if (!op.empty()) {
    text += " (" + op + (type.empty() ? "" : " of " + type) + ")";
  } else if (!type.empty()) {
    text += " of " + type;
  }
  if (entry.peer < 0) return text;
  const bool is_to = entry.call == FlightCall::kSend || entry.call == FlightCall::kGather ||
                     entry.call == FlightCall::kReduce;
  text += concat(is_to ? " to rank " : " from rank ", entry.peer);
  if (is_message(entry.call) && entry.tag != 0) text += concat(", tag ", entry.tag);
  return text;
}

std::string span_text(std::uint64_t from_ns, std::uint64_t to_ns) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t passed = to_ns > from_ns ? to_ns - from_ns : 0;
  return to_text(Duration(static_cast<std::int64_t>(std::min(passed, kMost))));
}

std::string whereabouts(const WorkerPage& page, std::uint64_t now_ns) {
  std::string text;
  if (page.reports.load(std::memory_order_acquire) > 0) {
    text = concat("it has done step ", page.step.load(std::memory_order_relaxed), "; ");
  }
  const std::uint64_t newest = page.calls.load(std::memory_order_acquire);
  const std::optional<FlightEntry> last = newest == 0 ? std::nullopt : read_record(page, newest);
  std::optional<FlightEntry> entry = oldest_in_progress(page);
  if (!entry && last && last->ended_ns == 0)
    entry = last;  // it began while the others were looked at
  if (entry) {
    return text + "it has been in " + words_of(*entry) + group_words(page, entry->group) + " for " +
           span_text(entry->begun_ns, now_ns) + origin_words(page, entry->origin);
  }
  if (!last) return text + "it has made no call";
  return text + "it has been in no call for " + span_text(last->ended_ns, now_ns) +
         "; the last was " + words_of(*last) + group_words(page, last->group);
}

}  // namespace ddprun
