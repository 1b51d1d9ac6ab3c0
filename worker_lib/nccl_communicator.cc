#include "worker_lib/nccl_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>

#include "base/background_thread.h"
#include "worker_lib/cpu/cpu_group.h"
#include "worker_lib/cpu/rank_names.h"
#include "worker_lib/nccl_device_guard.h"
#include "worker_lib/nccl_pause.h"
#include "worker_lib/store_calls.h"

namespace ddprun {
namespace {

// A wait at the store ends so much later than what it waits for has become pointless.
constexpr Duration kGlanceAtFate = std::chrono::milliseconds(200);
// Of ncclCommRevoke; an abort follows anyway.
constexpr Duration kRevokePatience = std::chrono::milliseconds(500);

bool is_failure(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

}  // namespace

// A failure counts more than "in progress", that more than success.
NcclResult nccl_group(const NcclApi& api, std::size_t count,
                      const std::function<NcclResult(std::size_t)>& call) {
  if (count == 1) return call(0);
  NcclResult worst = api.group_start();
  if (worst != NcclResult::kSuccess) return worst;
  const auto add = [&worst](NcclResult next) {
    if (!is_failure(worst) && next != NcclResult::kSuccess) worst = next;
  };
  for (std::size_t i = 0; i < count; ++i) add(call(i));
  add(api.group_end());
  return worst;
}

Error cuda_error(const NcclApi& api, std::string doing, CudaResult result) {
  return Error{.kind = ErrorKind::kSystem,
               .doing = std::move(doing),
               .cause = std::string("CUDA: ") + api.cuda_error_string(result)};
}

// --- the fate of a group ---

bool NcclFate::fail(const Error& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = failure;
  return true;
}

std::optional<Error> NcclFate::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Result<void> NcclFate::check() const {
  if (const std::optional<Error> first = failure()) return *first;
  if (!peers_) return {};
  if (std::optional<Error> lost = peers_->failure()) return *lost;
  return {};
}

// --- forming ---

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::form(const NcclApi& api, Store* store,
                                                                 std::shared_ptr<NcclFate> fate,
                                                                 NcclCommunicatorOptions options,
                                                                 const Deadline& deadline) {
  DDPRUN_ASSERT(store || options.world_size == 1, "several ranks need a store to meet in");
  int device = 0;
  const CudaResult asked = api.get_device(&device);
  if (asked != CudaResult::kSuccess) return cuda_error(api, "find the current device", asked);
  const std::string doing = "form the NCCL communicator of " + std::to_string(options.world_size) +
                            " ranks as rank " + std::to_string(options.rank);
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(api, std::move(fate), std::move(options), device));
  const Result<std::vector<NcclUniqueId>> ids = made->exchange_ids(store, deadline);
  if (!ids) return Error(ids.error()).within(doing);
  const Result<void> ready = made->init(*ids, deadline);
  if (!ready) return Error(ready.error()).within(doing);
  // Everybody is here, so everybody has the ids: a job that uses the store again must not find
  // them.
  if (store) {
    const Result<void> deleted = made->delete_id(*store);
    if (!deleted) return Error(deleted.error()).within(doing);
  }
  return made;
}

// About one for so many ranks: with one root, all ranks connect to that one when they bootstrap.
int NcclCommunicator::roots() const {
  if (!api_.comm_init_rank_scalable || options_.world_size <= options_.ranks_per_root) return 1;
  return (options_.world_size + options_.ranks_per_root - 1) / options_.ranks_per_root;
}

// The first rank of the root's share, of shares of similar length.
int NcclCommunicator::rank_of_root(int root) const {
  return static_cast<int>(static_cast<std::int64_t>(options_.world_size) * root / roots());
}

std::string NcclCommunicator::id_key(int root) const {
  std::string key = options_.name + "/nccl/id";
  if (root > 0) key.append("/").append(std::to_string(root));
  return key;
}

Result<std::vector<NcclUniqueId>> NcclCommunicator::exchange_ids(Store* store,
                                                                 const Deadline& deadline) {
  std::vector<NcclUniqueId> ids(static_cast<std::size_t>(roots()));
  for (int root = 0; root < roots(); ++root) {
    if (rank_of_root(root) != options_.rank) continue;
    NcclUniqueId& id = ids[static_cast<std::size_t>(root)];
    const NcclResult made = api_.get_unique_id(&id);
    const bool is_made = made == NcclResult::kSuccess;
    const std::string reason = is_made ? "" : nccl_error(made).cause;
    if (store) {
      // What is not as long as an id is the reason why there is none: the others need not wait.
      const Result<void> set = StoreCalls(*store).set(
          id_key(root), is_made ? std::string(id.bytes.data(), id.bytes.size()) : reason);
      if (!set) return set.error();
    }
    if (!is_made) {
      return Error{.kind = ErrorKind::kSystem, .doing = "make a unique id", .cause = reason};
    }
  }
  for (int root = 0; root < roots(); ++root) {
    const int maker = rank_of_root(root);
    if (maker == options_.rank) continue;
    const std::string doing = "wait for the unique id of " + name_rank(maker);
    Result<std::string> got = await_id(*store, root, deadline);
    if (!got) {
      Error error = std::move(got).error();
      if (error.kind == ErrorKind::kTimeout) error.peer_rank = maker;
      return std::move(error).within(doing);
    }
    NcclUniqueId& id = ids[static_cast<std::size_t>(root)];
    if (got->size() != id.bytes.size()) {
      return Error{.kind = ErrorKind::kPeerLost,
                   .doing = doing,
                   .cause = "it could make none: " + *got,
                   .peer_rank = maker};
    }
    std::memcpy(id.bytes.data(), got->data(), got->size());
  }
  return ids;
}

// In slices: the store does not tell when the root dies before it has set the id.
Result<std::string> NcclCommunicator::await_id(Store& store, int root,
                                               const Deadline& deadline) const {
  for (;;) {
    Result<std::string> got =
        StoreCalls(store).get(id_key(root), std::min(deadline.remaining(), kGlanceAtFate));
    if (got || got.error().kind != ErrorKind::kTimeout) return got;
    if (const Result<void> fate = fate_->check(); !fate) return fate.error();
    if (deadline.passed()) {
      return timeout_error("", "it has not come", deadline.waited(), deadline.allowed());
    }
  }
}

Result<void> NcclCommunicator::delete_id(Store& store) const {
  for (int root = 0; root < roots(); ++root) {
    if (rank_of_root(root) != options_.rank) continue;
    const Result<bool> deleted = StoreCalls(store).delete_key(id_key(root));
    if (!deleted) return deleted.error();
  }
  return {};
}

Result<void> NcclCommunicator::init(const std::vector<NcclUniqueId>& ids,
                                    const Deadline& deadline) {
  NcclResult started = NcclResult::kSuccess;
  {
    const std::lock_guard lock(fate_->mutex_);
    started = ids.size() == 1
                  ? api_.comm_init_rank(&comm_, options_.world_size, ids[0], options_.rank)
                  : api_.comm_init_rank_scalable(&comm_, options_.world_size, options_.rank,
                                                 ids.data(), static_cast<int>(ids.size()));
  }
  NcclCommunicator* const self[] = {this};
  return settle(self, started, deadline);
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::split(int color, int key,
                                                                  const Deadline& deadline) {
  constexpr int kNoColor = -1;  // NCCL_SPLIT_NOCOLOR
  std::unique_ptr<NcclCommunicator> part(new NcclCommunicator(
      api_, std::make_shared<NcclFate>(), {.abort_grace = options_.abort_grace}, device_));
  NcclCommunicator* const self[] = {this};
  // NCCL writes the part's handle when the split is done, however late that is.
  NcclComm* const made = &part->comm_;
  Result<void> done = launch(
      self, [&] { return api_.comm_split(comm_, color < 0 ? kNoColor : color, key, made); },
      deadline);
  NcclCommunicator* const its[] = {part.get()};
  if (done && color >= 0) done = settle(its, NcclResult::kInProgress, deadline);
  if (!done) {
    unmade_ = std::move(part);  // whoever gives up does not keep NCCL from going on
    return Error(done.error())
        .within("split the NCCL communicator of " + std::to_string(options_.world_size) + " ranks");
  }
  if (color < 0) part = nullptr;
  return part;
}

// --- calls ---

Result<void> NcclCommunicator::launch(std::span<NcclCommunicator* const> on, const Issue& issue,
                                      const Deadline& deadline) {
  NcclFate& fate = *on[0]->fate_;
  NcclResult issued = NcclResult::kSuccess;
  {
    const std::lock_guard lock(fate.mutex_);
    if (fate.failure_) return *fate.failure_;
    issued = issue();
  }
  return settle(on, issued, deadline);
}

Result<void> NcclCommunicator::settle(std::span<NcclCommunicator* const> on, NcclResult result,
                                      const Deadline& deadline) {
  NcclFate& fate = *on[0]->fate_;
  NcclPause pause;
  while (result == NcclResult::kInProgress) {
    if (deadline.passed()) {
      return timeout_error("", "NCCL is not done; a rank has not come, or is stuck",
                           deadline.waited(), deadline.allowed());
    }
    if (const Result<void> good = fate.check(); !good) return good;
    pause.take();
    const std::lock_guard lock(fate.mutex_);
    if (fate.failure_) return *fate.failure_;
    result = NcclResult::kSuccess;
    for (NcclCommunicator* one : on) {
      const NcclResult state = one->state_now();
      if (is_failure(state) || result == NcclResult::kSuccess) result = state;
      if (is_failure(result)) break;
    }
  }
  if (result != NcclResult::kSuccess) return on[0]->nccl_error(result);
  return {};
}

// REQUIRES: the fate's mutex is held, and nothing has failed.
NcclResult NcclCommunicator::state_now() {
  if (!comm_) return NcclResult::kInternalError;  // it was split off without an error, but not made
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = api_.comm_get_async_error(comm_, &state);
  return asked == NcclResult::kSuccess ? state : asked;
}

Result<void> NcclCommunicator::check() {
  const std::lock_guard lock(fate_->mutex_);
  if (fate_->failure_) return *fate_->failure_;
  if (!comm_) return {};  // it was closed
  const NcclResult state = state_now();
  if (!is_failure(state)) return {};
  return nccl_error(state);
}

// ncclRemoteError is "a network error or a remote process exiting prematurely"; NCCL does not say
// which.
Error NcclCommunicator::nccl_error(NcclResult result) const {
  std::string cause = std::string("NCCL: ") + api_.get_error_string(result);
  const char* detail = api_.get_last_error(nullptr);
  if (detail && *detail) cause += std::string(" (") + detail + ")";
  const bool is_remote = result == NcclResult::kRemoteError;
  return Error{.kind = is_remote ? ErrorKind::kPeerLost : ErrorKind::kSystem,
               .cause = std::move(cause)};
}

// --- memory ---

void NcclCommunicator::enroll(void* memory, std::size_t bytes) {
  const std::lock_guard lock(fate_->mutex_);
  if (!comm_ || fate_->failure_ || !api_.comm_register) return;
  void* handle = nullptr;
  if (api_.comm_register(comm_, memory, bytes, &handle) == NcclResult::kSuccess) {
    enrolled_[memory] = handle;
  }
}

void NcclCommunicator::withdraw(void* memory) {
  const std::lock_guard lock(fate_->mutex_);
  const auto found = enrolled_.find(memory);
  if (found == enrolled_.end()) return;
  if (comm_ && !fate_->failure_) api_.comm_deregister(comm_, found->second);
  enrolled_.erase(found);
}

// --- the end ---

struct NcclEnding::State {
  std::mutex mutex;
  std::condition_variable changed;
  int not_quiet = 0;
  int not_over = 0;

  void lower(int State::*count) {
    const std::lock_guard lock(mutex);
    --(this->*count);
    changed.notify_all();
  }
  bool wait(int State::*count, Duration allowed) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, allowed, [&] { return this->*count == 0; });
  }
};

