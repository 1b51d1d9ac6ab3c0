#include "launcher/flight/show.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/read_whole.h"
#include "base/split.h"
#include "base/unique_fd.h"
#include "launcher/flight/core/compare.h"
#include "launcher/flight/core/text.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLastInTables = 10;
constexpr std::size_t kMaxFileBytes = 64 << 20;

// Keeps the newest `last` calls.
void keep_last(RankFlight& flight, std::size_t last) {
  if (flight.calls.size() <= last) return;
  flight.calls.erase(flight.calls.begin(), flight.calls.end() - static_cast<std::ptrdiff_t>(last));
}

Json json_of(const std::vector<RankFlight>& shown, const std::vector<FlightFinding>& findings) {
  Json ranks = Json::array();
  for (const RankFlight& flight : shown) ranks.push_back(flight_json(flight));
  Json found = Json::array();
  for (const FlightFinding& one : findings) {
    found.push_back({{"kind", enum_name(kFlightFindingWords, one.kind)},
                     {"group", one.group},
                     {"collective", one.collective},
                     {"ranks", one.ranks},
                     {"text", one.text}});
  }
  return {{"ranks", std::move(ranks)}, {"findings", std::move(found)}};
}

}  // namespace

void FlightShow::take(std::string_view json_line) {
  if (take_flight_line(json_line, flights_)) return;
  const Json json = Json::parse(json_line, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("dropped_bytes")) {
    notice("calls are missing: a node has more calls than it keeps for a reader");
  }
}

void FlightShow::take_page(std::string_view lines) {
  for (const std::string_view line : split(lines, '\n')) take(line);
}

void FlightShow::notice(const std::string& words) const {
  std::fprintf(stderr, "ddprun: %s\n", words.c_str());
}

Result<void> FlightShow::read(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return system_error("read " + path, errno);
  const Result<std::string> text = read_whole<std::string>(file.get(), path, kMaxFileBytes);
  if (!text) return text.error();
  Result<std::vector<RankFlight>> flights = parse_flight_file(*text);
  if (!flights) return std::move(flights).error().within(path);
  add(std::move(*flights));
  return {};
}

void FlightShow::add(std::vector<RankFlight> flights) {
  std::move(flights.begin(), flights.end(), std::back_inserter(flights_));
}

void FlightShow::take_job(const Json& job) { marks_ = marks_of(job); }

std::vector<RankFlight> FlightShow::flights() const {
  std::vector<RankFlight> all = flights_;
  std::ranges::stable_sort(all, {}, &RankFlight::rank);
  if (options_.rank) {
    std::erase_if(all, [this](const RankFlight& one) { return one.rank != *options_.rank; });
  }
  return all;
}

Result<void> FlightShow::print() const {
  const std::vector<RankFlight> all = flights();
  std::vector<RankFlight> shown = all;
  if (options_.last) {
    for (RankFlight& one : shown) keep_last(one, static_cast<std::size_t>(*options_.last));
  }
  if (!options_.trace_file.empty()) {
    Result<void> written = write_trace(options_.trace_file, chrome_trace(shown, marks_));
    if (!written) return std::move(written).error().within(options_.trace_option);
    return {};
  }
  std::string text;
  if (options_.json) {
    text = text_of(json_of(options_.only_compares ? std::vector<RankFlight>() : shown,
                           compare_flights(all))) +
           "\n";
  } else {
    const std::size_t last = options_.last ? kFlightRecords : kLastInTables;
    for (const RankFlight& one : shown) {
      if (!options_.only_compares) text += flight_table(all, one, last) + "\n";
    }
    text += findings_text(all);
  }
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace ddprun
