// The progress report of a training: a progress bar on terminals, a line for each epoch, and the
// same numbers as a line of JSON in a file (scripts/plot-metrics draws it).
//
//   EpochReport report(options.metrics, ctx.rank() == 0, ctx.world_size());
//   report.begin_epoch(epoch, steps);
//   for (...) { train(); report.step(loss, images); }
//   report.end_epoch(step, {{"loss", ...}, {"accuracy", ...}});
//
// One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace examples {

// EpochProgress: the state of an epoch that is in progress.
struct EpochProgress {
  std::string word = "epoch";
  std::int64_t epoch = 1;
  std::int64_t done = 0, steps = 1;
  double loss = 0;
  double samples_per_second = 0;
  double seconds_left = 0;
};

// Returns "epoch 1 [======    ] 12/45  loss 0.1234  1234 samples/s  3 s left", in at most
// `columns` columns. Parts for which there is no room are omitted: the bar first, then the speed,
// the loss, and the time.
std::string progress_line(const EpochProgress& progress, std::size_t columns);

class EpochReport {
 public:
  // file: lines are appended to it; empty: no file. speaks: false on ranks other than 0, where
  // nothing is printed or written. workers: the images of a step are multiplied by it. word: the
  // unit that is counted, if it is not epochs. Throws std::runtime_error if the file cannot be
  // opened.
  EpochReport(const std::string& file, bool speaks, int workers, std::string word = "epoch");
  ~EpochReport();
  EpochReport(const EpochReport&) = delete;
  EpochReport& operator=(const EpochReport&) = delete;

  // epoch: from 1. steps: number of steps to come; in a resumed epoch those of its rest.
  void begin_epoch(std::int64_t epoch, std::int64_t steps);
  void step(double loss, std::int64_t images);
  // Prints "epoch  1  loss 0.1230  accuracy 0.9800  samples/s 1234", with `metrics` in the given
  // order. Appends {"epoch", "step", "seconds", "samples_per_second"} and the metrics to the file.
  // step: number of steps since the training began, over all epochs. Throws std::runtime_error if
  // the file cannot be written.
  void end_epoch(std::int64_t step, const nlohmann::ordered_json& metrics);

  // Returns the rate of the epoch so far, over all workers.
  double samples_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;
  void draw(double loss);
  void clear_bar();
  double seconds() const;

  bool speaks_;
  bool has_terminal_;
  bool has_bar_ = false;  // a bar is on the terminal, in the line of the cursor
  int workers_;
  std::string word_;
  std::FILE* file_ = nullptr;
  std::int64_t epoch_ = 0, steps_ = 0, done_ = 0, images_ = 0;
  Clock::time_point start_, drawn_;
};

}  // namespace examples
