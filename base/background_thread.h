// Starts threads in addition to the thread of the program or its event loop. They block all
// signals, which are left to the other threads, and have a name. Any thread.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

// Starts `body`, which must not throw, as `thread`. name: at most 15 characters, shown by
// debuggers.
Result<void> start_thread(std::thread& thread, const std::string& name, std::function<void()> body);

// Starts a thread as start_thread() does; it is never joined. What `body` uses must live as long as
// the process, or be owned by `body`.
Result<void> start_detached_thread(const std::string& name, std::function<void()> body);

// Runs `body` in a thread of its own, which has ended before this returns, and returns its
// result. Returns an error if the thread cannot be started. nullopt: `body` has not ended
// within `allowed`; its thread is detached and continues.
template <class T>
std::optional<Result<T>> result_within(Duration allowed, const std::string& name,
                                       std::function<Result<T>()> body) {
  const auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> answer = promise->get_future();
  std::thread thread;
  const Result<void> started =
      start_thread(thread, name, [promise, body = std::move(body)] { promise->set_value(body()); });
  if (!started) return Result<T>(started.error());
  if (answer.wait_for(allowed) != std::future_status::ready) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return answer.get();
}

}  // namespace ddprun
