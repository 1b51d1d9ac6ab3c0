#include "worker_lib/util/error_file.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "worker_lib/util/exception_text.h"

namespace ddprun {
namespace {

// Never destroyed, because the destructor of a global may throw the exception to report.
struct Place {
  std::string path;
  std::terminate_handler before = nullptr;
};
Place& place() {
  static Place* const one = new Place;
  return *one;
}

// Returns the call stack, the innermost call last, in the form of a traceback. terminate() is
// called at the throw, before the stack is unwound.
std::string callstack() {
  constexpr int kMost = 32;
  std::array<void*, kMost> addresses{};
  const int count = backtrace(addresses.data(), kMost);
  std::string text = "Traceback (most recent call last):\n";
  for (int i = count - 1; i > 0; --i) {
    Dl_info info{};
    void* const address = addresses[i];
    if (dladdr(address, &info) == 0 || !info.dli_fname) continue;
    const auto offset =
        static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
    std::array<char, 32> hex{};
    std::snprintf(hex.data(), hex.size(), "+0x%tx", offset);
    text += "  " + std::string(info.dli_fname) + hex.data();
    if (info.dli_sname) text += " in " + demangled(info.dli_sname);
    text += "\n";
  }
  return text;
}

// Returns the exception that is being handled, in the form of PyTorch's @record.
nlohmann::json describe_exception() {
  ExceptionText words = exception_text();
  if (words.type.empty()) words.type = "terminate without an exception";
  nlohmann::json more{{"py_callstack", callstack()}};
  more["timestamp"] = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(
                                         std::chrono::system_clock::now().time_since_epoch())
                                         .count());
  if (words.kind == DistError::Kind::kPeerLost && words.peer_rank >= 0) {
    more["peer_rank"] = words.peer_rank;
  }
  return {{"message", {{"message", one_line_of(words)}, {"extraInfo", more}}}};
}

void report_and_terminate() {
  // Two threads may fail at once, and writing the file may fail, too.
  static std::atomic_flag is_reported;
  if (!is_reported.test_and_set()) {
    try {
      std::ofstream(place().path) << describe_exception().dump(
          -1, ' ', false, nlohmann::json::error_handler_t::replace);
    } catch (...) {
    }
  }
  if (place().before) place().before();
  std::abort();
}

}  // namespace

void write_uncaught_exceptions_to(const std::string& path) {
  if (path.empty()) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    place().path = path;
    place().before = std::set_terminate(report_and_terminate);
  });
}

}  // namespace ddprun
