// FileWork: runs, in a thread, file calls that a network file system may delay. It waits for
// them only as long as the agent's lease allows.
//
// A call that is late continues in its thread. While it runs, later calls fail at once, so that
// a hung file system delays the agent only once. Owner: the agent, on its one thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/background_thread.h"
#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

class FileWork {
 public:
  // The time limit where nothing depends on the agent's answers, such as at the end of a job.
  static constexpr Duration kLongPatience = std::chrono::seconds(5);

  // Limits the calls that follow by the lease. Until then the limit is kLongPatience.
  void set_lease(Duration lease) { patience_ = std::min(lease / 5, kLongPatience / 5); }
  // Sets the limit back to kLongPatience. From now on a call runs after a late one instead of
  // failing.
  void forget_lease() { patience_ = kLongPatience; }

  // Returns what `body` returns. kSystem: `body` has thrown. kTimeout: `body`, or a call before
  // it, has not ended in time. REQUIRES: `body` owns all that it uses.
  template <class T>
  Result<T> run(const std::string& doing, std::function<Result<T>()> body) {
    const std::shared_ptr<Call> earlier = late_;
    if (has_lease() && earlier && earlier->is_running()) return is_late(doing);
    const auto call = std::make_shared<Call>();
    std::optional<Result<T>> done =
        result_within<T>(patience_, "ddprun-files", [earlier, call, doing, body = std::move(body)] {
          if (earlier) earlier->wait();
          Result<T> result = outcome_of<T>(doing, body);
          call->finish();
          return result;
        });
    if (done) return std::move(*done);
    late_ = call;
    return is_late(doing);
  }

  // Runs `body` as run() does, except when a late call still runs. Then `body` runs after the late
  // call, in place of a body that already waits, and its result is lost.
  Result<void> run_or_keep(const std::string& doing, std::function<Result<void>()> body) {
    const bool may_keep = has_lease() && late_;
    if (may_keep && late_->keep([doing, body] { outcome_of<void>(doing, body); })) {
      return is_late(doing, "the disk does not answer; it is written when the disk answers");
    }
    return run<void>(doing, std::move(body));
  }

 private:
  class Call {
   public:
    bool is_running() {
      const std::lock_guard lock(mutex_);
      return is_running_;
    }
    void wait() {
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [this] { return !is_running_; });
    }
    // Keeps `next` for finish(). Returns false if the call has ended.
    bool keep(std::function<void()> next) {
      const std::lock_guard lock(mutex_);
      if (is_running_) next_ = std::move(next);
      return is_running_;
    }
    // Runs what was kept, and ends the call.
    void finish() {
      std::unique_lock lock(mutex_);
      while (next_) {
        const std::function<void()> next = std::exchange(next_, nullptr);
        lock.unlock();
        next();
        lock.lock();
      }
      is_running_ = false;
      ended_.notify_all();
    }

   private:
    std::mutex mutex_;
    std::condition_variable ended_;
    bool is_running_ = true;
    std::function<void()> next_;
  };

  bool has_lease() const { return patience_ < kLongPatience; }

  template <class T>
  static Result<T> outcome_of(const std::string& doing, const std::function<Result<T>()>& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      return Error{.kind = ErrorKind::kSystem, .doing = doing, .cause = error.what()};
    }
  }

  static Error is_late(const std::string& doing, const char* why = "the disk does not answer") {
    return {.kind = ErrorKind::kTimeout, .doing = doing, .cause = why};
  }

  Duration patience_ = kLongPatience;
  std::shared_ptr<Call> late_;  // the last call that was late
};

}  // namespace ddprun
