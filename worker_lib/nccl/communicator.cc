#include "worker_lib/nccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/background_thread.h"
#include "base/concat.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/store/result_store.h"
#include "worker_lib/util/nccl_pause.h"

namespace ddprun {
namespace {

// Interval at which a wait for the store checks whether the wait has become pointless.
constexpr Duration kAbortCheckInterval = std::chrono::milliseconds(200);

// How long a registration of memory waits for the turn. A later registration is soon enough.
constexpr Duration kRegisterPatience = std::chrono::milliseconds(100);

}  // namespace

// A failure counts more than "in progress", and that more than success.
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
               .cause = concat("CUDA: ", api.cuda_error_string(result))};
}

// --- the abort state of a group ---

bool NcclAbortState::fail(const Error& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = failure;
  left_.notify_all();
  return true;
}

std::optional<Error> NcclAbortState::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Result<void> NcclAbortState::check() const {
  if (const std::optional<Error> first = failure()) return *first;
  if (!peers_) return {};
  if (std::optional<Error> lost = peers_->failure()) return *lost;
  return {};
}

Result<void> NcclAbortState::enter(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const bool is_free = left_.wait_for(lock, deadline.remaining(),
                                      [this] { return !is_inside_ || failure_.has_value(); });
  if (failure_) return *failure_;
  if (!is_free) {
    return timeout_error("", "another thread is inside NCCL", deadline);
  }
  is_inside_ = true;
  return {};
}

bool NcclAbortState::try_enter() {
  const std::lock_guard lock(mutex_);
  if (is_inside_ || failure_) return false;
  is_inside_ = true;
  return true;
}

void NcclAbortState::leave() {
  const std::lock_guard lock(mutex_);
  is_inside_ = false;
  left_.notify_all();
}

bool NcclAbortState::wait_until_left(Duration allowed) {
  std::unique_lock lock(mutex_);
  return left_.wait_for(lock, allowed, [this] { return !is_inside_; });
}

// --- forming ---

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::form(
    const NcclApi& api, Store* store, std::shared_ptr<NcclAbortState> abort_state,
    NcclCommunicatorOptions options, const Deadline& deadline) {
  DDPRUN_ASSERT(store || options.world_size == 1, "several ranks need a store");
  int device = 0;
  const CudaResult asked = api.get_device(&device);
  if (asked != CudaResult::kSuccess) return cuda_error(api, "find the current device", asked);
  const std::string doing =
      concat("form the NCCL communicator of ", options.world_size, " ranks as rank ", options.rank);
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(api, std::move(abort_state), std::move(options), device));
  const Result<std::vector<NcclUniqueId>> ids = made->exchange_ids(store, deadline);
  if (!ids) return ids.error().within(doing);
  const Result<void> ready = made->init(*ids, deadline);
  if (!ready) return ready.error().within(doing);
  // All ranks are here, so all have the ids. They are deleted, because a job that uses the store
  // again must not find them.
  if (store) {
    const Result<void> deleted = made->delete_id(*store);
    if (!deleted) return deleted.error().within(doing);
  }
  return made;
}

// Returns the number of roots, about one for each ranks_per_root ranks. With one root, all ranks
// connect to it when they bootstrap.
int NcclCommunicator::roots() const {
  if (!api_.comm_init_rank_scalable || options_.world_size <= options_.ranks_per_root) return 1;
  return (options_.world_size + options_.ranks_per_root - 1) / options_.ranks_per_root;
}

// Returns the first rank of the root's share; shares have similar lengths.
int NcclCommunicator::rank_of_root(int root) const {
  return std::int64_t{options_.world_size} * root / roots();
}

std::string NcclCommunicator::id_key(int root) const {
  const std::string key = options_.name + "/nccl/id";
  return root > 0 ? concat(key, "/", root) : key;
}

