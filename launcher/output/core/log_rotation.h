// LogRotation: where a log file that may not grow beyond a size is cut, and a new one begun.
//
// At a line's end: a line that does not fit goes into the next file, so unfinished lines are held back
// until they end. Only a line that is longer than a file, or than kMostHeld, is cut. Pure; one owner
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddprun {

class LogRotation {
 public:
  static constexpr std::size_t kMostHeld = 64 * 1024;

  // max_bytes: of one file; 0: never.
  explicit LogRotation(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // What is to be done next: begin a new file, or write so many of the bytes; neither: wait for more.
  struct Step {
    bool rotate = false;
    std::size_t write = 0;
    friend bool operator==(const Step&, const Step&) = default;
  };
  // is_end: nothing will follow these bytes.
  Step next(std::string_view bytes, bool is_end) const;

  void wrote(std::string_view bytes);
  // The file is new and empty.
  void rotated();

 private:
  std::uint64_t max_bytes_;
  std::uint64_t size_ = 0;
  bool at_line_start_ = true;
};

}  // namespace ddprun
