// NcclCommunicator: one non-blocking NCCL communicator, from the exchange of its unique id to
// its end. NcclAbortState: the state that the communicators of one group share, above all their
// failure.
//
// Rank 0 makes the id and sets it in the store; the others get it with a deadline. With very
// many ranks several of them make one id each, if NCCL supports it, so that not all bootstrap
// with one rank. A communicator of some of its ranks can be split off. A call that NCCL answers
// with "in progress" is polled until NCCL answers something else, the deadline has passed or the
// group has failed. The first reported failure ends all communicators of the group. They refuse
// every later call with it, and can only be aborted.
//
// Two threads of one group are never inside NCCL at once, and no call uses a communicator that
// was given up. No lock is held while NCCL is called, because a call may block (for instance
// with NCCL_COMM_BLOCKING=1 in the environment). Instead a thread holds the group's turn while
// it is inside NCCL. Only an abort does not wait long for the turn: it ends the call that holds
// it.
//
// Owned by an NcclEngine. One thread at a time forms, splits and launches. Any thread may call
// the rest, also while another one launches.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "worker_lib/nccl/api.h"

namespace ddprun {

class CpuGroup;
class Store;

class NcclAbortState {
 public:
  // Sets the peers, which detect the death of a rank, as NCCL does not. Their failure ends every
  // wait. May be null. They must outlive all calls of check().
  void set_peers(const CpuGroup* peers) { peers_ = peers; }

  // Keeps the first failure. Returns whether it is this one.
  bool fail(const Error& failure);
  std::optional<Error> failure() const;
  // Returns the reported failure, or one that the peers have detected.
  Result<void> check() const;

 private:
  friend class NcclCommunicator;

  // Waits for the turn and takes it. After a failure: returns that failure.
  Result<void> enter(const Deadline& deadline);
  // Takes the turn if it is free and nothing has failed.
  bool try_enter();
  void leave();
  bool wait_until_left(Duration allowed);

  const CpuGroup* peers_ = nullptr;
  mutable std::mutex mutex_;  // guards the following
  std::condition_variable left_;
  bool is_inside_ = false;  // a thread has the turn
  std::optional<Error> failure_;
};

struct NcclCommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  std::string name;          // begins every key in the store
  int ranks_per_root = 128;  // see NcclBackendOptions
  Duration abort_grace{};    // of the destructor
};

// NcclEnding: communicators that are being aborted, each on its own thread.
class NcclEnding {
 public:
  // Waits until none of their work runs on the device. Returns false if that takes longer.
  bool wait_until_quiet(Duration allowed) { return wait(not_quiet_, allowed); }
  // Waits until NCCL has freed them.
  bool wait_until_over(Duration allowed) { return wait(not_over_, allowed); }

 private:
  friend class NcclCommunicator;
  void lower(int& count) {
    const std::lock_guard lock(mutex_);
    --count;
    changed_.notify_all();
  }
  bool wait(const int& count, Duration allowed) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, allowed, [&] { return count == 0; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int not_quiet_ = 0;  // communicators
  int not_over_ = 0;
};

class NcclCommunicator {
 public:
  using Communicators = std::span<NcclCommunicator* const>;  // of one group
  // Forms a communicator; collective. It uses the current device. The store is used only during
  // the call, and may be null in a world of one.
  static Result<std::unique_ptr<NcclCommunicator>> form(const NcclApi& api, Store* store,
                                                        std::shared_ptr<NcclAbortState> abort_state,
                                                        NcclCommunicatorOptions options,
                                                        const Deadline& deadline);
  // Aborts the communicator if it was not closed, and waits for that for at most abort_grace.
  ~NcclCommunicator();

  // Makes a communicator of the ranks with the same color, in the order of their keys; null
  // without a color (color < 0). Collective over all ranks of this communicator, which stays as
  // it is. The part has its own abort state. After a failure this communicator must be aborted,
  // unless is_usable(): NCCL keeps the failure of a split that had begun as the state of the
  // communicator. REQUIRES: can_split().
  Result<std::unique_ptr<NcclCommunicator>> split(int color, int key, const Deadline& deadline);
  // Returns whether the last call with it succeeded.
  bool is_usable() const;
  bool can_split() const { return api_.comm_split != nullptr; }

  // Runs `issue`, which makes NCCL calls on these communicators of one group. Returns when NCCL
  // has put their work on the stream. After a failure: returns that failure.
  using Issue = std::function<NcclResult()>;
  static Result<void> launch(Communicators on, const Issue& issue, const Deadline& deadline);
  // Returns the handle, for `issue`; null if the communicator has been given up meanwhile.
  NcclComm handle() const;

