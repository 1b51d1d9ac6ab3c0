// SummaryWriter: writes event files for TensorBoard: scalars, histograms, text, images and
// hyperparameters. Needs neither LibTorch nor protobuf; `ddprun/summary_tensors.h` takes tensors.
//
//   ddprun::SummaryWriter board(
//       {.directory = "runs/lr0.1", .first_step = step, .rank = ctx.rank()});
//   for (; step < steps; ++step) board.add_scalar("loss", loss, step);
//
//   tensorboard --logdir runs
//
// Ranks: only rank 0 writes. On other ranks every call returns at once, and checks nothing.
//
// Time: a call copies what it is given, queues it and returns. A thread of the writer encodes it,
// and writes it after `flush_every` at the latest. The time of an event is that of the call. If the
// queue is full, the event is dropped: training never waits for a disk. The first drop is a warning
// on stderr; dropped() counts all.
//
// Crashes: an event is in the file completely, or no reader sees it. A program that is killed loses
// what it added after the last write, at most `flush_every` of it. Written means handed to the
// system: it survives the end of the process, not a loss of power. flush(), the destructor and a
// request to save (ddprun --checkpoint-signal) write at once. For a restart without a gap in the
// events, call flush() before a checkpoint is saved.
//
// Restarts: each life of a program writes a file of its own, which sorts after the earlier ones.
// It begins with TensorBoard's SessionLog.START at `first_step`. What earlier lives wrote for this
// step and later ones is void then. Readers drop it: TensorBoard's default one for each tag when it
// is written again, `--load_fast=false` at once. So no step is seen twice.
//
// Disk errors after the constructor are warnings on stderr, one for each row of failures. The
// writer tries again every `flush_every`, and continues where it stopped.
//
// Any thread may call a SummaryWriter, which one thread destroys. In the child of a fork it does
// nothing. Tags, texts and names are UTF-8. kInvalidArgument names a bad value and queues nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ddprun/error.h"

namespace ddprun {

struct SummaryOptions {
  // One directory for each run, made if it is missing. TensorBoard reads its files as one run.
  std::string directory;
  // The first step of which this life adds events; 0 for a new run. After a restart from a
  // checkpoint of `restored.step` steps it is restored.step if steps count from 0. It is
  // restored.step + 1 if the first step is number 1.
  std::int64_t first_step = 0;
  // Default: RANK in the environment, else 0. To write on other ranks, too, set it to 0 there, and
  // give each rank its own directory.
  std::optional<int> rank = {};
  std::chrono::nanoseconds flush_every = std::chrono::seconds(5);
  // Bytes of values in the queue. An event that is larger is taken if the queue is empty.
  std::size_t max_queue_bytes = std::size_t{64} << 20;
};

// Hyperparameters by name. TensorBoard shows whole numbers as float64.
using HParam = std::variant<bool, std::int64_t, double, std::string>;
using HParams = std::map<std::string, HParam>;

struct ImageShape {
  int height = 0;
  int width = 0;
  int channels = 3;  // 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA)
  enum class Layout { kCHW, kHWC } layout = Layout::kCHW;
};

class SummaryWriter {
 public:
  // Makes the directory and a new file in it. Throws kSystem if that fails, and kInvalidArgument
  // for an empty directory or a flush_every that is not above zero.
  explicit SummaryWriter(const SummaryOptions& options);
  // Writes what is queued, for 10 s at most. What cannot be written is a warning.
  ~SummaryWriter();
  SummaryWriter(SummaryWriter&&) noexcept;
  SummaryWriter& operator=(SummaryWriter&&) noexcept;

  // Returns whether this rank writes.
  bool is_writing() const { return impl_ != nullptr; }

  // Adds a number, which is stored as a float.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  // Adds the distribution of some values, in TensorBoard's default buckets as PyTorch has them. NaN
  // and infinite values are left out. Without a finite value nothing is written.
  void add_histogram(std::string_view tag, std::span<const float> values, std::int64_t step);
  void add_histogram(std::string_view tag, std::span<const double> values, std::int64_t step);

  // Adds a text, which TensorBoard shows as Markdown under "<tag>/text_summary".
  void add_text(std::string_view tag, std::string_view text, std::int64_t step);

  // Adds an image, which is stored as PNG without compression. Floats are 0 (black) to 1; others
  // are clipped, and NaN is black. Throws kInvalidArgument if the values are not those of the
  // shape.
  void add_image(std::string_view tag, std::span<const std::uint8_t> pixels,
                 const ImageShape& shape, std::int64_t step);
  void add_image(std::string_view tag, std::span<const float> pixels, const ImageShape& shape,
                 std::int64_t step);

  // Adds hyperparameters and results for TensorBoard's tab HPARAMS. A metric is also a scalar. The
  // first call in a directory counts, also over restarts. Later ones change only these scalars.
  void add_hparams(const HParams& parameters, const std::map<std::string, double>& metrics,
                   std::int64_t step = 0);  // above the metrics' steps, else curves are dropped

  // Returns when all that was added before is written. Throws kSystem if it cannot be written, and
  // kTimeout if that takes longer. The events stay queued then.
  void flush(std::chrono::nanoseconds timeout = std::chrono::seconds(30));

  // Returns the number of events that were dropped because the queue was full.
  std::int64_t dropped() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with its thread; null on ranks that do not write
};

}  // namespace ddprun
