#include "launcher/flight/trace.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/library_function.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/flight/core/clocks.h"
#include "launcher/flight/json.h"
#include "rendezvous/protocol/json_fields.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr int kCheckpointRow = 2;  // after the generation and the steps
constexpr int kLanes = 1000;       // rows per group; calls beyond that share the last row

// Lanes: the rows of one group, chosen so that calls in a row do not overlap. A row is free
// from its time in busy_until_ on.
class Lanes {
 public:
  int lane_for(std::uint64_t begun_ns, std::uint64_t ended_ns) {
    std::size_t lane = 0;
    while (lane < busy_until_.size() && busy_until_[lane] > begun_ns) ++lane;
    if (lane == busy_until_.size()) busy_until_.push_back(0);
    busy_until_[lane] = ended_ns == 0 ? UINT64_MAX : ended_ns;
    return static_cast<int>(std::min<std::size_t>(lane, kLanes - 1));
  }
  int count() const { return static_cast<int>(std::min<std::size_t>(busy_until_.size(), kLanes)); }

 private:
  std::vector<std::uint64_t> busy_until_;
};

std::string name_of_row(const std::string& name, int lane) {
  return lane == 0 ? name : name + " (" + std::to_string(lane + 1) + ")";
}

std::string name_of_row(const RankFlight& flight, std::uint64_t group, int lane) {
  std::string name = group == 0 ? "world" : "group " + std::to_string(group);
  const FlightGroupFacts* facts = group == 0 ? nullptr : flight.group(group);
  if (facts && !facts->name.empty()) name = facts->name;
  return name_of_row(name, lane);
}

// Trace: collects events. A track is a row of a process.
class Trace {
 public:
  void name(const char* what, int pid, int tid, const std::string& name) {
    add_metadata(what, pid, tid, {{"name", name}});
  }
  void sort(int pid, int index) {
    add_metadata("process_sort_index", pid, 0, {{"sort_index", index}});
  }
  // Adds an event that lasts. `ended_ns` before `begun_ns` counts as no time.
  void span(int pid, int tid, std::int64_t begun_ns, std::int64_t ended_ns, Json event) {
    const auto took = static_cast<std::uint64_t>(std::max(begun_ns, ended_ns)) -
                      static_cast<std::uint64_t>(begun_ns);
    event["ph"] = "X";
    event["dur"] = static_cast<double>(took) / 1000;
    add(pid, tid, begun_ns, std::move(event));
  }
  // Adds a moment. scope: "p" of the process, "g" of all.
  void moment(int pid, int tid, std::int64_t at_ns, const std::string& what, const char* scope) {
    add(pid, tid, at_ns, {{"ph", "i"}, {"s", scope}, {"name", what}, {"cat", "ddprun"}});
  }

  std::string text(Json clocks) {
    std::ranges::stable_sort(events_, {}, [](const Event& event) {
      return std::tuple(event.pid, event.tid, event.at_ns);
    });
    const auto first = std::ranges::min_element(events_, {}, &Event::at_ns);
    const std::int64_t start_ns = first == events_.end() ? 0 : first->at_ns;
    for (Event& event : events_) {
      const auto since =
          static_cast<std::uint64_t>(event.at_ns) - static_cast<std::uint64_t>(start_ns);
      event.json["ts"] = static_cast<double>(since) / 1000;
      all_.push_back(std::move(event.json));
    }
    return text_of(Json{{"displayTimeUnit", "ms"},
                        {"otherData", {{"start_unix_ns", start_ns}, {"clocks", std::move(clocks)}}},
                        {"traceEvents", std::move(all_)}}) +
           "\n";
  }

 private:
  struct Event {
    int pid = 0;
    int tid = 0;
    std::int64_t at_ns = 0;
    Json json;
  };

  void add(int pid, int tid, std::int64_t at_ns, Json event) {
    event["pid"] = pid;
    event["tid"] = tid;
    events_.push_back({.pid = pid, .tid = tid, .at_ns = at_ns, .json = std::move(event)});
  }
  void add_metadata(const char* what, int pid, int tid, Json arguments) {
    all_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}});
  }

  Json all_ = Json::array();
  std::vector<Event> events_;
};