Result<std::vector<NcclUniqueId>> NcclCommunicator::exchange_ids(Store* store,
                                                                 const Deadline& deadline) {
  std::vector<NcclUniqueId> ids(roots());
  for (int root = 0; root < roots(); ++root) {
    if (rank_of_root(root) != options_.rank) continue;
    NcclUniqueId& id = ids[root];
    const NcclResult made = api_.get_unique_id(&id);
    const bool is_made = made == NcclResult::kSuccess;
    const std::string reason = is_made ? "" : nccl_error(made).cause;
    if (store) {
      // A value whose length is not that of an id is the reason for having none. So the others
      // need not wait.
      const Result<void> set = ResultStore(*store).set(
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
    NcclUniqueId& id = ids[root];
    if (got->size() != id.bytes.size()) {
      return Error{.kind = ErrorKind::kPeerLost,
                   .doing = doing,
                   .cause = "it could not make one: " + *got,
                   .peer_rank = maker};
    }
    std::memcpy(id.bytes.data(), got->data(), got->size());
  }
  return ids;
}

// Waits in slices, because the store does not tell when the root dies before it has set the id.
Result<std::string> NcclCommunicator::await_id(Store& store, int root,
                                               const Deadline& deadline) const {
  for (;;) {
    Result<std::string> got =
        ResultStore(store).get(id_key(root), std::min(deadline.remaining(), kAbortCheckInterval));
    if (got || got.error().kind != ErrorKind::kTimeout) return got;
    if (const Result<void> abort_state = abort_state_->check(); !abort_state)
      return abort_state.error();
    if (deadline.passed()) {
      return timeout_error("", "it has not come", deadline);
    }
  }
}

Result<void> NcclCommunicator::delete_id(Store& store) const {
  for (int root = 0; root < roots(); ++root) {
    if (rank_of_root(root) != options_.rank) continue;
    const Result<bool> deleted = ResultStore(store).delete_key(id_key(root));
    if (!deleted) return deleted.error();
  }
  return {};
}

Result<void> NcclCommunicator::init(const std::vector<NcclUniqueId>& ids,
                                    const Deadline& deadline) {
  const auto call = [&api = api_, ids, size = options_.world_size,
                     rank = options_.rank](NcclComm* made) {
    if (ids.size() == 1) return api.comm_init_rank(made, size, ids[0], rank);
    return api.comm_init_rank_scalable(made, size, rank, ids.data(), ids.size());
  };
  const Result<NcclResult> started = call_aside(call, deadline);
  if (!started) return started.error();
  {
    const std::lock_guard lock(abort_state_->mutex_);
    if (abort_state_->failure_) return *abort_state_->failure_;
    comm_ = std::exchange(aside_, nullptr)->take();
  }
  NcclCommunicator* const self[] = {this};
  return settle(self, *started, deadline);
}

// NCCL answers with success at once, and this communicator is in progress until the part exists.
// A rank without a color gets an unused part of its own, because with no part NCCL would crash
// if the split fails.
Result<NcclComm> NcclCommunicator::make_part(int color, int key, const Deadline& deadline) {
  NcclCommunicator* const self[] = {this};
  set_settled(self, false);
  const int its_color = color < 0 ? std::numeric_limits<int>::max() - options_.rank : color;
  const Result<NcclResult> started =
      call_aside([&api = api_, comm = handle(), its_color,
                  key](NcclComm* made) { return api.comm_split(comm, its_color, key, made); },
                 deadline);
  if (!started) return started.error();
  if (is_failure(*started)) {
    // The split has not begun. NCCL's state says whether this communicator is still usable.
    if (abort_state_->try_enter()) {
      const NcclResult state = state_of(self);
      abort_state_->leave();
      set_settled(self, state == NcclResult::kSuccess);
    }
    return nccl_error(*started);
  }
  const Result<void> done = settle(self, NcclResult::kInProgress, deadline);
  if (!done) return done.error();
  const std::lock_guard lock(abort_state_->mutex_);
  if (abort_state_->failure_) return *abort_state_->failure_;
  const NcclComm made = std::exchange(aside_, nullptr)->take();
  if (!made) return nccl_error(NcclResult::kInternalError);
  return made;
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::split(int color, int key,
                                                                  const Deadline& deadline) {
  Result<NcclComm> made = make_part(color, key, deadline);
  if (!made) {
    return made.error().within(
        concat("split the NCCL communicator of ", options_.world_size, " ranks"));
  }
  NcclCommunicatorOptions options{.rank = options_.rank, .abort_grace = options_.abort_grace};
  std::unique_ptr<NcclCommunicator> part(
      new NcclCommunicator(api_, std::make_shared<NcclAbortState>(), std::move(options), device_));
  part->comm_ = *made;
  part->is_settled_ = true;
  if (color < 0) {
    part->close(deadline);
    part = nullptr;
  }
  return part;
}

bool NcclCommunicator::is_usable() const {
  const std::lock_guard lock(abort_state_->mutex_);
  return is_settled_ && !abort_state_->failure_;
}

// --- calls ---

// Returns when the call returns, when the deadline has passed or when the group has failed. A
// call that is given up keeps the turn, and it keeps aside_ for the abort.
Result<NcclResult> NcclCommunicator::call_aside(AsideCall call, const Deadline& deadline) {
  if (const Result<void> mine = abort_state_->enter(deadline); !mine) return mine.error();
  const auto aside = std::make_shared<Aside>();
  {
    const std::lock_guard lock(abort_state_->mutex_);
    aside_ = aside;
  }
  const auto run = [&api = api_, device = device_, abort_state = abort_state_, aside,
                    call = std::move(call)] {
    api.set_device(device);
    const NcclResult result =
        aside->claim() ? call(&aside->made) : NcclResult::kInvalidUsage;  // it was aborted before
    abort_state->leave();
    aside->end.set_value(result);
  };
  const Result<void> started = start_detached_thread("ddprun-nccl-aux", run);
  if (!started) {
    {
      const std::lock_guard lock(abort_state_->mutex_);
      aside_ = nullptr;
    }
    abort_state_->leave();
    return started.error();
  }
  while (!aside->wait(std::min(deadline.remaining(), kAbortCheckInterval))) {
    if (const Result<void> good = abort_state_->check(); !good) return good.error();
    if (deadline.passed()) {
      return timeout_error("", "NCCL has not returned; a rank has not come, or is stuck", deadline);
    }
  }
  return aside->result.get();
}

Result<void> NcclCommunicator::launch(Communicators on, const Issue& issue,
                                      const Deadline& deadline) {
  NcclAbortState& abort_state = *on[0]->abort_state_;
  if (const Result<void> mine = abort_state.enter(deadline); !mine) return mine;
  set_settled(on, false);
  const NcclResult issued = issue();
  abort_state.leave();
  return settle(on, issued, deadline);
}

void NcclCommunicator::set_settled(Communicators on, bool is_settled) {
  const std::lock_guard lock(on[0]->abort_state_->mutex_);
  for (NcclCommunicator* one : on) one->is_settled_ = is_settled;
}

// A failure counts more than "in progress", and that more than success. REQUIRES: the turn.
NcclResult NcclCommunicator::state_of(Communicators on) {
  NcclResult result = NcclResult::kSuccess;
  for (NcclCommunicator* one : on) {
    const NcclResult state = one->state_now();
    if (is_failure(state)) return state;
    if (state == NcclResult::kInProgress) result = state;
  }
  return result;
}

// Queries the state at least once: only then has NCCL joined the thread of the call.
Result<void> NcclCommunicator::settle(Communicators on, NcclResult result,
                                      const Deadline& deadline) {
  NcclAbortState& abort_state = *on[0]->abort_state_;
  NcclPause pause;
  for (bool is_first = true; !is_failure(result); is_first = false) {
    if (!is_first) pause.take();
    if (const std::optional<Error> first = abort_state.failure()) return *first;
    if (abort_state.try_enter()) {
      result = state_of(on);
      abort_state.leave();
      if (result == NcclResult::kSuccess) {
        set_settled(on, true);
        return {};
      }
      if (is_failure(result)) break;
    }
    if (deadline.passed()) {
      return timeout_error("", "NCCL is not done; a rank has not come, or is stuck", deadline);
    }
    if (const Result<void> good = abort_state.check(); !good) return good;
  }
  // Reports the failure that ended a call, rather than the fact that it was ended.
  if (const std::optional<Error> first = abort_state.failure()) return *first;
  return on[0]->nccl_error(result);
}

NcclComm NcclCommunicator::handle() const {
  const std::lock_guard lock(abort_state_->mutex_);
  return comm_;
}

// REQUIRES: the turn.
NcclResult NcclCommunicator::state_now() {
  const NcclComm comm = handle();
  if (!comm) return NcclResult::kInternalError;  // NCCL reported a communicator but made none
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = api_.comm_get_async_error(comm, &state);
  return asked == NcclResult::kSuccess ? state : asked;
}

// If another thread has the turn, that thread detects the error.
Result<void> NcclCommunicator::check() {
  {
    const std::lock_guard lock(abort_state_->mutex_);
    if (abort_state_->failure_) return *abort_state_->failure_;
    if (!comm_) return {};  // it was closed
  }
  if (!abort_state_->try_enter()) return {};
  const NcclResult state = state_now();
  abort_state_->leave();
  if (!is_failure(state)) return {};
  NcclCommunicator* const self[] = {this};
  set_settled(self, false);
  return nccl_error(state);
}

// ncclRemoteError is "a network error or a remote process exiting prematurely". NCCL does not
// say which.
Error NcclCommunicator::nccl_error(NcclResult result) const {
  std::string cause = concat("NCCL: ", api_.get_error_string(result));
  const char* detail = api_.get_last_error(nullptr);
  if (detail && *detail) cause += concat(" (", detail, ")");
  const bool is_remote = result == NcclResult::kRemoteError;
  return Error{.kind = is_remote ? ErrorKind::kPeerLost : ErrorKind::kSystem,
               .cause = std::move(cause)};
}

// --- memory ---

void NcclCommunicator::enroll(void* memory, std::size_t bytes) {
  if (!api_.comm_register || !abort_state_->enter(Deadline(kRegisterPatience))) return;
  void* known_by = nullptr;
  const NcclComm comm = handle();
  if (comm && api_.comm_register(comm, memory, bytes, &known_by) == NcclResult::kSuccess) {
    const std::lock_guard lock(abort_state_->mutex_);
    enrolled_[memory] = known_by;
  }
  abort_state_->leave();
}

bool NcclCommunicator::withdraw(void* memory) {
  if (const Result<void> mine = abort_state_->enter(Deadline(kRegisterPatience)); !mine)
    return false;
  void* known_by = nullptr;
  NcclComm comm = nullptr;
  {
    const std::lock_guard lock(abort_state_->mutex_);
    comm = comm_;
    if (auto known = enrolled_.extract(memory)) known_by = known.mapped();
  }
  if (comm && known_by) api_.comm_deregister(comm, known_by);
  abort_state_->leave();
  return true;
}

void NcclCommunicator::set_captured() {
  const std::lock_guard lock(abort_state_->mutex_);
  is_captured_ = true;
}

}  // namespace ddprun
