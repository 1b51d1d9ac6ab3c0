#include "tests/worker_lib/nccl/double.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "tests/support/eventually.h"
#include "tests/worker_lib/nccl/double_memory.h"
#include "tests/worker_lib/nccl/double_state.h"

namespace ddprun {
namespace {

std::atomic<NcclDouble*> the_double = nullptr;

// Allocates the memory of tensors like the allocator of a stream: freed memory is not used
// again before the streams have passed. Here this means until the double ends.
class StreamAllocator final : public c10::Allocator {
 public:
  static void install() {
    static StreamAllocator the_allocator;
    c10::SetCPUAllocator(&the_allocator, /*priority=*/100);
  }

  static void free_all() {
    const std::lock_guard lock(mutex_);
    for (void* data : let_go_) std::free(data);
    let_go_.clear();
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    return {data, data, &let_go, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void let_go(void* data) {
    const std::lock_guard lock(mutex_);
    if (the_double) {
      let_go_.push_back(data);
    } else {
      std::free(data);
    }
  }

  static inline std::mutex mutex_;
  static inline std::vector<void*> let_go_;
};

}  // namespace

const char* to_name(NcclVersion version) {
  switch (version) {
    case NcclVersion::k2_28_9: return "2_28_9";
    case NcclVersion::k2_30_7: return "2_30_7";
    case NcclVersion::k2_31_2: return "2_31_2";
  }
  return "";
}

NcclDouble& NcclDouble::self() {
  NcclDouble* there = the_double;
  if (!there) throw std::logic_error("a call of the NCCL table after the test");
  return *there;
}

NcclDouble::NcclDouble(NcclVersion version)
    : version_(version), blocks_before_(double_memory().blocks.size()) {
  NcclDouble* none = nullptr;
  if (!the_double.compare_exchange_strong(none, this)) {
    ADD_FAILURE() << "two NCCL doubles at a time";
  }
  double_device() = 0;
  StreamAllocator::install();
}

NcclDouble::~NcclDouble() {
  // A thread that frees a communicator may outlast the one that waited for it.
  (void)testing_support::eventually([this] {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(
        comms_, [this](const auto& one) { return one->is_gone || is_in_graph(*one); });
  });
  const std::lock_guard lock(mutex_);
  expected_breaches_.reset();
  report_left_communicators();
  for (const auto& event : events_) {
    if (!event->is_destroyed) breach("an event was not destroyed");
  }
  std::set<Stream*> of_callers;
  for (const auto& [thread, stream] : callers_) of_callers.insert(stream);
  for (const auto& stream : streams_) {
    if (!stream->is_destroyed && !of_callers.contains(stream.get())) {
      breach("a stream was not destroyed");
    }
  }
  the_double = nullptr;
  StreamAllocator::free_all();
}

void NcclDouble::breach(const std::string& what) {
  if (expected_breaches_) {
    expected_breaches_->push_back(what);
  } else {
    ADD_FAILURE() << "NCCL's contract: " << what;
  }
}

void NcclDouble::expect_breaches() {
  const std::lock_guard lock(mutex_);
  expected_breaches_.emplace();
}

std::vector<std::string> NcclDouble::take_breaches() {
  const std::lock_guard lock(mutex_);
  return std::exchange(*expected_breaches_, {});
}

void NcclDouble::set_device_count(int count) { device_count_ = count; }

void NcclDouble::set_rounds_in_progress(int rounds) { rounds_in_progress_ = rounds; }

void NcclDouble::fail_next(const std::string& call, NcclResult result) {
  const std::lock_guard lock(mutex_);
  planned_failures_[call] = static_cast<int>(result);
}

void NcclDouble::fail_next(const std::string& call, CudaResult result) {
  const std::lock_guard lock(mutex_);
  planned_failures_[call] = static_cast<int>(result);
}

void NcclDouble::fail_job_of_next(const std::string& call, NcclResult result) {
  const std::lock_guard lock(mutex_);
  planned_job_failures_[call] = result;
}

void NcclDouble::set_blocking() {
  const std::lock_guard lock(mutex_);
  is_blocking_ = true;
}

void NcclDouble::set_async_error(int rank, NcclResult error) {
  const std::lock_guard lock(mutex_);
  for (const auto& comm : comms_) {
    if (comm->rank == rank) comm->noticed = error;
  }
}

void NcclDouble::make_abort_hang() {
  const std::lock_guard lock(mutex_);
  abort_hangs_ = true;
}

void NcclDouble::let_abort_return() {
  const std::lock_guard lock(mutex_);
  abort_hangs_ = false;
  changed_.notify_all();
}

void NcclDouble::make_event_query_hang() {
  const std::lock_guard lock(mutex_);
  event_query_hangs_ = true;
}

void NcclDouble::let_event_query_return() {
  const std::lock_guard lock(mutex_);
  event_query_hangs_ = false;
  changed_.notify_all();
}

void NcclDouble::hold_threads(std::string name) {
  const std::lock_guard lock(mutex_);
  held_threads_ = std::move(name);
}

void NcclDouble::let_threads_go() {
  const std::lock_guard lock(mutex_);
  held_threads_.clear();
  changed_.notify_all();
}

void NcclDouble::close_stream() {
  const std::lock_guard lock(mutex_);
  own_stream().entries.push_back({.kind = Entry::Kind::kClosed});
}

void NcclDouble::open_stream() {
  const std::lock_guard lock(mutex_);
  std::erase_if(own_stream().entries,
                [](const Entry& entry) { return entry.kind == Entry::Kind::kClosed; });
  pump();
}

std::vector<std::string> NcclDouble::calls() {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int NcclDouble::count(const std::string& call) {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::ranges::count(calls_, call));
}

void NcclDouble::let_ranks_disagree() {
  const std::lock_guard lock(mutex_);
  may_disagree_ = true;
}

int NcclDouble::memory_count() {
  const std::lock_guard lock(double_memory().mutex);
  return static_cast<int>(double_memory().blocks.size() - blocks_before_);
}

int NcclDouble::registered_count() {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const auto& comm : comms_) all += comm->registered.size();
  return static_cast<int>(all);
}

bool NcclDouble::is_stream_idle() {
  const std::lock_guard lock(mutex_);
  pump();
  return own_stream().entries.empty();
}

int NcclDouble::current_device() { return double_device(); }

std::set<int> NcclDouble::contexts() {
  const std::lock_guard lock(mutex_);
  return contexts_;
}

// Makes a context on the current device, as a call of the CUDA run-time does. For a new thread
// the current device is 0.
void NcclDouble::touch_context() { contexts_.insert(double_device()); }

std::optional<int> NcclDouble::planned_failure(const std::string& call) {
  calls_.push_back(call);
  const auto planned = planned_failures_.find(call);
  if (planned == planned_failures_.end()) return std::nullopt;
  const int result = planned->second;
  planned_failures_.erase(planned);
  return result;
}

CudaResult NcclDouble::cuda(const std::string& call, const std::function<void()>& action) {
  const std::lock_guard lock(mutex_);
  if (const auto failure = planned_failure(call)) return static_cast<CudaResult>(*failure);
  touch_context();
  action();
  pump();
  return CudaResult::kSuccess;
}

}  // namespace ddprun
