// NcclCommunicator: one non-blocking NCCL communicator, from the exchange of its unique id to its
// end; NcclAbortState: what the communicators of one group share, above all their end.
//
// Rank 0 makes the id and sets it in the store; the others get it with a deadline. Of very many
// ranks several make one each, so that not all bootstrap with one, where NCCL can do that. A
// communicator of a part of its ranks can be split off. Every call that NCCL answers with "in
// progress" is followed until NCCL says otherwise, the deadline has passed or the group has failed.
// The first failure that is reported ends all communicators of the group: they refuse everything
// later with it, and can only be aborted.
//
// NCCL never sees two of our threads at once in one group, nor any call on a communicator that was
// given up. No lock is held while NCCL is called: a call may block, for instance with
// NCCL_COMM_BLOCKING=1 in the environment. Instead a thread has the group's turn while it is inside
// NCCL. Only an abort does not wait for the turn for long: it ends the call that has it.
//
// Owned by an NcclEngine. One thread at a time forms, splits and launches; the rest may be called
// from any thread, also while another one launches.
#pragma once

#include <condition_variable>
#include <functional>
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
  // Who knows when a rank dies, which NCCL does not: its failure ends every wait. May be null;
  // outlives all calls of check().
  void set_peers(const CpuGroup* peers) { peers_ = peers; }

  // Keeps the first failure; whether it is this one.
  bool fail(const Error& failure);
  std::optional<Error> failure() const;
  // The failure that was reported, or one that the peers have noticed.
  Result<void> check() const;

 private:
  friend class NcclCommunicator;

  // Waits for the turn and takes it. After a failure: that failure.
  Result<void> enter(const Deadline& deadline);
  // Takes the turn if it is free and nothing has failed.
  bool try_enter();
  void leave();
  bool wait_until_left(Duration allowed);

  const CpuGroup* peers_ = nullptr;
  mutable std::mutex mutex_;  // guards what follows
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

struct NcclEndingState;

// Communicators that are being aborted, in threads of their own.
class NcclEnding {
 public:
  // Until nothing of theirs runs on the device any more; false: not in time.
  bool wait_until_quiet(Duration allowed);
  // Until NCCL has freed them.
  bool wait_until_over(Duration allowed);

 private:
  friend class NcclCommunicator;
  std::shared_ptr<NcclEndingState> state_;
};

class NcclCommunicator {
 public:
  // Collective. The current device is the communicator's. The store is used during the call only
  // and may be null in a world of one.
  static Result<std::unique_ptr<NcclCommunicator>> form(const NcclApi& api, Store* store,
                                                        std::shared_ptr<NcclAbortState> fate,
                                                        NcclCommunicatorOptions options,
                                                        const Deadline& deadline);
  // Aborts what was not closed, and waits for that a while.
  ~NcclCommunicator();

  // Collective over all ranks of this communicator, which stays as it is: a communicator of those
  // with the same color, in the order of their keys; null without one (color < 0). It has a fate of
  // its own. After a failure this communicator must be aborted, unless is_usable(): NCCL keeps the
  // failure of a split that had begun as the state of the communicator. REQUIRES: NCCL can split.
  Result<std::unique_ptr<NcclCommunicator>> split(int color, int key, const Deadline& deadline);
  // Whether the last call that was made with it has ended well.
  bool is_usable() const;
  bool can_split() const { return api_.comm_split != nullptr; }

  // Runs `issue`, which makes NCCL calls on these communicators of one group, and returns when NCCL
  // has put their work on the stream. After a failure: that failure.
  using Issue = std::function<NcclResult()>;
  static Result<void> launch(std::span<NcclCommunicator* const> on, const Issue& issue,
                             const Deadline& deadline);
  // For `issue`; null when the communicator has been given up meanwhile.
  NcclComm handle() const;

  // What NCCL has noticed since.
  Result<void> check();