// Returns whether a time of a worker's memory can be right. That memory may hold any number, and
// one wrong time would move all others far away from the begin of the trace.
bool can_be(const RankFlight& flight, std::uint64_t at_ns) {
  return at_ns > 0 && (flight.boot_ns == 0 || at_ns <= flight.boot_ns);
}

void add_call(const RankFlight& flight, const FlightEntry& call, const HostClock& clock, int row,
              Trace& trace) {
  if (!can_be(flight, call.begun_ns)) return;
  Json event{{"name", name_of(call.call)}, {"cat", "ddprun"}, {"args", call_json(call)}};
  if (const std::string* origin = flight.origin_of(call)) event["args"]["from"] = *origin;
  if (call.ended_ns == 0) event["args"]["in_progress"] = true;
  trace.span(flight.rank.value, row, clock.wall_ns(call.begun_ns),
             clock.wall_ns(call.ended_ns == 0 ? flight.boot_ns : call.ended_ns), std::move(event));
}

// Adds the row with the generation of the rank, from its first call that is kept, and its end.
void add_life(const RankFlight& flight, const HostClock& clock, Trace& trace) {
  const int pid = flight.rank.value;
  if (flight.boot_ns == 0) return;  // nothing was read
  const std::int64_t end_ns = clock.wall_ns(flight.boot_ns);
  const std::string name =
      flight.generation ? "generation " + std::to_string(*flight.generation) : "calls";
  Json event{{"name", name}, {"cat", "ddprun"}, {"args", {{"host", flight.host}}}};
  event["args"]["state"] = flight.is_stopped ? "stopped" : flight.state;
  if (flight.step) event["args"]["step"] = *flight.step;
  const std::int64_t begun_ns =
      flight.calls.empty() || !can_be(flight, flight.calls.front().begun_ns)
          ? end_ns
          : clock.wall_ns(flight.calls.front().begun_ns);
  trace.span(pid, 0, begun_ns, end_ns, std::move(event));
  if (!flight.lives) trace.moment(pid, 0, end_ns, flight.state, "p");
}

// Adds the row of the steps. A step lasts from the report before it to its own.
void add_steps(const RankFlight& flight, const HostClock& clock, Trace& trace) {
  const int pid = flight.rank.value;
  if (flight.steps.size() < 2) return;
  trace.name("thread_name", pid, 1, "steps");
  for (std::size_t i = 1; i < flight.steps.size(); ++i) {
    const FlightStep& step = flight.steps[i];
    if (!can_be(flight, step.ns) || !can_be(flight, flight.steps[i - 1].ns)) continue;
    Json event{{"name", "step " + std::to_string(step.step)}, {"cat", "ddprun"}};
    trace.span(pid, 1, clock.wall_ns(flight.steps[i - 1].ns), clock.wall_ns(step.ns),
               std::move(event));
  }
}

// Adds the row of the waits for checkpoints, and more rows where threads waited at the same time.
void add_checkpoints(const RankFlight& flight, const HostClock& clock, Trace& trace) {
  const int pid = flight.rank.value;
  Lanes lanes;
  for (const CheckpointSpan& wait : flight.checkpoints) {
    if (!can_be(flight, wait.begun_ns) || !can_be(flight, wait.ended_ns)) continue;
    const int row = kCheckpointRow + lanes.lane_for(wait.begun_ns, wait.ended_ns);
    trace.span(pid, row, clock.wall_ns(wait.begun_ns), clock.wall_ns(wait.ended_ns),
               {{"name", "checkpoint"}, {"cat", "ddprun"}});
  }
  for (int lane = 0; lane < lanes.count(); ++lane) {
    trace.name("thread_name", pid, kCheckpointRow + lane, name_of_row("checkpoints", lane));
  }
}

Json clocks_json(const std::map<std::string, HostClock>& clocks) {
  Json json = Json::object();
  for (const auto& [host, clock] : clocks) {
    json[host] = {{"collectives", clock.collectives}};
    if (clock.bound_ns) json[host]["bound_us"] = static_cast<double>(*clock.bound_ns) / 1000;
  }
  return json;
}

