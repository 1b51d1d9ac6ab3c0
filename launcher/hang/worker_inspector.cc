#include "launcher/hang/worker_inspector.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/deadline.h"
#include "base/process_stat.h"
#include "base/process_tree.h"
#include "base/small_file.h"
#include "launcher/flight/core/record.h"
#include "launcher/output/core/backtrace_text.h"
#include "launcher/process/command_output.h"
#include "launcher/process/side_by_side.h"

namespace ddprun {
namespace {

using Stacks = WorkerInspector::Stacks;

// A call that failed within this time is taken as a consequence of the hang.
constexpr Duration kJustNow = std::chrono::seconds(5);

bool is_signalled(int stop) {
  pollfd fd{stop, POLLIN, 0};
  return poll(&fd, 1, 0) > 0;
}

bool is_python(pid_t pid) {
  std::array<char, 4096> target;
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = readlink(link.c_str(), target.data(), target.size());
  if (size <= 0) return false;
  const std::string_view path(target.data(), static_cast<std::size_t>(size));
  return path.substr(path.rfind('/') + 1).starts_with("python");
}

// Returns the command line of gdb. gdb reads the symbols of every library, which is a gigabyte
// for Python with PyTorch. For Python it loads only the libraries that hold the frames of a
// wait.
std::vector<std::string> gdb_command(const std::string& pid, bool of_python, Stacks stacks) {
  std::vector<std::string> command{"gdb", "-nx", "-iex", "set auto-load no"};
  if (of_python) command.insert(command.end(), {"-iex", "set auto-solib-add off"});
  command.insert(command.end(), {"-batch", "-p", pid});
  if (of_python) {
    for (const char* library :
         {"libc.so", "libstdc", "libpython", "libc10.so", "libtorch_cpu", "libtorch_python"}) {
      command.insert(command.end(), {"-ex", std::string("sharedlibrary ") + library});
    }
  }
  const std::size_t depth =
      stacks == Stacks::kOfAll ? WorkerInspector::kMaxStackFrames : kMaxFrames;
  command.insert(command.end(), {"-ex", concat("bt ", depth)});
  return command;
}

// Puts the stack of the process, and the call that it waits in, into `worker`.
void put_frames(pid_t pid, const Deadline& deadline, int stop, Stacks stacks,
                WorkerSnapshot& worker) {
  const std::string number = std::to_string(pid);
  // Read before a debugger runs: one that is killed at the deadline would show in this stack.
  const std::vector<std::string> of_kernel = frames_in(text_of("/proc/" + number + "/stack"));
  const bool of_python = is_python(pid);
  const auto run = [&](const std::vector<std::string>& debugger) {
    return output_of(debugger, deadline, Stderr::kDropped, stop).text;
  };
  if (of_python && stacks == Stacks::kOfAll) {
    worker.frames = frames_in(run({"py-spy", "dump", "--native", "--pid", number}));
  }
  if (of_python && worker.frames.empty()) {
    worker.frames = frames_in(run({"py-spy", "dump", "--pid", number}));
    worker.waits_in = distributed_call_in(worker.frames);
    // Work::wait() and a backward pass wait in native code.
    if (!worker.frames.empty() && worker.waits_in.empty()) {
      worker.waits_in =
          distributed_call_in(frames_in(run({"py-spy", "dump", "--native", "--pid", number})));
    }
  }
  if (worker.frames.empty()) {
    worker.frames = frames_in(run(gdb_command(number, of_python, stacks)));
    worker.waits_in = distributed_call_in(worker.frames);
  }
  if (worker.frames.empty()) worker.frames = of_kernel;
}

// Completes one snapshot. A worker that waits in a call keeps what its flight record says,
// unless it is stopped.
void ask_about(WorkerSnapshot& worker, const Deadline& deadline, int stop, Stacks stacks) {
  const pid_t pid = working_process(worker.pid);
  const std::optional<ProcessStat> stat = process_stat(pid);
  worker.is_stopped = stat && stat->is_stopped();
  const bool is_known = worker.flight == FlightState::kWaiting && !worker.is_stopped;
  if (is_known && stacks == Stacks::kIfUnknown) return;
  worker.doing = stat ? state_of_process(pid) : "it has ended";
  if (stat && pid != worker.pid) worker.doing += ", pid " + std::to_string(pid);
  // A debugger would let a stopped process continue, or would wait for it.
  if (!stat || worker.is_stopped || stat->state == 'Z' || deadline.passed()) return;
  put_frames(pid, deadline, stop, stacks, worker);
}

// Runs debuggers for a few workers at a time, because each reads the symbols of the whole
// program.
void ask_about_all(std::vector<WorkerSnapshot>& workers, const Deadline& deadline, int stop,
                   Stacks stacks) {
  constexpr std::size_t kAtOnce = 4;
  std::atomic<std::size_t> next = 0;
  const auto ask = [&] {
    for (std::size_t i = next++; i < workers.size() && !is_signalled(stop); i = next++) {
      if (workers[i].pid > 0) ask_about(workers[i], deadline, stop, stacks);
    }
  };
  side_by_side(std::vector<std::function<void()>>(std::min(kAtOnce, workers.size()), ask));
}

// Puts what the page says about the group of the rank's call into `seen`.
void put_group(const WorkerPage& page, std::uint64_t group, WorkerSnapshot& seen) {
  if (group == 0) return;
  seen.group = group;
  RankFlight flight;
  read_flight(page, 0, flight);
  const FlightGroupFacts* facts = flight.group(group);
  if (!facts) return;
  seen.group_name = facts->name;
  // The page lists at most kFlightGroupRanks ranks. Of a larger group, only the ranks that are
  // seen in it are known.
  if (facts->ranks.size() == facts->size) seen.group_ranks = facts->ranks;
}

}  // namespace

WorkerSnapshot snapshot_of(LocalRank worker, const WorkerPage* page, TimePoint now) {
  WorkerSnapshot seen{.local_rank = worker};
  if (!page) return seen;
  seen.step = page->last_step();
  const std::uint64_t newest = page->calls.load(std::memory_order_acquire);
  if (newest == 0) return seen;
  const std::uint64_t time = to_page_time(now);
  const auto since = [time](std::uint64_t then) {
    return Duration(static_cast<std::int64_t>(time > then ? time - then : 0));
  };
  std::optional<FlightEntry> last = read_record(*page, newest);
  std::optional<FlightEntry> call = oldest_in_progress(*page);
  if (!call && last && last->failed && since(last->ended_ns) < kJustNow) call = last;
  seen.flight = call ? FlightState::kWaiting : FlightState::kOutside;
  if (!call) call = last;
  if (!call) return seen;
  // The value comes from the worker's memory, which may hold anything.
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  seen.collective = static_cast<std::int64_t>(std::min(call->collective, kMost));
  put_group(*page, call->group, seen);
  if (seen.flight != FlightState::kWaiting) return seen;
  seen.call = words_of(*call);
  seen.waited = since(call->begun_ns);
  if (is_message(call->call)) seen.peer = call->peer;
  return seen;
}

struct WorkerInspector::Shared {
  std::mutex mutex;
  std::function<void(std::vector<WorkerSnapshot>)> done;  // null: dropped
  UniqueFd stop;                                          // eventfd: tells the thread to end
};

void WorkerInspector::forget() {
  if (!shared_) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->done = nullptr;
  }
  eventfd_write(shared_->stop.get(), 1);
  shared_.reset();
}

void WorkerInspector::begin(std::vector<WorkerSnapshot> workers,
                            std::function<void(std::vector<WorkerSnapshot>)> done, Stacks stacks) {
  forget();
  shared_ = std::make_shared<Shared>();
  shared_->done = std::move(done);
  shared_->stop.reset(eventfd(0, EFD_CLOEXEC));
  const auto shared = std::make_shared<std::vector<WorkerSnapshot>>(std::move(workers));
  const auto report = [shared, state = shared_] {
    const std::lock_guard lock(state->mutex);
    if (state->done) state->done(std::move(*shared));
  };
  const Result<void> started =
      start_detached_thread("ddprun-look", [shared, state = shared_, report, stacks] {
        ask_about_all(*shared, Deadline(kPatience), state->stop.get(), stacks);
        if (!is_signalled(state->stop.get())) report();
      });
  if (!started) report();
}

}  // namespace ddprun
