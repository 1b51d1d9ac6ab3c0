// NcclCommunicator: one non-blocking NCCL communicator, from the exchange of its unique id to its
// end.
//
// Rank 0 makes the id and sets it in the store; the others get it with a deadline. Every call that
// NCCL answers with "in progress" is followed until NCCL says otherwise or the deadline has passed.
// The first failure that its owner reports ends the communicator: it refuses everything later with
// that failure, and can only be aborted.
//
// Owned by an NcclBackend. One thread at a time launches; fail(), failure(), abort() and check()
// may be called from any thread, also while another one launches: NCCL never sees two of our
// threads at once, nor any call on a communicator that was given up.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/ids.h"
#include "base/result.h"
#include "worker_lib/nccl_api.h"

namespace ddprun {

class CpuGroup;
class Store;

struct NcclCommunicatorOptions {
  Rank rank{0};
  int world_size = 1;
  std::string name;    // begins every key in the store
  Duration timeout{};  // of forming it
  // A thread to which ncclCommAbort does not return is left behind after so long.
  Duration abort_grace{};
  // Knows when a rank dies, which NCCL does not: its failure ends every wait. May be null; must
  // outlive the communicator.
  const CpuGroup* peers = nullptr;
};

class NcclCommunicator {
 public:
  // Collective. The current device is the communicator's. The store is used during the call only
  // and may be null in a world of one.
  static Result<std::unique_ptr<NcclCommunicator>> form(const NcclApi& api, Store* store,
                                                        NcclCommunicatorOptions options);
  // Aborts what was not closed.
  ~NcclCommunicator();

  // Runs `issue`, which makes NCCL calls on the communicator, and returns when NCCL has put their
  // work on the stream. After a failure: that failure.
  using Issue = std::function<NcclResult(NcclComm)>;
  Result<void> launch(const Issue& issue, const Deadline& deadline);

  // The failure that was reported, or one that the peers or NCCL have noticed since.
  Result<void> check();

  // Reports a failure. The first one is kept, and everything later refused with it.
  void fail(const Error& failure);
  std::optional<Error> failure() const;

  // After a failure: frees what NCCL holds and ends what it still does on the stream, once.
  void abort();

  // Takes leave from the peers, at most until the deadline, and frees the communicator. Nothing is
  // on its stream any more.
  void close(const Deadline& deadline);

 private:
  NcclCommunicator(const NcclApi& api, NcclCommunicatorOptions options)
      : api_(api), options_(std::move(options)) {}

  Result<NcclUniqueId> exchange_id(Store* store, const Deadline& deadline);
  Result<void> init(const NcclUniqueId& id, const Deadline& deadline);
  Result<void> settle(NcclResult result, const Deadline& deadline);
  Result<std::string> await_id(Store& store, const Deadline& deadline) const;
  Result<void> check_peers() const;
  NcclResult state_now();
  Error nccl_error(NcclResult result);

  const NcclApi& api_;
  const NcclCommunicatorOptions options_;
  mutable std::mutex mutex_;  // guards what follows, and every call on comm_
  NcclComm comm_ = nullptr;   // null before it was made and after it was freed
  std::optional<Error> failure_;
};

// A failure of the CUDA run-time.
Error cuda_error(const NcclApi& api, std::string doing, CudaResult result);

}  // namespace ddprun
