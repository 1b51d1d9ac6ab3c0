// NcclCommunicator: one non-blocking NCCL communicator, from the exchange of its unique id to its
// end; NcclFate: what the communicators of one group share, above all their end.
//
// Rank 0 makes the id and sets it in the store; the others get it with a deadline. Of very many
// ranks several make one each, so that not all bootstrap with one, where NCCL can do that. A
// communicator of a part of its ranks can be split off. Every call that NCCL answers with "in
// progress" is followed until NCCL says otherwise, the deadline has passed or the group has failed.
// The first failure that is reported ends all communicators of the group: they refuse everything
// later with it, and can only be aborted.
//
// Owned by an NcclEngine. One thread at a time forms, splits and launches; the rest may be called
// from any thread, also while another one launches: NCCL never sees two of our threads at once in
// one group, nor any call on a communicator that was given up.
#pragma once

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
#include "worker_lib/nccl_api.h"

namespace ddprun {

class CpuGroup;
class Store;

class NcclFate {
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
  const CpuGroup* peers_ = nullptr;
  mutable std::mutex mutex_;  // guards the failure and every NCCL call of the group
  std::optional<Error> failure_;
};

struct NcclCommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  std::string name;          // begins every key in the store
  int ranks_per_root = 128;  // see NcclBackendOptions
  Duration abort_grace{};    // of the destructor
};

// Communicators that are being aborted, in threads of their own.
class NcclEnding {
 public:
  // Until nothing of theirs runs on the device any more; false: not in time.
  bool wait_until_quiet(Duration allowed);
  // Until NCCL has freed them.
  bool wait_until_over(Duration allowed);

 private:
  friend class NcclCommunicator;
  struct State;
  std::shared_ptr<State> state_;
};

class NcclCommunicator {
 public:
  // Collective. The current device is the communicator's. The store is used during the call only
  // and may be null in a world of one.
  static Result<std::unique_ptr<NcclCommunicator>> form(const NcclApi& api, Store* store,
                                                        std::shared_ptr<NcclFate> fate,
                                                        NcclCommunicatorOptions options,
                                                        const Deadline& deadline);
  // Aborts what was not closed, and waits for that a while.
  ~NcclCommunicator();

  // Collective over all ranks of this communicator, which stays as it is: a communicator of those
  // with the same color, in the order of their keys; null without one (color < 0). It has a fate of
  // its own. An error of NCCL's leaves this communicator usable; after any other failure it must be
  // aborted. REQUIRES: NCCL can split.
  Result<std::unique_ptr<NcclCommunicator>> split(int color, int key, const Deadline& deadline);
  bool can_split() const { return api_.comm_split != nullptr; }

  // Runs `issue`, which makes NCCL calls on these communicators of one group, and returns when NCCL
  // has put their work on the stream. After a failure: that failure.
  using Issue = std::function<NcclResult()>;
  static Result<void> launch(std::span<NcclCommunicator* const> on, const Issue& issue,
                             const Deadline& deadline);
  // For `issue`.
  NcclComm handle() const { return comm_; }

  // What NCCL has noticed since.
  Result<void> check();

  // Memory that NCCL may use directly, for as long as the communicator lives or until it is
  // withdrawn. Nothing may be in progress. Without effect where NCCL refuses: it is only slower.
  void enroll(void* memory, std::size_t bytes);
  void withdraw(void* memory);

  // After a failure: ends what NCCL still does on the stream and frees what it holds, once. `keep`
  // lives until then: what kernels may still write to.
  static NcclEnding abort(std::span<NcclCommunicator* const> all, std::shared_ptr<const void> keep);

  // Takes leave from the peers, at most until the deadline, and frees the communicator. Nothing is
  // on its stream any more.
  void close(const Deadline& deadline);

  const std::shared_ptr<NcclFate>& fate() const { return fate_; }

 private:
  NcclCommunicator(const NcclApi& api, std::shared_ptr<NcclFate> fate,
                   NcclCommunicatorOptions options, int device)
      : api_(api), fate_(std::move(fate)), options_(std::move(options)), device_(device) {}

  Result<std::vector<NcclUniqueId>> exchange_ids(Store* store, const Deadline& deadline);
  Result<void> set_id(Store& store, int root, NcclUniqueId& id);
  Result<std::string> await_id(Store& store, int root, const Deadline& deadline) const;
  Result<void> delete_id(Store& store) const;
  Result<void> init(const std::vector<NcclUniqueId>& ids, const Deadline& deadline);
  int roots() const;
  int rank_of_root(int root) const;
  std::string id_key(int root) const;
  static Result<void> settle(std::span<NcclCommunicator* const> on, NcclResult result,
                             const Deadline& deadline);
  NcclResult state_now();
  Error nccl_error(NcclResult result) const;

  const NcclApi& api_;
  const std::shared_ptr<NcclFate> fate_;  // its mutex guards what is not const
  const NcclCommunicatorOptions options_;
  const int device_;
  NcclComm comm_ = nullptr;                   // null before it was made and after it was freed
  std::map<void*, void*> enrolled_;           // memory, and what NCCL knows it by
  std::shared_ptr<NcclCommunicator> unmade_;  // a part that may still be written to: it goes last
};

// These calls as one group, so that they travel side by side; a single one needs none.
NcclResult nccl_group(const NcclApi& api, std::size_t count,
                      const std::function<NcclResult(std::size_t)>& call);

// A failure of the CUDA run-time.
Error cuda_error(const NcclApi& api, std::string doing, CudaResult result);

}  // namespace ddprun
