#include "tests/worker_lib/support/queue_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/StreamGuard.h>
#include <torch/library.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace ddprun {
namespace {

constexpr torch::DeviceType kType = torch::kPrivateUse1;
const torch::Device kDevice(kType, 0);

// Queue: a stream. It runs its tasks in order, on its own thread.
class Queue {
 public:
  Queue() : thread_([this] { run(); }) {}
  ~Queue() {
    put(nullptr);
    thread_.join();
  }

  void put(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void set_open(bool open) {
    const std::lock_guard lock(mutex_);
    is_open_ = open;
    changed_.notify_all();
  }

  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty(); });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_open_ && !tasks_.empty(); });
      const std::function<void()> task = tasks_.front();
      if (!task) return;
      lock.unlock();
      task();
      lock.lock();
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_open_ = true;
  std::thread thread_;  // last: it uses the members above
};

// Event: counts how often it was recorded and how many of those records its streams have
// reached.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0;
  int passed = 0;
};
using EventHandle = std::shared_ptr<Event>;

EventHandle& handle_of(void* event) { return *static_cast<EventHandle*>(event); }

constexpr std::size_t kDefaultStreams = 8;
constexpr std::size_t kPoolStreams = 7;
thread_local c10::StreamId tl_current = -1;  // -1: this thread has no stream yet

struct Device {
  std::array<Queue, kDefaultStreams + kPoolStreams> streams;
  std::mutex mutex;
  std::size_t given_default = 0;
  std::size_t given = 0;  // from the pool
  // By memory: the streams that were recorded as its users.
  std::map<void*, std::set<c10::StreamId>> used_on;
};

Device& device() {
  static Device the_device;
  return the_device;
}

// Returns the calling thread's current stream. Each thread starts with a default stream of its
// own, as a process would, because ranks are threads here.
c10::StreamId& current() {
  if (tl_current < 0) {
    const std::lock_guard lock(device().mutex);
    tl_current = static_cast<c10::StreamId>(device().given_default++ % kDefaultStreams);
  }
  return tl_current;
}

Queue& queue_of(c10::StreamId id) { return device().streams[static_cast<std::size_t>(id)]; }

c10::Stream stream_of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

void free_memory(void* memory) {
  std::set<c10::StreamId> users;
  {
    const std::lock_guard lock(device().mutex);
    users = std::move(device().used_on[memory]);
    device().used_on.erase(memory);
  }
  // The memory is freed after the last of these streams has reached this point.
  const auto left = std::make_shared<std::atomic<std::size_t>>(users.size());
  if (users.empty()) std::free(memory);
  for (const c10::StreamId id : users) {
    queue_of(id).put([memory, left] {
      if (left->fetch_sub(1) == 1) std::free(memory);
    });
  }
}

struct QueueGuard final : c10::impl::DeviceGuardImplInterface {
  torch::DeviceType type() const override { return kType; }
  torch::Device exchangeDevice(torch::Device) const override { return kDevice; }
  torch::Device getDevice() const override { return kDevice; }
  void setDevice(torch::Device) const override {}
  void uncheckedSetDevice(torch::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(torch::Device) const override { return stream_of(current()); }
  c10::Stream getDefaultStream(torch::Device) const override { return stream_of(current()); }
  c10::Stream getStreamFromGlobalPool(torch::Device, bool) const override {
    const std::lock_guard lock(device().mutex);
    return stream_of(static_cast<c10::StreamId>(kDefaultStreams + device().given++ % kPoolStreams));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current(), stream.id()));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = new EventHandle(std::make_shared<Event>());
    const EventHandle handle = handle_of(*event);
    const std::lock_guard lock(handle->mutex);
    queue_of(stream.id()).put([handle, mark = ++handle->recorded] {
      const std::lock_guard passing(handle->mutex);
      handle->passed = std::max(handle->passed, mark);
      handle->changed.notify_all();
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    const EventHandle handle = handle_of(event);
    const std::lock_guard lock(handle->mutex);
    queue_of(stream.id()).put([handle, mark = handle->recorded] {
      std::unique_lock waiting(handle->mutex);
      handle->changed.wait(waiting, [&] { return handle->passed >= mark; });
    });
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    const EventHandle handle = handle_of(event);
    const std::lock_guard lock(handle->mutex);
    return handle->passed >= handle->recorded;
  }
  void synchronizeEvent(void* event) const override {
    const EventHandle handle = handle_of(event);
    std::unique_lock lock(handle->mutex);
    handle->changed.wait(lock, [&] { return handle->passed >= handle->recorded; });
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    const std::lock_guard lock(device().mutex);
    if (memory.get()) device().used_on[memory.get()].insert(stream.id());
  }
};

struct QueueAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = bytes == 0 ? nullptr : std::malloc(bytes);
    return {memory, memory, &free_memory, kDevice};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

torch::Tensor empty(torch::IntArrayRef sizes, std::optional<torch::ScalarType> dtype,
                    std::optional<torch::Layout>, std::optional<torch::Device>, std::optional<bool>,
                    std::optional<torch::MemoryFormat> format) {
  static QueueAllocator allocator;
  return at::detail::empty_generic(sizes, &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(torch::kFloat32), format);
}

torch::Tensor empty_strided(torch::IntArrayRef sizes, torch::IntArrayRef,
                            std::optional<torch::ScalarType> dtype,
                            std::optional<torch::Layout> layout, std::optional<torch::Device> where,
                            std::optional<bool> pinned) {
  return empty(sizes, dtype, layout, where, pinned, {});
}

// Copies on the current stream. Host memory is kept alive until the copy is done, as pinned
// memory is. Memory of the device is not kept.
torch::Tensor& copy(torch::Tensor& to, const torch::Tensor& from, bool non_blocking) {
  void* const destination = to.mutable_data_ptr();
  const void* const source = from.const_data_ptr();
  const torch::Tensor host = to.is_cpu() ? to : from;
  queue_of(current()).put([=, bytes = to.nbytes(), kept = host.is_cpu() ? host : torch::Tensor()] {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  });
  if (!non_blocking) queue_of(current()).drain();
  return to;
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, QueueGuard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("copy_", copy);
}

}  // namespace

torch::Device QueueDevice::install() {
  device();
  return kDevice;
}

torch::Tensor QueueDevice::put(const torch::Tensor& host) {
  torch::Tensor there =
      torch::empty(host.sizes(), torch::TensorOptions(host.scalar_type()).device(kDevice));
  if (host.numel() > 0) there.copy_(host);
  return there;
}

torch::Tensor QueueDevice::get(const torch::Tensor& device) {
  torch::Tensor host = torch::empty(device.sizes(), device.scalar_type());
  if (host.numel() > 0) host.copy_(device);
  return host;
}

void QueueDevice::drain() {
  for (Queue& one : device().streams) one.drain();
}

void QueueDevice::close_stream() { queue_of(current()).set_open(false); }
void QueueDevice::open_stream() { queue_of(current()).set_open(true); }

}  // namespace ddprun
