#include "worker_lib/nccl_communicator.h"

#include <algorithm>
#include <cstring>

#include "base/background_thread.h"
#include "worker_lib/cpu/cpu_group.h"
#include "worker_lib/nccl_pause.h"
#include "worker_lib/store_calls.h"

namespace ddprun {
namespace {

constexpr Duration kGlanceAtPeers = std::chrono::milliseconds(500);

// Runs `action` in a thread of its own and waits for it at most so long; a thread that is stuck in
// the driver is left behind, as nothing can end it.
void run_at_most(Duration bound, std::function<void()> action) {
  const auto done = result_within<bool>(bound, "ddprun-abort", [action] {
    action();
    return true;
  });
  if (done && !*done) action();  // there is no thread for it
}

std::string id_key(const NcclCommunicatorOptions& options) { return options.name + "/nccl/id"; }

}  // namespace

Error cuda_error(const NcclApi& api, std::string doing, CudaResult result) {
  return Error{.kind = ErrorKind::kSystem,
               .doing = std::move(doing),
               .cause = std::string("CUDA: ") + api.cuda_error_string(result)};
}

// --- forming ---

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::form(const NcclApi& api, Store* store,
                                                                 NcclCommunicatorOptions options) {
  DDPRUN_ASSERT(store || options.world_size == 1, "several ranks need a store to meet in");
  const std::string doing = "form the NCCL communicator of " + std::to_string(options.world_size) +
                            " ranks as rank " + to_text(options.rank);
  const Deadline deadline(options.timeout);
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(api, std::move(options)));
  const Result<NcclUniqueId> id = made->exchange_id(store, deadline);
  if (!id) return Error(id.error()).within(doing);
  const Result<void> ready = made->init(*id, deadline);
  if (!ready) return Error(ready.error()).within(doing);
  // Everybody is here, so everybody has the id: a job that uses the store again must not find it.
  if (store && made->options_.rank == Rank(0)) {
    const Result<bool> deleted = StoreCalls(*store).delete_key(id_key(made->options_));
    if (!deleted) return Error(deleted.error()).within(doing);
  }
  return made;
}

Result<NcclUniqueId> NcclCommunicator::exchange_id(Store* store, const Deadline& deadline) {
  NcclUniqueId id;
  if (options_.rank == Rank(0)) {
    const NcclResult made = api_.get_unique_id(&id);
    const bool is_made = made == NcclResult::kSuccess;
    const std::string reason = is_made ? "" : nccl_error(made).cause;
    if (store) {
      // What is not as long as an id is the reason why there is none: the others need not wait.
      const Result<void> set = StoreCalls(*store).set(
          id_key(options_), is_made ? std::string(id.bytes.data(), id.bytes.size()) : reason);
      if (!set) return set.error();
    }
    if (!is_made) {
      return Error{.kind = ErrorKind::kSystem, .doing = "make a unique id", .cause = reason};
    }
  }
  if (options_.rank == Rank(0)) return id;

  Result<std::string> got = await_id(*store, deadline);
  if (!got) {
    Error error = std::move(got).error();
    error.peer_rank = 0;
    return std::move(error).within("wait for the unique id of rank 0");
  }
  if (got->size() != id.bytes.size()) {
    return Error{.kind = ErrorKind::kPeerLost,
                 .doing = "wait for the unique id of rank 0",
                 .cause = "it could make none: " + *got,
                 .peer_rank = 0};
  }
  std::memcpy(id.bytes.data(), got->data(), got->size());
  return id;
}

// In slices: the store does not tell when rank 0 dies before it has set the id.
Result<std::string> NcclCommunicator::await_id(Store& store, const Deadline& deadline) const {
  for (;;) {
    Result<std::string> got =
        StoreCalls(store).get(id_key(options_), std::min(deadline.remaining(), kGlanceAtPeers));
    if (got || got.error().kind != ErrorKind::kTimeout || deadline.passed()) return got;
    if (const Result<void> peers = check_peers(); !peers) return peers.error();
  }
}

Result<void> NcclCommunicator::init(const NcclUniqueId& id, const Deadline& deadline) {
  NcclResult started = NcclResult::kSuccess;
  {
    const std::lock_guard lock(mutex_);
    started = api_.comm_init_rank(&comm_, options_.world_size, id, options_.rank.value);
  }
  return settle(started, deadline);
}

// --- calls ---

Result<void> NcclCommunicator::launch(const Issue& issue, const Deadline& deadline) {
  NcclResult issued = NcclResult::kSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    issued = issue(comm_);
  }
  return settle(issued, deadline);
}

Result<void> NcclCommunicator::settle(NcclResult result, const Deadline& deadline) {
  NcclPause pause;
  while (result == NcclResult::kInProgress) {
    if (deadline.passed()) {
      return timeout_error("", "NCCL is not done; a rank has not come, or is stuck",
                           deadline.waited(), deadline.allowed());
    }
    if (const Result<void> peers = check_peers(); !peers) return peers;
    pause.take();
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    result = state_now();
  }
  if (result != NcclResult::kSuccess) return nccl_error(result);
  return {};
}

Result<void> NcclCommunicator::check_peers() const {
  if (!options_.peers) return {};
  const std::optional<Error> failure = options_.peers->failure();
  if (failure) return *failure;
  return {};
}

// REQUIRES: mutex_ is held, and nothing has failed.
NcclResult NcclCommunicator::state_now() {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = api_.comm_get_async_error(comm_, &state);
  return asked == NcclResult::kSuccess ? state : asked;
}

Result<void> NcclCommunicator::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) return *failure_;
  if (const Result<void> peers = check_peers(); !peers) return peers;
  const NcclResult state = state_now();
  if (state == NcclResult::kSuccess || state == NcclResult::kInProgress) return {};
  return nccl_error(state);
}

// ncclRemoteError is "a network error or a remote process exiting prematurely"; NCCL does not say
// which.
Error NcclCommunicator::nccl_error(NcclResult result) {
  std::string cause = std::string("NCCL: ") + api_.get_error_string(result);
  const char* detail = api_.get_last_error(nullptr);
  if (detail && *detail) cause += std::string(" (") + detail + ")";
  const bool is_remote = result == NcclResult::kRemoteError;
  return Error{.kind = is_remote ? ErrorKind::kPeerLost : ErrorKind::kSystem,
               .cause = std::move(cause)};
}

// --- the end ---

void NcclCommunicator::fail(const Error& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
}

std::optional<Error> NcclCommunicator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclCommunicator::abort() {
  NcclComm comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  // Nobody can reach it any more, so the lock need not be held while NCCL frees it, which can take
  // long when a peer is gone.
  if (comm) run_at_most(options_.abort_grace, [&api = api_, comm] { api.comm_abort(comm); });
}

void NcclCommunicator::close(const Deadline& deadline) {
  const auto finalize = [this](NcclComm comm) { return api_.comm_finalize(comm); };
  if (!launch(finalize, deadline)) return abort();
  const std::lock_guard lock(mutex_);
  if (comm_) api_.comm_destroy(std::exchange(comm_, nullptr));
}

NcclCommunicator::~NcclCommunicator() { abort(); }

}  // namespace ddprun
