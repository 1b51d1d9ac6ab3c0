// From where the calls of a worker come: for flight records, where somebody has asked for it.
//
// The few places of a program that call into groups are written into its page once each, as text, and
// calls name them by number. Modules are shown as what addr2line takes: "train+0x1a2b".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/worker_page.h"

namespace ddprun {

// DDPRUN_TRACE=1, or a debug build and not DDPRUN_TRACE=0. Reads the environment.
bool wants_call_origins();

// Where its thread is: return addresses, the innermost first. Microseconds; any thread.
struct CallStack {
  static constexpr std::size_t kMaxFrames = 24;

  // From the frame that `address` returns into on; all of them, where there is none such.
  static CallStack from(void* address);
  std::span<void* const> shown() const { return {frames.data(), count}; }

  std::array<void*, kMaxFrames> frames{};
  std::size_t count = 0;
};

// "train_epoch(int) < train+0x1a2b < main", at most kFlightOriginBytes: by what the dynamic linker
// knows of each frame, without those within ddprun but the one that was called from outside, and
// without those of the C library that have called main, or a thread's function.
std::string origin_text(const CallStack& stack);

// The numbers of the places in one page. One thread at a time.
class CallOrigins {
 public:
  // Writes the place into the page when it is new; 0: there is no room for it.
  std::uint32_t number_of(const CallStack& stack, WorkerPage& page);

 private:
  std::map<std::vector<void*>, std::uint32_t> numbers_;
};

}  // namespace ddprun
