// How people read what a worker page (worker_page.h) says of calls. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/worker_page.h"

namespace ddprun {

// "all_reduce", and back; "call 77" for one of a newer worker library.
std::string name_of(FlightCall call);
FlightCall call_named(std::string_view name);
// "float32"; empty: kNone.
std::string name_of(FlightType type);
FlightType type_named(std::string_view name);
// "sum"; empty: kNone.
std::string name_of(FlightOp op);
FlightOp op_named(std::string_view name);

bool is_message(FlightCall call);
// It moves nothing.
bool is_barrier(FlightCall call);

// "broadcast of 4096 bytes of float32 from rank 2", "all_reduce of 8 bytes (sum of int64)".
std::string words_of(const FlightEntry& entry);

// "2.0 s", from one time of a page to another. A worker's memory may hold anything: it is never negative,
// and does not overflow.
std::string span_text(std::uint64_t from_ns, std::uint64_t to_ns);

// In front of where a call comes from, in whereabouts().
inline constexpr std::string_view kCalledFrom = ", called from ";

// What a rank does at `now_ns`, a page time, by its page: "it is in recv of 4 bytes of float32 from rank 2
// since 2.0 s" (and ", called from train_epoch(int)", where that is recorded), "it is in no call since 2.0 s; the last was all_reduce of 8 bytes (sum of float32)", "it has
// made no call"; before it, where the rank has reported steps: "it has done step 7; ".
std::string whereabouts(const WorkerPage& page, std::uint64_t now_ns);

}  // namespace ddprun