// Returns nanoseconds since 1970 of a time as /status.json has it; 0: it is none.
std::int64_t wall_ns_of(const std::string& time) {
  std::tm parts{};
  const char* rest = strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (!rest) return 0;
  const int ms = *rest == '.' ? std::atoi(rest + 1) : 0;
  return (std::int64_t{timegm(&parts)} * 1000 + ms) * 1'000'000;
}

Result<void> write_compressed(const std::string& path, const std::string& trace,
                              const std::string& doing) {
  void* (*open_file)(const char*, const char*) = nullptr;
  int (*write)(void*, const void*, unsigned) = nullptr;
  int (*close_file)(void*) = nullptr;
  void* const zlib = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!zlib || !find_function(zlib, "gzopen", open_file) ||
      !find_function(zlib, "gzwrite", write) || !find_function(zlib, "gzclose", close_file)) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .doing = doing,
                 .cause = "there is no libz.so.1 on this host (give a name without .gz)"};
  }
  void* const file = open_file(path.c_str(), "wbe");
  if (!file) return system_error(doing, errno);
  const bool is_written = write(file, trace.data(), static_cast<unsigned>(trace.size())) ==
                          static_cast<int>(trace.size());
  const int reason = errno;
  if (close_file(file) != 0 || !is_written) return system_error(doing, is_written ? errno : reason);
  return {};
}

}  // namespace

std::vector<TraceMark> marks_of(const Json& job) {
  std::vector<TraceMark> marks;
  for (const char* kind : {"events", "failures"}) {
    const auto list = job.find(kind);
    if (list == job.end() || !list->is_array()) continue;
    for (const Json& one : *list) {
      const auto text = [&](const char* name) {
        const auto found = one.find(name);
        return found != one.end() && found->is_string() ? found->get<std::string>() : "";
      };
      const std::int64_t wall_ns = wall_ns_of(text("time"));
      if (wall_ns > 0) marks.push_back({wall_ns, text("what")});
    }
  }
  return marks;
}

std::string chrome_trace(const std::vector<RankFlight>& flights,
                         const std::vector<TraceMark>& marks) {
  std::map<std::uint64_t, int> rows;  // group to row, the same for all ranks
  int last_rank = -1;
  for (const RankFlight& flight : flights) {
    for (const FlightEntry& call : flight.calls) rows.emplace(call.group, 0);
    last_rank = std::max(last_rank, flight.rank.value);
  }
  int row = kLanes;
  for (auto& [group, first_row] : rows) {
    first_row = row;
    row += kLanes;
  }
  const std::map<std::string, HostClock> clocks = align_clocks(flights);
  Trace trace;
  for (const RankFlight& flight : flights) {
    const int pid = flight.rank.value;
    const HostClock& clock = clocks.at(flight.host);
    trace.name("process_name", pid, 0, "rank " + std::to_string(pid) + " on " + flight.host);
    trace.sort(pid, pid);
    trace.name("thread_name", pid, 0, "generation");
    add_life(flight, clock, trace);
    add_steps(flight, clock, trace);
    add_checkpoints(flight, clock, trace);
    std::map<std::uint64_t, Lanes> own;
    for (const FlightEntry& call : flight.calls) {
      const int lane = own[call.group].lane_for(call.begun_ns, call.ended_ns);
      add_call(flight, call, clock, rows.at(call.group) + lane, trace);
    }
    for (const auto& [group, of_group] : own) {
      for (int lane = 0; lane < of_group.count(); ++lane) {
        trace.name("thread_name", pid, rows.at(group) + lane, name_of_row(flight, group, lane));
      }
    }
  }
  const int job = std::min(last_rank, INT_MAX - 1) + 1;
  if (!marks.empty()) {
    trace.name("process_name", job, 0, "job");
    trace.sort(job, -1);
    trace.name("thread_name", job, 0, "events");
  }
  for (const TraceMark& mark : marks) trace.moment(job, 0, mark.wall_ns, mark.what, "g");
  return trace.text(clocks_json(clocks));
}

Result<void> write_trace(const std::string& path, const std::string& trace) {
  const std::string doing = "write " + path;
  if (path.ends_with(".gz")) return write_compressed(path, trace, doing);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid() || !write_all(file.get(), trace)) return system_error(doing, errno);
  return {};
}

}  // namespace ddprun
