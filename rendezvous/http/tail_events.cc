#include "rendezvous/http/tail_events.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/concat.h"
#include "rendezvous/protocol/output_text.h"

namespace ddprun {

using Json = nlohmann::json;

void TailEvents::take(const ServiceMessage& message, bool is_last) {
  if (std::holds_alternative<End>(message)) return end();
  if (const Silence* silence = std::get_if<Silence>(&message)) {
    return is_last ? end(silence->reason) : notice(silence->reason);
  }
  const Answer* const answer = std::get_if<Answer>(&message);
  if (!answer) return;
  if (!answer->more) return end(answer->text);
  std::string_view lines = answer->page;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    take_line(line);
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  notice(answer->text);
}

void TailEvents::end(std::string why) {
  is_ended_ = true;
  events_.end(std::move(why));
}

void TailEvents::take_line(std::string_view json_line) {
  const Json json = Json::parse(json_line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  try {
    if (json.contains("stream")) {
      const std::string text = output_text(json);
      events_.add(text);
      if (!text.ends_with('\n') && !text.ends_with('\r')) events_.add("\n");
    } else if (const Json bytes = json.value("dropped_bytes", Json()); bytes.is_number_unsigned()) {
      notice(concat(bytes.get<std::uint64_t>(),
                    " bytes of output are missing here: they came faster than they were read"));
    } else if (const Json number = json.value("generation", Json()); number.is_number_integer()) {
      const auto generation = number.get<std::int64_t>();
      if (generation_ && generation > *generation_) {
        notice(concat("generation ", generation, " begins"));
      }
      generation_ = std::max(generation, generation_.value_or(generation));
    }
  } catch (const Json::exception&) {
  }
}

void TailEvents::notice(std::string_view text) {
  if (!text.empty()) events_.add(concat("ddprun: ", text, "\n"));
}

}  // namespace ddprun
