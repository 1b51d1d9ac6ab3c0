#include "launcher/flight/core/text.h"

#include <algorithm>

#include "base/counted.h"
#include "base/is_control.h"
#include "launcher/flight/core/compare.h"
#include "launcher/options/core/bytes_text.h"
#include "launcher/options/core/table_text.h"

namespace ddprun {
namespace {

using Row = std::vector<std::string>;

std::string state_text(const FlightEntry& call) {
  if (call.ended_ns == 0) return "in progress";
  return (call.failed ? "failed after " : "took ") + span_text(call.begun_ns, call.ended_ns);
}

std::string name_of_group(const std::vector<RankFlight>& all, std::uint64_t group) {
  if (group == 0) return "world";
  for (const RankFlight& flight : all) {
    const FlightGroupFacts* facts = flight.group(group);
    if (facts && !facts->name.empty()) return facts->name;
  }
  return std::to_string(group);
}

Row row_of(const std::vector<RankFlight>& all, const RankFlight& flight, const FlightEntry& call) {
  const std::string* origin = flight.origin_of(call);
  return {std::to_string(call.number),
          in_one_line(name_of_group(all, call.group)),
          is_message(call.call) ? "" : std::to_string(call.collective),
          name_of(call.call),
          is_barrier(call.call) ? "" : bytes_text(call.bytes, "B"),
          name_of(call.dtype),
          name_of(call.op),
          call.peer < 0 ? "" : std::to_string(call.peer),
          span_text(call.begun_ns, flight.boot_ns) + " ago",
          state_text(call) + (origin ? ", from " + in_one_line(*origin) : "")};
}

std::string headline_of(const RankFlight& flight) {
  std::string text = "rank " + to_text(flight.rank) + " (local rank " + to_text(flight.local_rank);
  if (!flight.host.empty()) text += " on " + flight.host;
  if (flight.pid > 0) text += ", pid " + std::to_string(flight.pid);
  text += "): " + flight.state + (flight.is_stopped ? ", stopped" : "");
  if (flight.step) text += ", step " + std::to_string(*flight.step);
  return in_one_line(text);
}

}  // namespace

std::string flight_table(const std::vector<RankFlight>& all, const RankFlight& flight,
                         std::size_t last) {
  const std::size_t shown = std::min(last, flight.calls.size());
  std::string text = headline_of(flight);
  if (flight.calls.empty()) return text + "; no call was recorded\n";
  text += "; " + counted(flight.call_count, "call");
  if (shown == 0) return text + "\n";
  text += shown < flight.call_count ? ", the last " + std::to_string(shown) + ":\n" : ":\n";
  std::vector<Row> rows{
      {"number", "group", "collective", "call", "size", "dtype", "op", "rank", "begun", "state"}};
  for (std::size_t i = flight.calls.size() - shown; i < flight.calls.size(); ++i) {
    rows.push_back(row_of(all, flight, flight.calls[i]));
  }
  for (std::size_t column = 0; column < rows[0].size(); ++column) {
    bool has_any = false;
    for (std::size_t i = 1; i < rows.size(); ++i) has_any = has_any || !rows[i][column].empty();
    if (!has_any) rows[0][column].clear();  // no rank has a value: omit the column
  }
  return text + table_text(rows, "  ");
}

std::string findings_text(const std::vector<RankFlight>& flights) {
  const std::vector<FlightFinding> findings = compare_flights(flights);
  if (findings.empty()) {
    const bool has_any = std::ranges::any_of(
        flights, [](const RankFlight& flight) { return !flight.calls.empty(); });
    return has_any
               ? "no calls differ, and none is in progress\n"
               : "no calls were recorded: programs of ddprun's library record theirs, and Python "
                 "programs that import ddprun (docs/how-to/hangs.md). Of others py-spy dump --pid "
                 "PID shows where a rank is (pip install py-spy)\n";
  }
  std::string text;
  for (const FlightFinding& finding : findings) {
    text += std::string(enum_name(kFlightFindingWords, finding.kind)) + ": " +
            in_one_line(finding.text) + "\n";
  }
  return text;
}

}  // namespace ddprun
