// statistics().table().
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/clock.h"
#include "base/concat.h"
#include "base/counted.h"
#include "base/joined.h"
#include "worker_lib/ddp/core/step_statistics.h"

namespace ddprun {
namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kMaxBuckets = 40;  // the table shows at most this number of rows
constexpr std::size_t kMaxLineBytes = 100;

std::string in_ms(Duration time) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3f", static_cast<double>(time.count()) / 1e6);
  return text.data();
}

std::string in_mib(std::uint64_t bytes) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3f MiB", static_cast<double>(bytes) / (1 << 20));
  return text.data();
}

// Aligns the first column to the left, the others to the right.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      text += i == 0 ? row[i] + padding : "  " + padding + row[i];
    }
    text += "\n";
  }
  return text;
}

// Lists the names that fit on a line.
std::string list_line(const std::string& title, const std::vector<std::size_t>& indices,
                      const std::vector<std::string>& names) {
  std::string line = title;
  std::size_t shown = 0;
  for (; shown < indices.size(); ++shown) {
    const std::string more = (shown == 0 ? " " : ", ") + names[indices[shown]];
    const std::size_t room_for_rest = shown + 1 < indices.size() ? 16 : 0;
    if (shown > 0 && line.size() + more.size() + room_for_rest > kMaxLineBytes) break;
    line += more;
  }
  if (shown < indices.size()) line += concat(" and ", indices.size() - shown, " more");
  return line + "\n";
}

std::string heading(const DataParallelStatistics& of) {
  return concat("rank ", of.rank, " of ", of.world_size, " on ", of.backend,
                of.comm_hook.empty() ? "" : ", hook " + of.comm_hook, ", pass ", of.passes, "\n",
                counted(of.parameters.size(), "parameter"), ", ", in_mib(of.parameter_bytes),
                " of ", joined(of.dtypes), ", in ", counted(of.buckets.size(), "bucket"),
                of.has_rebuilt_buckets ? ", laid out in the order of the first pass\n"
                                       : ", not yet rearranged\n");
}

std::string lists(const DataParallelStatistics& of) {
  std::string text;
  if (!of.ready_order.empty()) {
    const auto came = of.ready_order.end() - of.unused.size();
    text += list_line("ready first:", {of.ready_order.begin(), came}, of.parameters);
  }
  if (!of.unused.empty())
    text += list_line("unused, " + in_mib(of.unused_bytes) + ":", of.unused, of.parameters);
  return text;
}

std::string times(const StepTimes& last, const StepSummary& recent) {
  std::vector<Row> rows{
      {"ms, of " + counted(recent.steps, "step"), "min", "median", "mean", "max", "last"}};
  for (const StepTime& time : kStepTimes) {
    const Spread& spread = recent.*time.of_summary;
    rows.push_back({time.label, in_ms(spread.min), in_ms(spread.median), in_ms(spread.mean),
                    in_ms(spread.max), in_ms(last.*time.of_step)});
  }
  return aligned(rows);
}

std::string bucket_times(const StepSummary& recent) {
  std::vector<Row> rows{{"bucket", "gradients", "size", "ready", "sent", "done", "took"}};
  const std::size_t shown = std::min(recent.buckets.size(), kMaxBuckets);
  for (std::size_t i = 0; i < shown; ++i) {
    const BucketTimes& bucket = recent.buckets[i];
    rows.push_back({std::to_string(i), std::to_string(bucket.gradients), in_mib(bucket.bytes),
                    in_ms(bucket.ready), in_ms(bucket.sent), in_ms(bucket.done),
                    in_ms(bucket.done - bucket.sent)});
  }
  std::string text = "ms since the backward pass began, medians\n" + aligned(rows);
  if (shown < recent.buckets.size())
    text += concat("and ", recent.buckets.size() - shown, " more\n");
  return text;
}

}  // namespace

std::string DataParallelStatistics::table() const {
  std::string text = heading(*this) + lists(*this);
  if (last) return text + "\n" + times(*last, recent) + "\n" + bucket_times(recent);
  return concat(text, statistics_every == 0 ? "no times" : "no times yet",
                ": the option 'statistics_every' is ", statistics_every, "\n");
}

}  // namespace ddprun
