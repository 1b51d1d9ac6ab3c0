// OutputGap: counts the bytes that are missing from a file because its disk did not take them,
// and decides when to retry.
//
// States:
// - closed: everything was written.
// - open: a write failed. Bytes are dropped and counted until a write succeeds.
// In both, the last bytes that were dropped may have been the beginning of a line (is_mid_line()).
// Its end is then dropped, too.
//
// A retry is due after kRetry, then after twice as long each time, up to kLongestRetry. What is
// written then begins with a whole line. Pure; one owner thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace ddprun {

class OutputGap {
 public:
  static constexpr Duration kRetry = std::chrono::seconds(1);
  static constexpr Duration kLongestRetry = std::chrono::seconds(60);

  // name: of the file or stream, for messages.
  explicit OutputGap(std::string name = "") : name_(std::move(name)) {}

  bool is_open() const { return is_open_; }
  bool is_mid_line() const { return mid_line_; }
  // Returns how many bytes were dropped since the last close().
  std::uint64_t missing() const { return missing_; }
  // Returns a text such as "48213 bytes are missing".
  std::string text() const;
  // Returns why the first write failed.
  const std::string& why() const { return why_; }
  // Returns the name, what is missing and why. Empty: nothing is missing.
  std::string loss() const;
  // Returns the warnings for the user since the last call.
  std::vector<std::string> take_news() { return std::exchange(news_, {}); }

  // Records that a write failed. If the gap was closed before, this is news.
  void open(const std::string& why, TimePoint now);
  // Counts these bytes as dropped.
  void drop(std::string_view bytes);
  // Counts `count` more bytes as dropped, whose contents are unknown. The bytes that follow may
  // be tried at once.
  void drop_unseen(std::uint64_t count);
  // Returns the part of the bytes that should be written now, from the beginning of a line. The
  // rest is dropped. Empty: all of it was dropped. REQUIRES: the gap is open, or is_mid_line().
  std::string_view writable(std::string_view bytes, TimePoint now);
  // Returns when a write should be tried although no bytes have come; nullopt: the gap is closed.
  std::optional<TimePoint> retry_due() const;
  // Records that a write has succeeded. If the gap was open and bytes are missing, this is news.
  void close();
  // Makes loss() news.
  void report_loss() { news_.push_back(loss()); }

 private:
  std::string name_;
  bool is_open_ = false;
  bool mid_line_ = false;   // the last byte dropped did not end a line
  bool is_unseen_ = false;  // drop_unseen() came after the last failure
  std::uint64_t missing_ = 0;
  std::string why_;
  TimePoint retry_at_;
  Duration retry_after_ = kRetry;
  std::vector<std::string> news_;
};

}  // namespace ddprun
