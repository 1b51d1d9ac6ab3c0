// LogRotation: decides where a log file with a size limit is cut and a new file begins.
//
// It cuts at a line's end. A line that does not fit goes into the next file, so unfinished
// lines are held back until they end. Only a line that is longer than a file, or than
// kMostHeld, is cut within. Pure; one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddprun {

class LogRotation {
 public:
  static constexpr std::size_t kMostHeld = 64 * 1024;

  // max_bytes: limit of one file; 0: no limit.
  explicit LogRotation(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // The next action: begin a new file, or write the first `write` bytes. Neither: wait for more
  // bytes.
  struct Step {
    bool rotate = false;
    std::size_t write = 0;
    friend bool operator==(const Step&, const Step&) = default;
  };
  // Returns the next action. is_end: nothing will follow these bytes.
  Step next(std::string_view bytes, bool is_end) const;

  void wrote(std::string_view bytes);
  // Records that a new, empty file has begun.
  void rotated();

 private:
  std::uint64_t max_bytes_;
  std::uint64_t size_ = 0;
  bool at_line_start_ = true;
};

}  // namespace ddprun
