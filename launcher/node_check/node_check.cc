#include "launcher/node_check/node_check.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/error.h"
#include "base/pipe.h"
#include "base/write_all.h"
#include "launcher/node_check/measure.h"

namespace ddprun {
namespace {

// A hook for tests: with this value a check finds a wrong digest.
constexpr const char* kTestVariable = "DDPRUN_TEST_NODE_CHECK";
constexpr std::string_view kFlippedDigest = "flip-digest";

// stop: as in GpuPlan.
std::string measure_and_judge(const NodeCheckPlan& plan, NodeStep& step, int stop) {
  NodeMeasurements measured = measure_node(plan.directory, plan.limits, step);
  const char* const hook = std::getenv(kTestVariable);
  if (hook && hook == kFlippedDigest) measured.digest ^= 1;
  std::string fault = fault_of(measured, plan.limits);
  if (plan.neighbours) {
    step = "link";
    NeighbourPlan neighbours = *plan.neighbours;
    neighbours.takes_part = fault.empty();
    const std::vector<LinkMeasurement> links = measure_links(neighbours);
    if (fault.empty()) {
      fault = fault_of(links, neighbours.node, neighbours.node_count, plan.limits);
    }
  }
  if (!fault.empty() || plan.limits.gpu == 0) return fault;
  // After the links: a neighbour does not wait for GPUs that need seconds to start.
  step = "gpu";
  return check_gpus({.ddprun = plan.ddprun,
                     .gpus = plan.workers,
                     .limit = plan.limits.gpu,
                     .patience = plan.gpu_patience,
                     .stop = stop});
}

// Returns what is wrong with the node; empty: nothing is.
std::string check(const NodeCheckPlan& plan, NodeStep& step, int stop) {
  try {
    return measure_and_judge(plan, step, stop);
  } catch (const std::bad_alloc&) {
    return concat(step.load(), ": ", errno_text(ENOMEM));
  }
}

}  // namespace

// The thread posts to the io_context under the mutex. So the io_context lives then.
struct NodeCheck::Shared {
  std::mutex mutex;
  NodeCheck* owner = nullptr;  // null: the check was dropped
  NodeStep step{"start"};
  Pipe stop;  // readable once the check was dropped
};

NodeCheck::NodeCheck(boost::asio::io_context& io, Done done)
    : io_(io), late_(io), done_(std::move(done)) {}

void NodeCheck::begin(NodeCheckPlan plan) {
  end();
  const Generation generation = plan.generation;
  const Duration for_gpus =
      plan.limits.gpu > 0 ? plan.gpu_patience.first + plan.gpu_patience.second : Duration::zero();
  const Duration patience = std::max(kLeastPatience, kPatienceBeforeGpus + for_gpus);
  const auto shared = shared_ = std::make_shared<Shared>();
  shared->owner = this;
  const auto finish_later = [shared, generation](const std::string& fault) {
    const std::lock_guard lock(shared->mutex);
    if (!shared->owner) return;
    boost::asio::post(shared->owner->io_, [shared, generation, fault] {
      if (shared->owner) shared->owner->finish(generation, fault);
    });
  };
  Result<Pipe> stop = make_pipe();
  if (!stop) return finish_later(stop.error().message());
  shared->stop = std::move(*stop);
  const Result<void> started =
      start_detached_thread("ddprun-check", [shared, finish_later, plan = std::move(plan)] {
        finish_later(check(plan, shared->step, shared->stop.read.get()));
      });
  if (!started) return finish_later(started.error().message());
  late_.expires_after(patience);
  late_.async_wait([this, shared, generation, patience](boost::system::error_code error) {
    if (error || shared != shared_) return;
    finish(generation, concat(shared->step.load(), ": no result within ", patience));
  });
}

void NodeCheck::end() {
  late_.cancel();
  const std::shared_ptr<Shared> shared = std::exchange(shared_, nullptr);
  if (!shared) return;
  const std::lock_guard lock(shared->mutex);
  shared->owner = nullptr;
  write_all(shared->stop.write.get(), "s");
}

void NodeCheck::finish(Generation generation, const std::string& fault) {
  end();
  done_(generation, fault);
}

}  // namespace ddprun
