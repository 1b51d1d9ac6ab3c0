// NcclEngine: carries out the calls of an NcclBackend: their streams, communicators and order, the
// watch over what is in flight, and the end of the group.
//
// A device that a rank uses has a lane: a stream of the engine's own, a communicator and what is in
// flight. The communicator is made by the first collective there, with the deadline of that call;
// that of the n-th device a rank comes to use is the n-th of the group, so all ranks must come to
// use theirs in the same order. A message between two ranks, before there is a communicator of all,
// makes one of the two.
//
// A watcher thread, started by the first call, looks every 20 ms at what is in flight: a deadline
// that has passed, an error that NCCL noticed, or a failure of the group of peers ends all
// communicators and everything in flight with them; the peers, a CpuGroup of the same ranks, tell
// the other ranks. Several times a second it compares the logs of the ranks (collective_log.h,
// desync_detector.h), which they show each other as notes: ranks that disagree in what they call,
// which NCCL does not notice, are told so. A call that NCCL does not return from has its deadline,
// too.
//
// Owned by an NcclBackend. One thread at a time launches and splits; end(): any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ddprun/backend.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/nccl/api.h"
#include "worker_lib/nccl/collective_log.h"
#include "worker_lib/nccl/communicator.h"
#include "worker_lib/nccl/desync_detector.h"
#include "worker_lib/nccl/memory.h"
#include "worker_lib/nccl/work.h"

namespace ddprun {

// What a group that is split off begins with.
struct NcclSeed {
  int device = 0;
  std::unique_ptr<NcclCommunicator> communicator;  // of the group's ranks
};

struct NcclBackendOptions {
  int rank = 0;
  int world_size = 1;
  torch::Device device{torch::kCUDA, 0};  // where barriers are, and the tensors of shared_empty()
  std::string name;                       // begins every key in the store
  std::string title;  // behind what was done, in errors: " in group tp"; empty: of the world
  // Compare what the ranks call, beside the calls; needs peers.
  bool compare_calls = true;
  // See CpuGroupOptions.
  std::function<std::string(std::span<const int> ranks)> elsewhere = {};
  // Of more ranks than these, several bootstrap a communicator: about one for so many.
  int ranks_per_root = 128;
  // The destructor gives what is in flight, and the peers' leave, so long before it aborts.
  Duration close_grace = std::chrono::seconds(5);
  // An abort that does not return: whoever waits for a call hears of its failure after the first,
  // the destructor goes on after the second.
  Duration stop_grace = std::chrono::milliseconds(800);
  Duration abort_grace = std::chrono::seconds(10);
};

// Where a call goes.
struct NcclLaneView {
  NcclComm comm;
  CudaStream stream;
  std::optional<NcclOp>& premul_sum;  // the one made last for this communicator
};

// One call, in the order of the stream.
struct NcclIssue {
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  // A message outside of a collective: to or from a rank, which has another number in a
  // communicator of two.
  struct Message {
    int peer;
    bool is_send;
    std::size_t bytes;
    std::function<NcclResult(NcclComm comm, int peer, CudaStream stream)> pass;
  };

  int device = 0;
  NcclCall what;                                               // for errors
  std::optional<CallHeader> header = {};                       // of a collective, for the log
  PairBalance pairs = {};                                      // of an all_to_all, for the log
  std::vector<torch::Tensor> keep = {};                        // alive until the call is over
  std::vector<Copy> copies_ahead = {};                         // within the device
  std::function<NcclResult(const NcclLaneView&)> launch = {};  // of a collective
  std::vector<Message> messages = {};                          // else
  std::vector<Copy> copies_behind = {};
  NcclWork::HostWait host_wait = NcclWork::HostWait::kOnRequest;
};

class NcclEngine {
 public:
  // The store may be null in a world of one, and so may the peers; without them a dead rank is
  // noticed at the deadline, and nothing is compared. seed: null: there is none.
  NcclEngine(const NcclApi& api, std::shared_ptr<Store> store, const NcclBackendOptions& options,
             std::shared_ptr<CpuGroup> peers, std::shared_ptr<NcclSeed> seed);
  // Waits for what is in flight and for the peers' leave, a little; then aborts.
  ~NcclEngine();

  // kUnsupported leaves the group usable; any other failure ends it.
  Result<std::shared_ptr<NcclWork>> launch(NcclIssue issue, CallOptions call);
  // A barrier of the peers, in the order of the calls.
  Result<void> monitored_barrier(CallOptions call);
  // See Backend::split_off.
  Result<std::shared_ptr<NcclSeed>> split_off(int color, int key, CallOptions call);

