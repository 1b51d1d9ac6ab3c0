// The part of NcclCommunicator that ends it: abort and close.
#include <algorithm>

#include "base/background_thread.h"
#include "worker_lib/nccl/communicator.h"
#include "worker_lib/nccl/device_guard.h"
#include "worker_lib/util/nccl_pause.h"

namespace ddprun {
namespace {

// Timeout of ncclCommRevoke; an abort follows in any case.
constexpr Duration kRevokePatience = std::chrono::milliseconds(500);
// How long an abort waits for a call that another thread is making.
constexpr Duration kTurnPatience = std::chrono::milliseconds(100);
// How long close() waits for a communicator that a CUDA graph has captured.
constexpr Duration kGraphPatience = std::chrono::milliseconds(500);

// Revokes the communicator and returns whether none of its work is on the device any more. NCCL
// accepts this only if its last call succeeded; otherwise it would crash.
bool is_revoked(const NcclApi& api, NcclComm comm) {
  if (!api.comm_revoke) return false;
  NcclResult now = NcclResult::kSuccess;
  if (is_failure(api.comm_get_async_error(comm, &now)) || now != NcclResult::kSuccess) return false;
  if (is_failure(api.comm_revoke(comm))) return false;
  const Deadline deadline(kRevokePatience);
  NcclPause pause;
  do {
    if (is_failure(api.comm_get_async_error(comm, &now))) return false;
    if (now != NcclResult::kInProgress) return now == NcclResult::kSuccess;
    pause.take();
  } while (!deadline.passed());
  return false;
}

}  // namespace

// Returns the function that ends this communicator, to be run without locks on any thread; null
// if there is nothing to end. The abort also ends a call in which another thread is stuck; the
// result of that call is freed after it. The part of a split that was given up, or that failed,
// must be freed after this communicator.
std::function<void()> NcclCommunicator::end_of(const std::shared_ptr<NcclEnding>& ending,
                                               std::shared_ptr<const void> keep) {
  NcclComm comm = nullptr;
  std::shared_ptr<Aside> aside;
  bool may_revoke = false;
  {
    const std::lock_guard lock(abort_state_->mutex_);
    comm = std::exchange(comm_, nullptr);
    aside = std::move(aside_);
    may_revoke = std::exchange(is_settled_, false);
    enrolled_.clear();
  }
  if (!comm && !aside) return nullptr;
  return [&api = api_, device = device_, abort_state = abort_state_, comm, aside, may_revoke,
          ending, keep] {
    {
      const DeviceGuard guard(api, device);
      const bool is_free = abort_state->wait_until_left(kTurnPatience);
      const bool is_quiet = comm && may_revoke && is_free && is_revoked(api, comm);
      if (is_quiet) ending->lower(ending->not_quiet_);
      // A thread that was started for a call, and has not begun it, must not use what is freed.
      if (aside) aside->claim();
      if (comm) api.comm_abort(comm);
      if (aside) {
        // An init that blocks has written its handle before.
        const NcclComm forming = comm ? nullptr : aside->take();
        if (forming) api.comm_abort(forming);
        aside->wait(kLongestTimeout);
        if (const NcclComm made = aside->take(); made && made != forming) api.comm_abort(made);
      }
      if (!is_quiet) ending->lower(ending->not_quiet_);
    }
    ending->lower(ending->not_over_);
  };
}

// No thread can reach the communicators any more, so no lock is held while NCCL frees them. That
// can take long, or forever when a peer is gone. A thread that is stuck in the driver is
// abandoned, because nothing can end it. A communicator that was revoked is quiet before it is
// freed.
std::shared_ptr<NcclEnding> NcclCommunicator::abort(Communicators all,
                                                    std::shared_ptr<const void> keep) {
  auto ending = std::make_shared<NcclEnding>();
  std::vector<std::function<void()>> ends;
  for (NcclCommunicator* one : all) {
    std::function<void()> end = one->end_of(ending, keep);
    if (!end) continue;
    ++ending->not_quiet_;
    ++ending->not_over_;
    ends.push_back(std::move(end));
  }
  for (const auto& end : ends) {
    if (!start_detached_thread("ddprun-abort", end)) end();
  }
  return ending;
}

void NcclCommunicator::close(const Deadline& deadline) {
  NcclCommunicator* const self[] = {this};
  bool is_captured = false;
  NcclComm comm = nullptr;
  std::map<void*, void*> known;
  {
    const std::lock_guard lock(abort_state_->mutex_);
    if (!comm_ || !is_settled_ || abort_state_->failure_) return;
    is_captured = is_captured_;
    comm = comm_;
    known.swap(enrolled_);
  }
  set_settled(self, false);
  const auto finalize = [&api = api_, comm, memory = std::move(known)](NcclComm*) {
    for (const auto& [address, handle] : memory) api.comm_deregister(comm, handle);
    return api.comm_finalize(comm);
  };
  const Deadline patience(is_captured ? std::min(deadline.remaining(), kGraphPatience)
                                      : deadline.remaining());
  const Result<NcclResult> begun = call_aside(finalize, patience);
  const Result<void> ended = begun ? settle(self, *begun, patience) : begun.error();
  {
    const std::lock_guard lock(abort_state_->mutex_);
    // NCCL waits for the graph, and so would an abort.
    const bool is_left = !ended && is_captured && ended.error().kind == ErrorKind::kTimeout;
    if (abort_state_->failure_ || (!ended && !is_left)) return;
    aside_ = nullptr;
    comm_ = nullptr;
    if (is_left) return;
  }
  // With a time limit, as for an abort: the driver may be stuck.
  const auto destroy = [&api = api_, device = device_, comm]() -> Result<bool> {
    api.set_device(device);
    api.comm_destroy(comm);
    return true;
  };
  const auto done = result_within<bool>(deadline.remaining(), "ddprun-close", destroy);
  if (done && !*done) static_cast<void>(destroy());
}

NcclCommunicator::~NcclCommunicator() {
  NcclCommunicator* const self[] = {this};
  abort(self, nullptr)->wait_until_over(options_.abort_grace);
}

}  // namespace ddprun
