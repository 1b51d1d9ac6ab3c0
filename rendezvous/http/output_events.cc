#include "rendezvous/http/output_events.h"

#include <utility>

#include "rendezvous/http/core/event_feed.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {

void OutputEvents::add(std::string_view bytes) {
  text_ += bytes;
  if (text_.size() <= kMaxBytes) return;
  std::size_t excess = text_.size() - kMaxBytes;
  const std::size_t end = text_.find('\n', excess - 1);  // of the line that is cut
  if (end != text_.npos) excess = end + 1;
  text_.erase(0, excess);
  left_out_ += excess;
}

void OutputEvents::end(std::string why) {
  is_ended_ = true;
  why_ = std::move(why);
}

std::string OutputEvents::take() {
  // A line or update that fills the buffer is not waited for.
  const bool is_whole = is_ended_ || text_.size() == kMaxBytes;
  const std::size_t end = is_whole ? text_.size() : text_.find_last_of("\n\r") + 1;
  std::string events;
  if (end > 0 || left_out_ > 0) {
    nlohmann::json json{{"text", text_.substr(0, end)}};
    if (left_out_ > 0) json["left_out"] = std::exchange(left_out_, 0);
    text_.erase(0, end);
    events = event_text(text_of(json));
  }
  if (is_ended_ && !std::exchange(is_end_taken_, true)) {
    nlohmann::json json = nlohmann::json::object();
    if (!why_.empty()) json["why"] = why_;
    events += "event: end\n" + event_text(text_of(json));
  }
  return events;
}

}  // namespace ddprun
