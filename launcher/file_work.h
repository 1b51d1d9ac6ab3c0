// FileWork: runs file calls that a network file system may delay on a thread, and waits for them only
// as long as the agent's lease allows.
//
// A call that is late goes on alone; while it runs, later calls fail at once, so that a file system
// that hangs delays the agent once. Owner: the agent, on its one thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/background_thread.h"
#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

class FileWork {
 public:
  // For where nothing depends on the agent's answers, such as the end of a job.
  static constexpr Duration kLongPatience = std::chrono::seconds(5);

  // For the calls that follow; kLongPatience until then.
  void set_lease(Duration lease) { patience_ = std::min(lease / 5, kLongPatience / 5); }
  // From now on calls are waited for with kLongPatience, and run after a late one instead of failing.
  void forget_lease() { patience_ = kLongPatience; }

  // Returns what `body` returns. kTimeout: it, or a call before it, has not ended in time. REQUIRES: `body`
  // owns all that it uses.
  template <class T>
  Result<T> run(const std::string& doing, std::function<Result<T>()> body) {
    const std::shared_ptr<std::atomic<bool>> earlier = late_;
    const bool has_lease = patience_ < kLongPatience;
    if (has_lease && earlier && *earlier) return is_late(doing);
    const auto running = std::make_shared<std::atomic<bool>>(true);
    std::optional<Result<T>> done =
        result_within<T>(patience_, "ddprun-files", [earlier, running, body = std::move(body)] {
          if (earlier) earlier->wait(true);
          Result<T> result = body();
          running->store(false);
          running->notify_all();
          return result;
        });
    if (done) return std::move(*done);
    late_ = running;
    return is_late(doing);
  }

 private:
  static Error is_late(const std::string& doing) {
    return {.kind = ErrorKind::kTimeout, .doing = doing, .cause = "the disk does not answer"};
  }

  Duration patience_ = kLongPatience;
  std::shared_ptr<std::atomic<bool>> late_;  // the last call that was late: whether it still runs
};

}  // namespace ddprun
