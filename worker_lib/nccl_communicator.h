// NcclCommunicator: one non-blocking NCCL communicator, from the exchange of its unique id to its end.
//
// Rank 0 makes the id and sets it in the store; the others get it with a deadline. Every call that NCCL
// answers with "in progress" is followed until NCCL says otherwise or the deadline has passed. The first
// failure ends the communicator: it is aborted at once and refuses everything later with that failure.
//
// Owned by an NcclBackend. One thread at a time launches; abort(), failure() and check() may be called
// from any thread, also while another one launches: NCCL never sees two of our threads at once, nor any
// call on a communicator that was given up.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "worker_lib/nccl_api.h"

namespace ddprun {

class StoreClient;

struct NcclCommunicatorOptions {
  Rank rank{0};
  int world_size = 1;
  std::string name;                             // begins every key in the store
  Duration timeout = std::chrono::minutes(30);  // of forming it
  // A thread that ncclCommAbort does not return to is left behind after so long.
  Duration abort_grace = std::chrono::seconds(10);
};

class NcclCommunicator {
 public:
  // Collective. The current device is the communicator's. The store is used during the call only and
  // may be null in a world of one.
  static Result<std::unique_ptr<NcclCommunicator>> form(const NcclApi& api, StoreClient* store,
                                                        NcclCommunicatorOptions options);
  // Aborts what was not closed.
  ~NcclCommunicator();

  // Runs `issue`, which makes NCCL calls on the communicator, and returns when NCCL has put their work
  // on the stream. A failure ends the communicator. doing: for errors.
  using Issue = std::function<NcclResult(NcclComm)>;
  Result<void> launch(const Issue& issue, TimePoint deadline,
                      const std::function<std::string()>& doing);

  // Whether NCCL has noticed a failure since; ends the communicator if so.
  Result<void> check();

  // Ends the communicator with this failure, if it is the first.
  void fail(Error failure);

  // The first failure: what every later call should tell.
  std::optional<Error> failure() const;

  // Takes leave from the peers (a collective of its own, at most until the deadline), then frees the
  // communicator; aborts it if they do not come. Nothing is on its stream any more.
  void close(TimePoint deadline);

 private:
  NcclCommunicator(const NcclApi& api, NcclCommunicatorOptions options)
      : api_(api), options_(std::move(options)) {}

  Result<NcclUniqueId> exchange_id(StoreClient* store, TimePoint deadline);
  Result<void> init(const NcclUniqueId& id, TimePoint deadline);
  Result<void> settle(NcclResult result, TimePoint deadline);
  NcclResult state_now();
  Error nccl_error(NcclResult result);
  void abort_now();

  const NcclApi& api_;
  const NcclCommunicatorOptions options_;
  mutable std::mutex mutex_;  // guards what follows, and every call on comm_
  NcclComm comm_ = nullptr;   // null once it was given up
  std::optional<Error> failure_;
};

// A failure of the CUDA run-time.
Error cuda_error(const NcclApi& api, std::string doing, CudaResult result);

}  // namespace ddprun
