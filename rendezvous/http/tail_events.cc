#include "rendezvous/http/tail_events.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/concat.h"
#include "rendezvous/protocol/output_text.h"

namespace ddprun {

using Json = nlohmann::json;

void TailEvents::take(const ServiceMessage& message) {
  if (std::holds_alternative<End>(message)) return events_.end();
  if (const Silence* silence = std::get_if<Silence>(&message)) return notice(silence->reason);
  const Answer* const answer = std::get_if<Answer>(&message);
  if (!answer) return;
  if (!answer->more) return events_.end(answer->text);
  std::string_view lines = answer->page;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    take_line(line);
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  notice(answer->text);
}

void TailEvents::take_line(std::string_view json_line) {
  const Json json = Json::parse(json_line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  try {
    if (json.contains("stream")) {
      const std::string text = output_text(json);
      events_.add(text);
      if (!text.ends_with('\n') && !text.ends_with('\r')) events_.add("\n");
    } else if (json.contains("dropped_bytes")) {
      notice(concat(json.at("dropped_bytes").get<std::uint64_t>(),
                    " bytes of output are missing here: they came faster than they were read"));
    } else if (json.contains("generation")) {
      const auto generation = json.at("generation").get<std::int64_t>();
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