  // Ends the group with this failure, and tells the peers, unless it has ended before. begun: a call that
  // may be on its stream, but is not in flight yet.
  void end(const Error& failure, const std::shared_ptr<NcclWork>& begun = nullptr);

  const NcclApi& api() const { return api_; }
  const NcclBackendOptions& options() const { return options_; }
  CpuGroup* peers() { return peers_.get(); }
  NcclMemory& memory() { return *memory_; }

 private:
  struct Lane {
    int device = 0;
    int place = 0;  // in the order in which they came to be used
    CudaStream stream = nullptr;
    std::unique_ptr<NcclCommunicator> communicator = {};
    std::map<int, std::unique_ptr<NcclCommunicator>> pairs = {};  // by the other rank
    std::optional<NcclOp> premul_sum = {};
    // In the order of the stream, with the events behind them.
    std::deque<std::pair<std::shared_ptr<NcclWork>, std::shared_ptr<NcclEvent>>> in_flight = {};
    std::vector<std::shared_ptr<NcclEvent>> free_events = {};  // those that mark nothing now
    std::vector<std::shared_ptr<NcclEvent>> captured = {};     // by graphs
  };
  // A call that the caller's thread is inside NCCL with.
  struct Launching {
    NcclCall call;
    Deadline deadline;
  };

  void stop(const std::shared_ptr<NcclWork>& begun = nullptr);
  std::string words_of(const NcclCall& call) const { return to_text(call) + options_.title; }
  Result<void> may_begin(const NcclCall& what);
  Result<bool> is_captured(const NcclIssue& issue);
  Result<std::shared_ptr<NcclWork>> enqueue(NcclIssue& issue, bool is_captured,
                                            const Deadline& deadline,
                                            std::shared_ptr<NcclWork>& work);
  Result<Lane*> lane_of(int device);
  Lane* find_lane(int device);
  Result<void> join(Lane& lane, const NcclIssue& issue, bool is_captured, const Deadline& deadline);
  Result<std::unique_ptr<NcclCommunicator>> meet(NcclCommunicatorOptions as,
                                                 const Deadline& deadline);
  Result<void> put_on_stream(Lane& lane, const NcclIssue& issue, bool is_captured,
                             const Deadline& deadline);
  CudaResult copy(const std::vector<NcclIssue::Copy>& copies, CudaStream stream);
  Result<std::shared_ptr<NcclEvent>> take_event(Lane& lane, bool is_captured);

  Result<void> start_watcher(int device);
  void watch(int device);
  bool is_idle() const;
  Result<void> inspect();
  Result<void> reap(Lane& lane);
  void call_back();
  Error deadline_passed(const NcclCall& call, const Deadline& deadline);
  std::string who_is_missing(const NcclCall& call, int& first);
  std::string whose_ends_are_missing(const NcclCall& call, int& first);
  void show_log();
  Result<void> compare_logs(bool was_idle);
  std::vector<NcclCommunicator*> communicators();  // holds mutex_
  std::vector<Lane*> lanes();
  Result<void> drain(const Deadline& deadline);
  Error with_cause(Error error) const;

  const NcclApi& api_;
  const std::shared_ptr<Store> store_;
  const NcclBackendOptions options_;
  const std::shared_ptr<CpuGroup> peers_;
  std::unique_ptr<NcclCommunicator> seed_;  // until its device is used
  int seed_device_ = -1;
  const std::shared_ptr<NcclAbortState> abort_state_;
  const std::shared_ptr<NcclMemory> memory_;
  std::uint64_t calls_ = 0;  // messages counted

  std::mutex ending_;  // held while the group ends
  std::vector<NcclEnding> endings_;
  std::weak_ptr<std::vector<torch::Tensor>> kept_;  // by aborts that are not over

  std::mutex mutex_;  // guards what follows; never held while NCCL or CUDA is called
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by place
  CollectiveLog collective_log_;
  bool is_meeting_ = false;      // the caller's thread makes a communicator
  std::optional<Launching> launching_;
  std::uint64_t reaped_ = 0;     // calls that are over
  NcclWork::Callbacks to_call_;  // of those: the watcher's task
  std::uint64_t shown_ = 0;      // calls that the others can read of
  bool closing_ = false;

  // The watcher's.
  std::string shown_note_;
  std::uint64_t reaped_before_ = 0;
  std::optional<DesyncDetector> desync_detector_;  // where there is anything to compare
  std::thread watcher_;
};

}  // namespace ddprun