  // Returns an asynchronous error that NCCL has detected.
  Result<void> check();

  // Registers memory that NCCL may use directly, until withdraw() or the end of the
  // communicator. No call may be in progress. Without effect if NCCL refuses; calls are then
  // only slower.
  void enroll(void* memory, std::size_t bytes);
  // Withdraws memory. Returns false if it is not possible now; NCCL then still has it
  // registered.
  bool withdraw(void* memory);

  // Records that a call was captured into a CUDA graph. NCCL cannot free the communicator while
  // that graph exists.
  void set_captured();

  // Ends NCCL's work on the stream after a failure, and frees its resources, once. `keep` lives
  // until then; it is memory that kernels may still write to.
  static std::shared_ptr<NcclEnding> abort(Communicators all, std::shared_ptr<const void> keep);

  // Frees the communicator, before the deadline. None of its work is on a stream any more. If a
  // CUDA graph still uses it, it is left to that graph and to the end of the process.
  void close(const Deadline& deadline);

  const std::shared_ptr<NcclAbortState>& abort_state() const { return abort_state_; }
  int device() const { return device_; }

 private:
  NcclCommunicator(const NcclApi& api, std::shared_ptr<NcclAbortState> abort_state,
                   NcclCommunicatorOptions options, int device)
      : api_(api),
        abort_state_(std::move(abort_state)),
        options_(std::move(options)),
        device_(device) {}

  // An NCCL call on its own thread, because the call may block. That thread, the thread that
  // waits for the call, and an abort share it.
  struct Aside {
    std::promise<NcclResult> end;
    std::shared_future<NcclResult> result{end.get_future()};
    NcclComm made = nullptr;  // a handle that NCCL writes, even after the call has ended
    std::atomic<bool> is_claimed = false;

    // Returns true for the first claim: that of the thread that is to make the call, or that of an
    // abort. After that of an abort the call is never made. Any thread.
    bool claim() { return !is_claimed.exchange(true); }
    // Takes the handle that NCCL has made, once. Any thread.
    NcclComm take() {
      return __atomic_exchange_n(&made, static_cast<NcclComm>(nullptr), __ATOMIC_ACQ_REL);
    }
    // Waits until the call has ended.
    bool wait(Duration allowed) const {
      return result.wait_for(allowed) == std::future_status::ready;
    }
  };

  Result<std::vector<NcclUniqueId>> exchange_ids(Store* store, const Deadline& deadline);
  Result<std::string> await_id(Store& store, int root, const Deadline& deadline) const;
  Result<void> delete_id(Store& store) const;
  Result<void> init(const std::vector<NcclUniqueId>& ids, const Deadline& deadline);
  Result<NcclComm> make_part(int color, int key, const Deadline& deadline);
  int roots() const;
  int rank_of_root(int root) const;
  std::string id_key(int root) const;
  using AsideCall = std::function<NcclResult(NcclComm* made)>;
  Result<NcclResult> call_aside(AsideCall call, const Deadline& deadline);
  static Result<void> settle(Communicators on, NcclResult result, const Deadline& deadline);
  static void set_settled(Communicators on, bool is_settled);
  static NcclResult state_of(Communicators on);
  NcclResult state_now();
  Error nccl_error(NcclResult result) const;
  std::function<void()> end_of(const std::shared_ptr<NcclEnding>& ending,
                               std::shared_ptr<const void> keep);

  const NcclApi& api_;
  const std::shared_ptr<NcclAbortState> abort_state_;  // its mutex guards what is not const
  const NcclCommunicatorOptions options_;
  const int device_;
  NcclComm comm_ = nullptr;          // null before it is made and after it is freed
  bool is_settled_ = false;          // NCCL has reported the success of its last call
  bool is_captured_ = false;         // by a CUDA graph
  std::map<void*, void*> enrolled_;  // memory, with NCCL's handle for it
  std::shared_ptr<Aside> aside_;     // the last one: NCCL may still write its handle
};

inline bool is_failure(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

// Makes these calls as one group, so that NCCL runs them concurrently. A single call needs no
// group.
NcclResult nccl_group(const NcclApi& api, std::size_t count,
                      const std::function<NcclResult(std::size_t)>& call);

// Returns the Error for a failure of the CUDA run-time.
Error cuda_error(const NcclApi& api, std::string doing, CudaResult result);

}  // namespace ddprun
