// What the steps of DistributedDataParallel took, and what it works with: the answer of
// statistics().
//
//   ddprun::DistributedDataParallel model(net, ctx.group(), {.statistics_every = 1});
//   ...
//   if (ctx.rank() == 0) std::cout << model.statistics().table();
//
// Times are those of this rank's host. On GPUs they say when the host had work launched, and at the
// end of a pass, where the host waits for the GPU, when that was done; so `compute` is short there,
// and `exposed` long. Values only; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

// One bucket in one step: ready <= sent <= done, since the beginning of the backward pass.
struct BucketTimes {
  std::size_t gradients = 0;  // in it
  std::uint64_t bytes = 0;    // of these
  // The last of its gradients had come. It goes when those before it have gone; the last bucket
  // goes at the end of the pass, because it carries what ranks tell each other about the pass.
  // Where no gradient came: as `sent`.
  std::chrono::nanoseconds ready = {};
  std::chrono::nanoseconds sent = {};  // its reduction was begun
  // The average was there. With a communication hook: what the hook does at the end of the pass was
  // done, later than the last byte came; nobody sees what hooks send.
  std::chrono::nanoseconds done = {};
};

// A step: a synchronised backward pass, and the forwards in grad mode since the backward pass
// before it.
struct StepTimes {
  std::int64_t pass = 0;  // the number of the synchronised pass, from 1
  std::chrono::nanoseconds forward = {};
  // Of it, before the module's own forward: buffers becoming rank 0's, checks, join()'s agreement.
  std::chrono::nanoseconds exchange = {};
  // From the first gradient that reached an output of the module to the end of the pass.
  std::chrono::nanoseconds backward = {};
  // Of it, until autograd had computed everything.
  std::chrono::nanoseconds compute = {};
  // Of it, while at least one bucket was on its way.
  std::chrono::nanoseconds communication = {};
  // The parts of that which lie within `compute` and behind it.
  std::chrono::nanoseconds overlap = {};
  std::chrono::nanoseconds exposed = {};
  std::vector<BucketTimes> buckets = {};  // in the order in which they are sent
};

// Of the same time in several steps. The median of an even number is the mean of the two in the
// middle.
struct Spread {
  std::chrono::nanoseconds min = {};
  std::chrono::nanoseconds median = {};
  std::chrono::nanoseconds mean = {};
  std::chrono::nanoseconds max = {};
};

struct StepSummary {
  std::size_t steps = 0;  // 0: all that follows is zero
  Spread forward, exchange, backward, compute, communication, overlap, exposed;
  std::vector<BucketTimes> buckets;  // medians
};

// A bucket as it is laid out.
struct BucketContents {
  std::string dtype;        // "Float", of what is reduced
  std::uint64_t bytes = 0;  // of its gradients
  std::vector<std::size_t>
      parameters;  // indices into DataParallelStatistics::parameters, as they lie
};

struct DataParallelStatistics {
  int rank = 0;
  int world_size = 0;
  std::string backend;  // "cpu"
  std::string module;   // its class, as C++ calls it
  // What was asked for.
  std::uint64_t first_bucket_bytes = 0;
  std::uint64_t bucket_bytes = 0;
  bool broadcast_buffers = false;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  bool static_graph = false;
  std::int64_t statistics_every = 0;
  std::string comm_hook;  // its name; empty: none

  std::vector<std::string> parameters;  // that are synchronised, in the module's order
  std::uint64_t parameter_bytes = 0;
  std::vector<std::string> dtypes;  // of these, each once, in the order of the parameters

  std::vector<BucketContents> first_buckets;  // of the first pass
  std::vector<BucketContents> buckets;        // of the next pass
  bool has_rebuilt_buckets = false;           // the first pass is over

  std::int64_t passes = 0;  // synchronised ones that have begun
  // Of the last synchronised pass: gradients in the order in which they came, those that never did
  // behind them. Indices into `parameters`; empty before there was one.
  std::vector<std::size_t> ready_order;
  std::vector<std::size_t> unused;  // those that never did
  std::uint64_t unused_bytes = 0;

  // The last step that was recorded, and the last 100 (kRecentSteps) of them that had the same
  // buckets. Nothing without the option 'statistics_every', nor of passes that failed.
  std::optional<StepTimes> last;
  StepSummary recent;

  // All of it for people, as lines of at most 100 columns that end with a newline; long lists are
  // cut.
  std::string table() const;
};

inline constexpr std::size_t kRecentSteps = 100;

}  // namespace ddprun
