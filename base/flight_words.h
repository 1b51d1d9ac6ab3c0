// Turns the calls in a worker page (worker_page.h) into text for people. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/worker_page.h"

namespace ddprun {

// Returns "all_reduce", for example; "call 77" for a call of a newer worker library.
// call_named() is the inverse.
std::string name_of(FlightCall call);
FlightCall call_named(std::string_view name);
// Returns "float32", for example; empty for kNone.
std::string name_of(FlightType type);
FlightType type_named(std::string_view name);
// Returns "sum", for example; empty for kNone.
std::string name_of(FlightOp op);
FlightOp op_named(std::string_view name);

bool is_message(FlightCall call);
// Returns whether the call moves no data.
bool is_barrier(FlightCall call);

// Returns "broadcast of 4096 bytes of float32 from rank 2", "all_reduce of 8 bytes (sum of
// int64)".
std::string words_of(const FlightEntry& entry);

// Returns the time from one page time to another: "2.0 s". A worker's memory may hold anything,
// so the result is never negative and does not overflow.
std::string span_text(std::uint64_t from_ns, std::uint64_t to_ns);

// In whereabouts(): stands before the place from which a call was made.
inline constexpr std::string_view kCalledFrom = ", called from ";

// Returns what a rank does at `now_ns`, a page time, according to its page. Examples:
// - "it has been in recv of 4 bytes of float32 from rank 2 for 2.0 s", followed by
//   ", called from train_epoch(int)" if that was recorded
// - "it has been in no call for 2.0 s; the last was all_reduce of 8 bytes (sum of float32)"
// - "it has made no call"
// If the rank has reported steps, "it has done step 7; " comes first.
std::string whereabouts(const WorkerPage& page, std::uint64_t now_ns);

}  // namespace ddprun
