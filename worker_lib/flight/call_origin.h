// Records where in the program the calls of a worker come from: for flight records, if this was
// requested.
//
// A program has few places that call into groups. Each is written into the worker page once, as
// text, and calls refer to it by number. Modules are shown in the form that addr2line takes:
// "train+0x1a2b".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/worker_page.h"

namespace ddprun {

// Returns true if DDPRUN_TRACE=1, or in a debug build without DDPRUN_TRACE=0. Reads the
// environment.
bool wants_call_origins();

// CallStack: return addresses of a thread, the innermost first.
using CallStack = std::vector<void*>;

// Returns this thread's stack from the frame with return address `address` on, or the whole stack
// if there is no such frame. Takes microseconds; any thread.
CallStack call_stack_from(void* address);

// Returns "train_epoch(int) < train+0x1a2b < main", at most kFlightOriginBytes, with what the
// dynamic linker knows of each frame. Frames within ddprun are left out, except the one that was
// called from outside. Frames of the C library that called main, or a thread's function, are
// left out, too.
std::string origin_text(const CallStack& stack);

// CallOrigins: the numbers of the places in one page. One thread at a time.
class CallOrigins {
 public:
  // Returns the number of the place, and writes a new place into the page. 0: the page has no
  // room for it.
  std::uint32_t number_of(const CallStack& stack, WorkerPage& page);

 private:
  std::map<CallStack, std::uint32_t> numbers_;
};

}  // namespace ddprun
