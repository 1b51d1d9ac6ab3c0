#include "launcher/agent/rank_table.h"

#include <algorithm>
#include <cmath>

#include "base/concat.h"
#include "base/flight_words.h"
#include "base/process_stat.h"
#include "base/process_tree.h"
#include "base/step_shares.h"

namespace ddprun {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Rounds to thousandths, which is enough for people.
double rounded(double value) { return std::round(value * 1000) / 1000; }

}  // namespace

const std::vector<RankRow>* RankTable::recent(TimePoint now) const {
  return sampled_ && now < *sampled_ + kPause ? &rows_ : nullptr;
}

const std::vector<RankRow>& RankTable::sample(const std::vector<Source>& workers, TimePoint now) {
  sampled_ = now;
  rows_.clear();
  last_.resize(workers.size());
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const auto& [worker, page, lives, gpu] = workers[i];
    RankRow& row = rows_.emplace_back();
    row.rank = worker.rank;
    row.local_rank = worker.local_rank;
    row.pid = worker.pid;
    row.state = worker.state;
    if (page) put_page(*page, lives, now, last_[i], row);
    if (!lives) continue;
    put_process(worker, now, last_[i], row);
    row.gpu_percent = gpu.percent;
    row.gpu_memory_bytes = gpu.memory_bytes;
    // A shell may stand between the agent and the program.
    for (const GpuProcess& process : gpu.processes) {
      if (process.pid == worker.pid || process.pid == last_[i].process) {
        row.gpu_own_memory_bytes = process.memory_bytes;
      }
    }
  }
  return rows_;
}

void RankTable::clear() {
  rows_.clear();
  last_.clear();
  sampled_.reset();
}

void RankTable::put_page(const WorkerPage& page, bool lives, TimePoint now, Last& last,
                         RankRow& row) {
  // Workers may write any number.
  const auto before_now = [time = to_page_time(now)](std::uint64_t ns) { return ns <= time; };
  row.step = page.last_step();
  const std::int64_t total = page.total_steps.load(std::memory_order_relaxed);
  if (row.step && total > 0) row.total_steps = total;
  const std::uint64_t first_ns = page.first_step_ns.load(std::memory_order_relaxed);
  if (row.step && !last.steps.step() && first_ns > 0 && before_now(first_ns)) {
    last.steps.see(page.first_step.load(std::memory_order_relaxed),
                   TimePoint(Duration(static_cast<Duration::rep>(first_ns))));
  }
  last.steps.see(row.step, now);
  std::optional<FlightEntry> call = oldest_in_progress(page);
  if (call && lives && before_now(call->begun_ns)) {
    row.waiting_s =
        rounded(seconds(Duration(static_cast<Duration::rep>(to_page_time(now) - call->begun_ns))));
  }
  const std::uint64_t newest = page.calls.load(std::memory_order_acquire);
  if (!call && newest > 0) call = read_record(page, newest);
  if (call) row.collective = concat(name_of(call->call), " ", call->collective);
  if (!lives) return;
  if (const std::optional<double> rate = last.steps.rate()) row.steps_per_second = rounded(*rate);
  row.step_percent = read_step_shares(page);
}

// The process may be the child of a shell that the agent has started. Its own children, such as
// those that load data, are not counted.
void RankTable::put_process(const WorkerView& worker, TimePoint now, Last& last, RankRow& row) {
  const pid_t process = working_process(worker.pid);
  const std::optional<ProcessStat> stat = process_stat(process);
  if (!stat) return;
  if (stat->is_stopped()) row.state = "stopped";
  row.memory_bytes = stat->resident_bytes;
  if (last.process != process) {
    last.process = process;
    last.cpu = Duration(0);
    last.when = worker.since;
  }
  if (now > last.when) {
    const double share = seconds(stat->cpu - last.cpu) / seconds(now - last.when);
    row.cpu_percent = std::round(std::max(0.0, 1000 * share)) / 10;
  }
  last.cpu = stat->cpu;
  last.when = now;
}

}  // namespace ddprun