bool NcclEnding::wait_until_quiet(Duration allowed) {
  return !state_ || state_->wait(&State::not_quiet, allowed);
}

bool NcclEnding::wait_until_over(Duration allowed) {
  return !state_ || state_->wait(&State::not_over, allowed);
}

// Nobody can reach them any more, so no lock is held while NCCL frees them, which can take long, or
// for ever, when a peer is gone. A thread that is stuck in the driver is left behind: nothing can
// end it. A communicator that was revoked is quiet before it is freed.
NcclEnding NcclCommunicator::abort(std::span<NcclCommunicator* const> all,
                                   std::shared_ptr<const void> keep) {
  NcclEnding ending;
  ending.state_ = std::make_shared<NcclEnding::State>();
  using State = NcclEnding::State;
  struct Action {
    const NcclApi& api;
    int device;
    std::function<void()> run;
  };
  std::vector<Action> actions;
  for (NcclCommunicator* one : all) {
    NcclComm comm = nullptr;
    std::shared_ptr<NcclCommunicator> unmade;
    {
      const std::lock_guard lock(one->fate_->mutex_);
      comm = std::exchange(one->comm_, nullptr);
      unmade = std::move(one->unmade_);
      one->enrolled_.clear();
    }
    if (!comm) continue;
    ++ending.state_->not_quiet;
    ++ending.state_->not_over;
    const auto run = [&api = one->api_, comm, unmade, state = ending.state_, keep] {
      bool is_quiet = false;
      if (api.comm_revoke && !is_failure(api.comm_revoke(comm))) {
        const Deadline deadline(kRevokePatience);
        NcclPause pause;
        NcclResult now = NcclResult::kInProgress;
        while (now == NcclResult::kInProgress && !deadline.passed()) {
          pause.take();
          if (is_failure(api.comm_get_async_error(comm, &now))) break;
        }
        is_quiet = now == NcclResult::kSuccess;
        if (is_quiet) state->lower(&State::not_quiet);
      }
      api.comm_abort(comm);
      // NCCL has written the part by now, whole or not.
      if (unmade && unmade->comm_) api.comm_abort(std::exchange(unmade->comm_, nullptr));
      if (!is_quiet) state->lower(&State::not_quiet);
      state->lower(&State::not_over);
    };
    actions.push_back({one->api_, one->device_, run});
  }
  for (const Action& action : actions) {
    const auto on_its_device = [action] {
      action.api.set_device(action.device);
      action.run();
    };
    if (start_detached_thread("ddprun-abort", on_its_device)) continue;
    const DeviceGuard guard(action.api, action.device);  // there is no thread for it
    action.run();
  }
  return ending;
}

void NcclCommunicator::close(const Deadline& deadline) {
  NcclCommunicator* const self[] = {this};
  const auto finalize = [this] {
    for (const auto& [memory, handle] : std::exchange(enrolled_, {})) {
      api_.comm_deregister(comm_, handle);
    }
    return api_.comm_finalize(comm_);
  };
  if (!launch(self, finalize, deadline)) return;
  NcclComm comm = nullptr;
  {
    const std::lock_guard lock(fate_->mutex_);
    if (fate_->failure_) return;
    comm = std::exchange(comm_, nullptr);
  }
  // As bounded as an abort: the driver may be stuck.
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
  abort(self, nullptr).wait_until_over(options_.abort_grace);
}

}  // namespace ddprun