  // Memory that NCCL may use directly, for as long as the communicator lives or until it is
  // withdrawn. Nothing may be in progress. Without effect where NCCL refuses: it is only slower.
  void enroll(void* memory, std::size_t bytes);
  // False: not now; NCCL still knows the memory.
  bool withdraw(void* memory);

  // A call was captured into a CUDA graph. NCCL cannot free the communicator while that exists.
  void set_captured();

  // After a failure: ends what NCCL still does on the stream and frees what it holds, once. `keep`
  // lives until then: what kernels may still write to.
  static NcclEnding abort(std::span<NcclCommunicator* const> all, std::shared_ptr<const void> keep);

  // Frees the communicator, at most until the deadline. Nothing is on its stream any more. One that
  // a CUDA graph still uses is left to that graph, and to the end of the process.
  void close(const Deadline& deadline);

  const std::shared_ptr<NcclAbortState>& abort_state() const { return abort_state_; }

 private:
  NcclCommunicator(const NcclApi& api, std::shared_ptr<NcclAbortState> fate,
                   NcclCommunicatorOptions options, int device)
      : api_(api), abort_state_(std::move(fate)), options_(std::move(options)), device_(device) {}

  // A call of NCCL's in a thread of its own, as it may block. Shared by that thread, the one that waits for
  // it, and an abort.
  struct Aside {
    std::mutex mutex;
    std::condition_variable came;
    std::optional<NcclResult> result;
    NcclComm made = nullptr;  // a handle, written by NCCL, also when the call is over

    // What NCCL has made, once. Any thread.
    NcclComm take() {
      return __atomic_exchange_n(&made, static_cast<NcclComm>(nullptr), __ATOMIC_ACQ_REL);
    }
    // Until the call is over.
    bool wait(Duration allowed) {
      std::unique_lock lock(mutex);
      return came.wait_for(lock, allowed, [this] { return result.has_value(); });
    }
  };

  Result<std::vector<NcclUniqueId>> exchange_ids(Store* store, const Deadline& deadline);
  Result<void> set_id(Store& store, int root, NcclUniqueId& id);
  Result<std::string> await_id(Store& store, int root, const Deadline& deadline) const;
  Result<void> delete_id(Store& store) const;
  Result<void> init(const std::vector<NcclUniqueId>& ids, const Deadline& deadline);
  Result<NcclComm> make_part(int color, int key, const Deadline& deadline);
  int roots() const;
  int rank_of_root(int root) const;
  std::string id_key(int root) const;
  using AsideCall = std::function<NcclResult(NcclComm* made)>;
  Result<NcclResult> call_aside(AsideCall call, const Deadline& deadline);
  static Result<void> settle(std::span<NcclCommunicator* const> on, NcclResult result,
                             const Deadline& deadline);
  static void set_settled(std::span<NcclCommunicator* const> on, bool is_settled);
  static NcclResult state_of(std::span<NcclCommunicator* const> on);
  NcclResult state_now();
  Error nccl_error(NcclResult result) const;
  std::function<void()> end_of(const std::shared_ptr<NcclEndingState>& state,
                               std::shared_ptr<const void> keep);

  const NcclApi& api_;
  const std::shared_ptr<NcclAbortState> abort_state_;  // its mutex guards what is not const
  const NcclCommunicatorOptions options_;
  const int device_;
  NcclComm comm_ = nullptr;          // null before it was made and after it was freed
  bool is_settled_ = false;          // NCCL has said that its last call ended well
  bool is_captured_ = false;         // by a CUDA graph
  std::map<void*, void*> enrolled_;  // memory, and what NCCL knows it by
  std::shared_ptr<Aside> aside_;     // the last one: its handle may still be written
};

inline bool is_failure(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

// These calls as one group, so that they travel side by side; a single one needs none.
NcclResult nccl_group(const NcclApi& api, std::size_t count,
                      const std::function<NcclResult(std::size_t)>& call);

// A failure of the CUDA run-time.
Error cuda_error(const NcclApi& api, std::string doing, CudaResult result);

}  // namespace ddprun
