#include "worker_lib/flight/call_origin.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "worker_lib/util/exception_text.h"

namespace ddprun {
namespace {

std::string in_hex(std::uintptr_t number) {
  std::string digits;
  do {
    digits.insert(digits.begin(), "0123456789abcdef"[number % 16]);
    number /= 16;
  } while (number != 0);
  return "0x" + digits;
}

std::string frame_text(void* address) {
  // A return address is after its call, and may already be in the next function.
  const auto at = reinterpret_cast<std::uintptr_t>(address) - 1;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(at), &info) == 0) return in_hex(at);
  if (info.dli_sname) return demangled(info.dli_sname);
  const std::string_view path = info.dli_fname ? info.dli_fname : "?";
  return std::string(path.substr(path.rfind('/') + 1)) + "+" +
         in_hex(at - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
}

// Returns the number of frames of the program itself. The frames of the C library that called it
// come after them.
std::size_t end_of_program(const std::vector<std::string>& frames) {
  const auto start = std::ranges::find_if(
      frames, [](const std::string& frame) { return frame.starts_with("__libc_start_main"); });
  std::size_t end = start - frames.begin();
  while (end > 0 && frames[end - 1].starts_with("libc.so.6+")) --end;
  return end;
}

bool is_own(const std::string& frame) { return frame.starts_with("ddprun::"); }

}  // namespace

bool wants_call_origins() {
  const char* wanted = std::getenv("DDPRUN_TRACE");
#ifdef NDEBUG
  return wanted && std::strcmp(wanted, "1") == 0;
#else
  return !wanted || std::strcmp(wanted, "0") != 0;
#endif
}

CallStack call_stack_from(void* address) {
  std::array<void*, 24> frames;
  const auto end = frames.begin() + std::max(backtrace(frames.data(), frames.size()), 0);
  const auto first = std::find(frames.begin(), end, address);
  return CallStack(first == end ? frames.begin() : first, end);
}

std::string origin_text(const CallStack& stack) {
  std::vector<std::string> frames;
  for (void* address : stack) frames.push_back(frame_text(address));
  std::size_t first = 0;
  while (first + 1 < frames.size() && is_own(frames[first]) && is_own(frames[first + 1])) ++first;
  std::string text;
  const std::size_t end = end_of_program(frames);
  for (std::size_t i = first; i < std::max(end, first + 1) && i < frames.size(); ++i) {
    const std::string next = (text.empty() ? "" : " < ") + frames[i];
    if (text.size() + next.size() > kFlightOriginBytes) break;
    text += next;
  }
  return text;
}

std::uint32_t CallOrigins::number_of(const CallStack& stack, WorkerPage& page) {
  // The map is bounded: only places with a number are kept. Later places are searched for again
  // each time.
  if (const auto found = numbers_.find(stack); found != numbers_.end()) return found->second;
  const std::uint32_t count = page.origin_count.load(std::memory_order_relaxed);
  if (count >= kFlightOrigins) return 0;
  const std::string text = origin_text(stack);
  std::copy(text.begin(), text.end(), page.origins[count].begin());
  page.origin_count.store(count + 1, std::memory_order_release);
  numbers_.emplace(stack, count + 1);
  return count + 1;
}

}  // namespace ddprun
