#include "launcher/console_writer.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "base/background_thread.h"
#include "base/write_all.h"

namespace ddprun {
struct ConsoleWriter::State {
  std::function<void()> on_drained;
  std::function<void()> on_flushed;
  std::array<int, 2> descriptors{};
  std::mutex mutex;
  std::condition_variable wake;
  std::array<std::string, 2> queued;
  bool writing = false;
  bool was_full = false;
  bool over = false;  // the owner is gone, and with it whoever would be called

  bool is_empty() const { return queued[0].empty() && queued[1].empty(); }
  void say_flushed() {
    if (on_flushed) std::exchange(on_flushed, nullptr)();
  }
};

ConsoleWriter::ConsoleWriter(std::function<void()> on_drained, std::array<int, 2> descriptors)
    : state_(std::make_shared<State>()) {
  state_->on_drained = std::move(on_drained);
  state_->descriptors = descriptors;
  const Result<void> started =
      start_thread(thread_, "ddprun-console", [state = state_] { run(*state); });
  if (!started) {
    throw std::system_error(started.error().sys_errno, std::generic_category(),
                            started.error().doing);
  }
}

ConsoleWriter::~ConsoleWriter() {
  bool writing = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
    state_->on_drained = state_->on_flushed = nullptr;
    for (std::string& queue : state_->queued) queue.clear();
    writing = state_->writing;
  }
  state_->wake.notify_one();
  if (writing) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void ConsoleWriter::write(ConsoleStream stream, std::string_view lines) {
  {
    const std::lock_guard lock(state_->mutex);
    std::array<std::string, 2>& queued = state_->queued;
    queued[static_cast<std::size_t>(stream)].append(lines);
    if (queued[0].size() + queued[1].size() >= kHighWater) state_->was_full = true;
  }
  state_->wake.notify_one();
}

bool ConsoleWriter::is_full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->was_full;
}

void ConsoleWriter::when_flushed(std::function<void()> then) {
  const std::lock_guard lock(state_->mutex);
  state_->on_flushed = std::move(then);
  if (!state_->writing && state_->is_empty()) state_->say_flushed();
}

void ConsoleWriter::run(State& state) {
  std::array<bool, 2> reader_gone{};
  std::array<std::string, 2> batch;
  std::unique_lock lock(state.mutex);
  while (true) {
    state.wake.wait(lock, [&] { return state.over || !state.is_empty(); });
    if (state.over) return;
    batch[0].clear();
    batch[1].clear();
    batch.swap(state.queued);
    const bool drained_from_full = std::exchange(state.was_full, false);
    state.writing = true;
    for (std::size_t i = 0; i < batch.size() && !state.over; ++i) {
      lock.unlock();
      if (!reader_gone[i]) reader_gone[i] = !write_all(state.descriptors[i], batch[i]);
      lock.lock();
    }
    state.writing = false;
    if (state.over) return;
    if (drained_from_full) state.on_drained();
    if (state.is_empty()) state.say_flushed();
  }
}

}  // namespace ddprun
