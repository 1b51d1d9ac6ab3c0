// Times of the steps of DistributedDataParallel, and its configuration: the result of
// statistics().
//
//   ddprun::DistributedDataParallel model(net, ctx.group(), {.statistics_every = 1});
//   ...
//   if (ctx.rank() == 0) std::cout << model.statistics().table();
//
// Times are taken on this rank's host. On GPUs they say when the host had launched the work. At
// the end of a pass the host waits for the GPU, and the time says when the work was done. So
// `compute` is short there, and `exposed` is long. Values only; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

// BucketTimes: one bucket in one step: ready <= sent <= done, since the beginning of the
// backward pass.
struct BucketTimes {
  std::size_t gradients = 0;  // in it
  std::uint64_t bytes = 0;    // of these
  // When the last of its gradients had come. The bucket is sent when those before it have been
  // sent. The last bucket is sent at the end of the pass, because it carries the ranks' reports
  // on the pass. If no gradient came: the same as `sent`.
  std::chrono::nanoseconds ready = {};
  std::chrono::nanoseconds sent = {};  // its reduction began
  // When the average was there. With a communication hook: when the hook's second half was done,
  // which is later than the arrival of the last byte. Transfers of hooks cannot be observed.
  std::chrono::nanoseconds done = {};
};

// StepTimes: one step, which is a synchronised backward pass and the forwards in grad mode since
// the backward pass before it.
struct StepTimes {
  std::int64_t pass = 0;  // the number of the synchronised pass, from 1
  std::chrono::nanoseconds forward = {};
  // The part of `forward` before the module's own forward: buffers that become rank 0's, checks,
  // and the agreement of join().
  std::chrono::nanoseconds exchange = {};
  // From the first gradient that reached an output of the module to the end of the pass.
  std::chrono::nanoseconds backward = {};
  // The part of `backward` until autograd had computed everything.
  std::chrono::nanoseconds compute = {};
  // The part of `backward` during which at least one bucket was being reduced.
  std::chrono::nanoseconds communication = {};
  // The parts of `communication` during `compute` and after it.
  std::chrono::nanoseconds overlap = {};
  std::chrono::nanoseconds exposed = {};
  std::vector<BucketTimes> buckets = {};  // in the order in which they are sent
};

// Spread: one of these times over several steps. The median of an even number is the mean of the
// middle two.
struct Spread {
  std::chrono::nanoseconds min = {};
  std::chrono::nanoseconds median = {};
  std::chrono::nanoseconds mean = {};
  std::chrono::nanoseconds max = {};
};

struct StepSummary {
  std::size_t steps = 0;  // 0: all following values are zero
  Spread forward, exchange, backward, compute, communication, overlap, exposed;
  std::vector<BucketTimes> buckets;  // medians
};

// BucketContents: the layout of a bucket.
struct BucketContents {
  std::string dtype;        // "Float": dtype of the reduced values
  std::uint64_t bytes = 0;  // of its gradients
  // Indices into DataParallelStatistics::parameters, in the order of the layout.
  std::vector<std::size_t> parameters;
};

struct DataParallelStatistics {
  int rank = 0;
  int world_size = 0;
  std::string backend;  // "cpu"
  std::string module;   // its class name in C++
  // The options.
  std::uint64_t first_bucket_bytes = 0;
  std::uint64_t bucket_bytes = 0;
  bool broadcast_buffers = false;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  bool static_graph = false;
  std::int64_t statistics_every = 0;
  std::string comm_hook;  // its name; empty: none

  std::vector<std::string> parameters;  // the synchronised ones, in the module's order
  std::uint64_t parameter_bytes = 0;
  std::vector<std::string> dtypes;  // of these, each once, in the order of the parameters

  std::vector<BucketContents> first_buckets;  // of the first pass
  std::vector<BucketContents> buckets;        // of the next pass
  bool has_rebuilt_buckets = false;           // the first pass is over

  std::int64_t passes = 0;  // synchronised ones that have begun
  // The gradients of the last synchronised pass in the order in which they came, then those that
  // never came. Indices into `parameters`; empty before the first such pass.
  std::vector<std::size_t> ready_order;
  std::vector<std::size_t> unused;  // those that never came
  std::uint64_t unused_bytes = 0;

  // The last recorded step, and a summary of the last 100 (kRecentSteps) recorded steps with the
  // same buckets. Empty without the option 'statistics_every'. Failed passes are not recorded.
  std::optional<StepTimes> last;
  StepSummary recent;

  // Returns all of it for people, as lines of at most 100 columns that end with a newline. Long
  // lists are cut.
  std::string table() const;
};

inline constexpr std::size_t kRecentSteps = 100;

}  // namespace ddprun
