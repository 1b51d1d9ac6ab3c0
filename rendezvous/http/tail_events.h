// TailEvents: makes events for a browser (rendezvous/http/output_events.h) of what the
// JobTable answers to a request that follows the output of one rank.
//
// Lines of other versions that it does not know are left out. What the service says of the output,
// such as how much is missing, is a line that begins with "ddprun: ". Pure; one owner thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/http/output_events.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

class TailEvents {
 public:
  // Takes the next message. is_last: none follows, so the events end.
  void take(const ServiceMessage& message, bool is_last = false);
  // Returns whether the events end with what was taken.
  bool is_ended() const { return is_ended_; }
  // Ends the events with this error.
  void refuse(std::string why) { end(std::move(why)); }
  // Returns the events since the last call; empty: there are none.
  std::string events() { return events_.take(); }

 private:
  void end(std::string why = {});
  void take_line(std::string_view json_line);
  void notice(std::string_view text);

  OutputEvents events_;
  bool is_ended_ = false;
  std::optional<std::int64_t> generation_;
};

}  // namespace ddprun
