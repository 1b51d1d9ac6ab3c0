#include "worker_lib/group/serial_executor.h"

namespace ddprun {

std::shared_ptr<detail::HostWork> SerialExecutor::submit(Call call) {
  auto work = std::make_shared<detail::HostWork>();
  if (const Result<void> started = queue_.start(); !started) {
    work->complete(started);
    return work;
  }
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  queue_.post([this, call = std::move(call), work]() mutable {
    const Result<void> result = call();
    call = nullptr;  // releases the tensors before a waiting thread sees the end
    unfinished_.fetch_sub(1, std::memory_order_release);
    work->complete(result);
  });
  return work;
}

}  // namespace ddprun
