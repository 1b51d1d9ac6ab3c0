// NcclEngine: carries out the calls of the nccl backend. It has their streams, communicators and
// order, watches the calls in flight, and ends the group.
//
// Each device that a rank uses has a lane: a stream of the engine, a communicator and the calls
// in flight. The first collective on a device makes the communicator, within the deadline of
// that call. The n-th device that a rank uses gets the group's n-th communicator, so all ranks
// must start to use their devices in the same order. A message between two ranks, before there
// is a communicator of all ranks, makes a communicator of the two.
//
// The first call starts a watcher thread, which looks every 20 ms at the calls in flight. A
// deadline that has passed, an error that NCCL detected, or a failure of the group of peers ends
// all communicators and all calls in flight. The peers, a CpuGroup of the same ranks, tell the
// other ranks. Several times a second the watcher compares the logs of the ranks
// (collective_log.h, desync_detector.h), which the ranks show each other as notes. Ranks whose
// calls disagree get an error, because NCCL does not notice that. A call from which NCCL does
// not return has its deadline, too.
//
// The nccl backend owns it. One thread at a time launches and splits; end(): any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

struct NcclBackendOptions {
  int rank = 0;
  int world_size = 1;
  torch::Device device{torch::kCUDA, 0};  // for barriers and the tensors of shared_empty()
  std::string name;                       // begins every key in the store
  // Errors append it to what was done: " in group tp"; empty: of the world.
  std::string title;
  // Compares the calls of the ranks in the background; needs peers.
  bool compare_calls = true;
  // See CpuGroupOptions.
  AbsenceExplainer explain_absence = {};
  // With more ranks than this, several roots bootstrap a communicator: about one root for every
  // ranks_per_root ranks.
  int ranks_per_root = 128;
  // How long the destructor waits for calls in flight, and for the peers' leave, before it
  // aborts.
  Duration close_grace = std::chrono::seconds(5);
  // For an abort that does not return: threads that wait for a call get its failure after the
  // first time. The destructor continues after the second.
  Duration stop_grace = std::chrono::milliseconds(800);
  Duration abort_grace = std::chrono::seconds(10);
};

// The lane on which a call runs.
struct NcclLaneView {
  NcclComm comm;
  CudaStream stream;
  std::optional<NcclOp>& premul_sum;  // the last one made for this communicator
};

// One call: its steps, in the order of the stream.
struct NcclIssue {
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  // A message outside a collective, to or from a rank. That rank has another number in a
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
  std::vector<torch::Tensor> keep = {};                        // alive until the call has ended
  std::vector<Copy> copies_ahead = {};                         // within the device
  std::function<NcclResult(const NcclLaneView&)> launch = {};  // of a collective
  std::vector<Message> messages = {};                          // else
  std::vector<Copy> copies_behind = {};
  NcclWork::HostWait host_wait = NcclWork::HostWait::kOnRequest;
};

class NcclEngine {
 public:
  // The store may be null in a world of one, and so may the peers. Without peers a dead rank is
  // noticed only at the deadline, and calls are not compared. seed: the communicator of a group
  // that was split off; may be null.
  NcclEngine(const NcclApi& api, std::shared_ptr<Store> store, const NcclBackendOptions& options,
             std::shared_ptr<CpuGroup> peers, std::shared_ptr<NcclCommunicator> seed);
  // Waits for the calls in flight and for the peers' leave, up to close_grace; then aborts.
  ~NcclEngine();

  // Launches a call. kUnsupported leaves the group usable; any other failure ends it.
  Result<std::shared_ptr<NcclWork>> launch(NcclIssue issue, CallOptions call);
  // Runs a barrier of the peers, in the order of the calls.
  Result<void> monitored_barrier(CallOptions call);
  // Splits a group off (Backend::split_off). Returns the communicator of the group; null if there
  // is none.
  Result<std::shared_ptr<NcclCommunicator>> split_off(int color, int key, CallOptions call);

  // Ends the group with this failure and tells the peers, unless it has already ended. begun: a
  // call that may be on its stream, but is not yet in flight.
  void end(const Error& failure, const std::shared_ptr<NcclWork>& begun = nullptr);

  const NcclApi& api() const { return api_; }
  const NcclBackendOptions& options() const { return options_; }
  CpuGroup* peers() { return peers_.get(); }
  NcclMemory& memory() { return *memory_; }

 private:
  struct Lane {
    int device = 0;
    int place = 0;  // in the order of first use
    CudaStream stream = nullptr;
    std::shared_ptr<NcclCommunicator> communicator = {};
    std::map<int, std::unique_ptr<NcclCommunicator>> pairs = {};  // by the other rank
    std::optional<NcclOp> premul_sum = {};
    // In the order of the stream, each with the event that follows it.
    std::deque<std::pair<std::shared_ptr<NcclWork>, std::shared_ptr<NcclEvent>>> in_flight = {};
    std::vector<std::shared_ptr<NcclEvent>> free_events = {};  // in no use now
    std::vector<std::shared_ptr<NcclEvent>> captured = {};     // by graphs
  };
  // A call with which the caller's thread is inside NCCL.
  struct Launching {
    NcclCall call;
    Deadline deadline;
  };

  void stop(const std::shared_ptr<NcclWork>& begun = nullptr);
  std::string words_of(const NcclCall& call) const { return to_text(call) + options_.title; }
  Result<void> may_begin(const NcclCall& what);
  Result<bool> is_captured(const NcclIssue& issue);
  Result<void> enqueue(NcclIssue& issue, bool is_captured, const Deadline& deadline,
                       std::shared_ptr<NcclWork>& work);
  Result<Lane*> lane_of(int device);
  Lane* find_lane(int device);
  Result<void> join(Lane& lane, const NcclIssue& issue, bool is_captured, const Deadline& deadline);
  Result<std::unique_ptr<NcclCommunicator>> form_communicator(NcclCommunicatorOptions as,
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
  std::shared_ptr<NcclCommunicator> seed_;  // until its device is used
  const std::shared_ptr<NcclAbortState> abort_state_;
  const std::shared_ptr<NcclMemory> memory_;
  std::uint64_t calls_ = 0;  // messages included

  std::mutex ending_;  // held while the group ends
  std::vector<std::shared_ptr<NcclEnding>> endings_;
  std::weak_ptr<std::vector<torch::Tensor>> kept_;  // by aborts that have not ended

  std::mutex mutex_;  // guards the following; never held while NCCL or CUDA is called
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by place
  CollectiveLog collective_log_;
  bool is_forming_ = false;  // the caller's thread is making a communicator
  std::optional<Launching> launching_;
  std::uint64_t reaped_ = 0;     // calls that have ended
  NcclWork::Callbacks to_call_;  // for those calls: the watcher runs them
  std::uint64_t shown_ = 0;      // calls in the note that the others can read
  bool closing_ = false;

  // Used by the watcher only.
  std::string shown_note_;
  std::uint64_t reaped_before_ = 0;
  std::optional<DesyncDetector> desync_detector_;  // if there is something to compare
  std::thread watcher_;
};

}  // namespace ddprun
