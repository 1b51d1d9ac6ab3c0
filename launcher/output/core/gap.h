// OutputGap: what is missing of a file because its disk did not take it, and when that is tried again.
//
// closed: everything is written. open: a write has failed; bytes are dropped and counted until a write
// succeeds. It is worth trying after kRetry, then after twice as long, up to kLongestRetry. What is
// written then begins with a whole line. Pure; one owner thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace ddprun {

class OutputGap {
 public:
  static constexpr Duration kRetry = std::chrono::seconds(1);
  static constexpr Duration kLongestRetry = std::chrono::seconds(60);

  bool is_open() const { return is_open_; }
  // Dropped since it is open.
  std::uint64_t missing() const { return missing_; }
  // "48213 bytes are missing"
  std::string text() const;
  // Why the first write failed.
  const std::string& why() const { return why_; }

  // A write has failed. True: it was closed.
  bool open(const std::string& why, TimePoint now);
  // These bytes are left out.
  void drop(std::string_view bytes);
  // So many more are, which nobody has looked at; what follows may be tried at once.
  void drop_unseen(std::uint64_t count);
  // REQUIRES: it is open. Returns the part of the bytes that a write is to be tried with, from the
  // beginning of a line; the rest is dropped. Empty: all of it is.
  std::string_view writable(std::string_view bytes, TimePoint now);
  // A write has succeeded.
  void close();

 private:
  bool is_open_ = false;
  bool mid_line_ = false;  // the last byte that was dropped ended no line
  std::uint64_t missing_ = 0;
  std::string why_;
  TimePoint retry_at_;
  Duration retry_after_ = kRetry;
};

}  // namespace ddprun
