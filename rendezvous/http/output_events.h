// OutputEvents: makes events for a browser's EventSource of what a worker or a command writes. An
// event is the JSON {"text": whole lines or updates}; an update ends with \r. It has "left_out", a
// number, if bytes are missing before them. The last event has the type `end`. It has "why", a
// text, if there is an error.
//
// Memory is bounded: of what is not taken, only the newest kMaxBytes are kept. Bytes that are not
// UTF-8 are replaced. Pure; one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun {

class OutputEvents {
 public:
  static constexpr std::size_t kMaxBytes = 64 * 1024;

  // Takes the next bytes.
  void add(std::string_view bytes);
  // Notes that no bytes follow. why: the error that a person reads; empty: there is none.
  void end(std::string why = {});
  // Returns the events since the last call; empty: there are none.
  std::string take();

 private:
  std::string text_;
  std::uint64_t left_out_ = 0;
  std::string why_;
  bool is_ended_ = false;
  bool is_end_taken_ = false;
};

}  // namespace ddprun
