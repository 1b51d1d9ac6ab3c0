#include "worker_lib/nccl/engine.h"

#include <algorithm>
#include <set>

#include "base/concat.h"
#include "worker_lib/collective/group_end.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/nccl/device_guard.h"
#include "worker_lib/util/nccl_pause.h"

namespace ddprun {
namespace {

// NCCL may notice the death of a rank earlier than the peers, by this time.
constexpr Duration kNewsPatience = std::chrono::milliseconds(400);

}  // namespace

// --- beginning and ending ---

NcclEngine::NcclEngine(const NcclApi& api, std::shared_ptr<Store> store,
                       const NcclBackendOptions& options, std::shared_ptr<CpuGroup> peers,
                       std::shared_ptr<NcclCommunicator> seed)
    : api_(api),
      store_(std::move(store)),
      options_(options),
      peers_(std::move(peers)),
      seed_(std::move(seed)),
      abort_state_(seed_ ? seed_->abort_state() : std::make_shared<NcclAbortState>()),
      memory_(std::make_shared<NcclMemory>(
          api, options.device.has_index() ? options.device.index() : 0, options.close_grace)) {
  abort_state_->set_peers(peers_.get());
}

NcclEngine::~NcclEngine() {
  const Deadline deadline(options_.close_grace);
  if (drain(deadline)) {
    for (const auto& lane : lanes_) {
      const DeviceGuard guard(api_, lane->device);
      for (const auto& [peer, pair] : lane->pairs) pair->close(deadline);
      if (lane->communicator) lane->communicator->close(deadline);
    }
    if (seed_) {
      const DeviceGuard guard(api_, seed_->device());
      seed_->close(deadline);
    }
  }
  abort_state_->fail(Error{.kind = ErrorKind::kStopped, .cause = kGroupDestroyed});
  stop();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  call_back();
  const Deadline patience(options_.abort_grace);
  for (const auto& one : endings_) one->wait_until_over(patience.remaining());
  memory_->end();
  for (const auto& lane : lanes_) {
    const DeviceGuard guard(api_, lane->device);
    lane->free_events.clear();
    lane->captured.clear();
    if (lane->stream) api_.stream_destroy(lane->stream);
  }
}

// Waits until everything in flight has succeeded. A blocking call returns when the work is on
// the stream. So a program that ends may still have work there that its peers need.
Result<void> NcclEngine::drain(const Deadline& deadline) {
  NcclPause pause;
  for (;;) {
    if (const std::optional<Error> first = abort_state_->failure()) return *first;
    if (const Result<void> well = inspect(); !well) return well;
    std::shared_ptr<NcclWork> oldest;
    {
      const std::lock_guard lock(mutex_);
      const auto busy =
          std::ranges::find_if(lanes_, [](const auto& lane) { return !lane->in_flight.empty(); });
      if (busy == lanes_.end()) return {};
      oldest = (*busy)->in_flight.front().first;
    }
    if (deadline.passed()) {
      return timeout_error("", words_of(oldest->call()) + " is not complete", deadline);
    }
    pause.take();
  }
}

// NCCL reports that a process has gone, but not which one. The peers know it, maybe a little
// later.
Error NcclEngine::with_cause(Error error) const {
  const bool may_be_a_death =
      error.kind == ErrorKind::kPeerLost || error.kind == ErrorKind::kSystem;
  if (!peers_ || !may_be_a_death || error.peer_rank >= 0 || abort_state_->failure()) return error;
  const Deadline patience(kNewsPatience);
  NcclPause pause;
  while (!peers_->failure() && !patience.passed()) pause.take();
  return peers_->failure().value_or(std::move(error));
}

void NcclEngine::end(const Error& failure, const std::shared_ptr<NcclWork>& begun) {
  if (abort_state_->fail(failure) && peers_) {
    const bool concerns_all_ranks = failure.kind == ErrorKind::kInvalidArgument;
    peers_->fail(
        failure.kind, failure.peer_rank,
        concerns_all_ranks ? failure.cause : name_rank(options_.rank) + ": " + failure.message());
  }
  stop(begun);
  call_back();
}

// Threads that wait get the failure when nothing runs any more. Until then kernels may still
// write to the tensors that these threads would release. They must not query their events any
// more either, because an abort lets the events come. If the abort does not return in time, the
// threads get the failure anyway, and the abort keeps the tensors.
//
// Callbacks run here may make calls, which call this function again.
void NcclEngine::stop(const std::shared_ptr<NcclWork>& begun) {
  std::unique_lock ending(ending_);
  std::vector<std::shared_ptr<NcclWork>> aborted;
  std::vector<NcclCommunicator*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& lane : lanes_) {
      for (const auto& [work, event] : lane->in_flight) aborted.push_back(work);
    }
    all = communicators();
  }
  if (begun) aborted.push_back(begun);
  // An abort that is still running may be the one of this call's communicator.
  std::shared_ptr<std::vector<torch::Tensor>> keep = kept_.lock();
  if (!keep) kept_ = keep = std::make_shared<std::vector<torch::Tensor>>();
  for (const auto& work : aborted) work->begin_abort(*keep);
  endings_.push_back(NcclCommunicator::abort(all, keep));
  const Deadline patience(options_.stop_grace);
  for (const auto& one : endings_) one->wait_until_quiet(patience.remaining());
  ending.unlock();
  const Error first = *abort_state_->failure();
  for (const auto& work : aborted) work->fail(first);
}

// REQUIRES: mutex_ is held.
std::vector<NcclCommunicator*> NcclEngine::communicators() {
  std::vector<NcclCommunicator*> all;
  for (const auto& lane : lanes_) {
    if (lane->communicator) all.push_back(lane->communicator.get());
    for (const auto& [peer, pair] : lane->pairs) all.push_back(pair.get());
  }
  return all;
}

// --- one call ---

Result<void> NcclEngine::may_begin(const NcclCall& what) {
  const Result<void> good = abort_state_->check();
  if (good) return {};
  // A failure that the peers found while nothing was in flight is reported here first.
  end(good.error().within("nccl group"));
  return group_finished(words_of(what), *abort_state_->failure());
}

Result<std::shared_ptr<NcclWork>> NcclEngine::launch(NcclIssue issue, CallOptions call) {
  issue.what.number = ++calls_;
  if (issue.header) {
    const std::lock_guard lock(mutex_);
    issue.what.collective = collective_log_.called() + 1;
  }
  if (const Result<void> may = may_begin(issue.what); !may) return may.error();
  const DeviceGuard guard(api_, issue.device);
  const Result<bool> captured = is_captured(issue);
  if (!captured && captured.error().kind == ErrorKind::kUnsupported) {
    return captured.error().within(words_of(issue.what));
  }
  std::shared_ptr<NcclWork> work;
  const Result<void> done =
      captured ? enqueue(issue, *captured, Deadline(call.timeout), work) : captured.error();
  if (done) return work;
  const Error error = with_cause(done.error()).within(words_of(issue.what));
  end(error, work);
  return error;
}

// Returns whether the caller's stream is being captured into a CUDA graph; kUnsupported if the
// call cannot be part of one.
Result<bool> NcclEngine::is_captured(const NcclIssue& issue) {
  bool is_capturing = false;
  const CudaResult asked =
      api_.stream_is_capturing(api_.current_stream(issue.device), &is_capturing);
  if (asked != CudaResult::kSuccess) return cuda_error(api_, "", asked);
  if (!is_capturing) return false;
  const auto refused = [](const char* why) {
    return Error{.kind = ErrorKind::kUnsupported, .cause = why};
  };
  if (issue.host_wait == NcclWork::HostWait::kAlways) {
    return refused("it blocks the host, and the stream is being captured into a CUDA graph");
  }
  const Lane* lane = find_lane(issue.device);
  bool is_ready = lane && lane->communicator;
  if (lane && !is_ready && !issue.messages.empty()) {
    is_ready = std::ranges::all_of(
        issue.messages, [&](const auto& message) { return lane->pairs.contains(message.peer); });
  }
  if (!is_ready) {
    return refused(
        "the first call on a device makes a communicator, which cannot be captured into a CUDA "
        "graph: make one call before the capture");
  }
  return true;
}

// The engine's stream first waits for the present work of the caller's stream. The same event
// then marks the end of the call. `work` is set before anything is put on a stream.
Result<void> NcclEngine::enqueue(NcclIssue& issue, bool is_captured, const Deadline& deadline,
                                 std::shared_ptr<NcclWork>& work) {
  const Result<void> watched = start_watcher(issue.device);
  if (!watched) return watched;
  const Result<Lane*> found = lane_of(issue.device);
  if (!found) return found.error();
  Lane& lane = **found;
  {
    const std::lock_guard lock(mutex_);
    if (issue.header) collective_log_.enter(*issue.header, lane.place, issue.pairs);
    for (const NcclIssue::Message& one : issue.messages) {
      collective_log_.enter_message(issue.what.number, {.bytes = one.bytes,
                                                        .peer = one.peer,
                                                        .place = std::uint16_t(lane.place),
                                                        .is_send = one.is_send});
    }
  }
  const Result<void> joined = join(lane, issue, is_captured, deadline);
  if (!joined) return joined;
  const Result<std::shared_ptr<NcclEvent>> taken = take_event(lane, is_captured);
  if (!taken) return taken.error();
  const CudaEvent event = (*taken)->get();
  const CudaStream caller = api_.current_stream(lane.device);
  work = std::make_shared<NcclWork>(issue.what,
                                    NcclWork::Stream{.api = api_,
                                                     .device = lane.device,
                                                     .caller = caller,
                                                     .event = *taken,
                                                     .is_captured = is_captured},
                                    std::move(issue.keep), issue.host_wait, deadline);

  CudaResult done = api_.event_record(event, caller);
  if (done == CudaResult::kSuccess) done = api_.stream_wait_event(lane.stream, event);
  if (done == CudaResult::kSuccess) done = copy(issue.copies_ahead, lane.stream);
  if (done != CudaResult::kSuccess) return cuda_error(api_, "", done);

  const Result<void> launched = put_on_stream(lane, issue, is_captured, deadline);
  if (!launched) {
    // Ranks connect in the first call, so a rank that has not come is detected here.
    const bool is_late = launched.error().kind == ErrorKind::kTimeout && !abort_state_->failure();
    return is_late ? deadline_passed(issue.what, deadline) : launched.error();
  }

  done = copy(issue.copies_behind, lane.stream);
  if (done == CudaResult::kSuccess) done = api_.event_record(event, lane.stream);
  if (done != CudaResult::kSuccess) return cuda_error(api_, "", done);
  const std::lock_guard lock(mutex_);
  // The thread that reported the failure has not seen this call, which the abort may have ended.
  if (const std::optional<Error> first = abort_state_->failure()) return *first;
  if (is_captured) {
    lane.captured.push_back(*taken);
  } else {
    lane.in_flight.push_back({work, *taken});
  }
  changed_.notify_all();
  return {};
}

NcclEngine::Lane* NcclEngine::find_lane(int device) {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (lane->device == device) return lane.get();
  }
  return nullptr;
}

// REQUIRES: the device is current.
Result<NcclEngine::Lane*> NcclEngine::lane_of(int device) {
  if (seed_ && seed_->device() != device) {
    // All ranks use the seed's device first; this rank starts with another one.
    const int of_seed = seed_->device();
    const DeviceGuard guard(api_, of_seed);
    if (const Result<Lane*> first = lane_of(of_seed); !first) return first;
  }
  if (Lane* there = find_lane(device)) return there;
  auto made = std::make_unique<Lane>();
  made->device = device;
  const CudaResult stream = api_.stream_create(&made->stream);
  if (stream != CudaResult::kSuccess) return cuda_error(api_, "make a stream for NCCL", stream);
  made->communicator = std::move(seed_);  // of this device, or null
  const std::lock_guard lock(mutex_);
  made->place = lanes_.size();
  lanes_.push_back(std::move(made));
  return lanes_.back().get();
}

// Makes the communicators that the call needs and that do not exist yet.
Result<void> NcclEngine::join(Lane& lane, const NcclIssue& issue, bool is_captured,
                              const Deadline& deadline) {
  const bool is_collective = issue.messages.empty();
  if (!lane.communicator && is_collective) {
    auto made = form_communicator(
        {.rank = options_.rank,
         .world_size = options_.world_size,
         .name = lane.place == 0 ? options_.name : concat(options_.name, "/", lane.place),
         .ranks_per_root = options_.ranks_per_root,
         .abort_grace = options_.stop_grace},
        deadline);
    if (!made) {
      Error error = std::move(made).error();
      if (error.kind != ErrorKind::kTimeout) return error;
      int first = -1;
      const std::string who = who_is_missing(issue.what, first);
      if (!who.empty()) error.cause = who;
      if (first >= 0) error.peer_rank = first;
      return error;
    }
    const std::lock_guard lock(mutex_);
    lane.communicator = std::move(*made);
  }
  if (lane.communicator) {
    const bool is_current = is_captured || lane.device != memory_->device() || !memory_->has_news();
    if (!is_current) memory_->update(*lane.communicator, lane.stream);
    return {};
  }
  // In ascending order on all ranks, so that no cycle of ranks waits for each other.
  std::set<int> peers;
  for (const NcclIssue::Message& message : issue.messages) peers.insert(message.peer);
  for (const int peer : peers) {
    if (lane.pairs.contains(peer)) continue;
    const auto [low, high] = std::minmax(peer, options_.rank);
    auto made =
        form_communicator({.rank = options_.rank == low ? 0 : 1,
                           .world_size = 2,
                           .name = concat(options_.name, "/", lane.place, "/", low, "-", high),
                           .abort_grace = options_.stop_grace},
                          deadline);
    if (!made) {
      Error error = std::move(made).error();
      if (error.kind == ErrorKind::kTimeout) {
        error.peer_rank = peer;
        error.cause = name_rank(peer) + " has not come to exchange a message with this rank";
      }
      return error;
    }
    const std::lock_guard lock(mutex_);
    lane.pairs[peer] = std::move(*made);
  }
  return {};
}

Result<std::unique_ptr<NcclCommunicator>> NcclEngine::form_communicator(NcclCommunicatorOptions as,
                                                                        const Deadline& deadline) {
  const auto set_forming = [this](bool is_forming) {
    const std::lock_guard lock(mutex_);
    is_forming_ = is_forming;
    changed_.notify_all();
  };
  set_forming(true);
  auto made = NcclCommunicator::form(api_, as.world_size == 1 ? nullptr : store_.get(),
                                     abort_state_, std::move(as), deadline);
  set_forming(false);
  return made;
}

Result<void> NcclEngine::put_on_stream(Lane& lane, const NcclIssue& issue, bool is_captured,
                                       const Deadline& deadline) {
  std::vector<NcclCommunicator*> on;
  std::vector<std::function<NcclResult()>> passes;
  // kInternalError if the communicator has just been given up.
  const auto with = [](NcclCommunicator& communicator, const auto& call) {
    const NcclComm comm = communicator.handle();
    return comm ? call(comm) : NcclResult::kInternalError;
  };
  if (issue.messages.empty()) {
    on.push_back(lane.communicator.get());
    passes.push_back([&] {
      return with(*lane.communicator, [&](NcclComm comm) {
        return issue.launch({comm, lane.stream, lane.premul_sum});
      });
    });
  }
  for (const NcclIssue::Message& message : issue.messages) {
    NcclCommunicator* by = lane.communicator.get();
    int peer = message.peer;
    if (!by) {
      by = lane.pairs.at(peer).get();
      peer = peer < options_.rank ? 0 : 1;
    }
    if (std::ranges::find(on, by) == on.end()) on.push_back(by);
    passes.push_back([&with, &message, by, peer, stream = lane.stream] {
      return with(*by, [&](NcclComm comm) { return message.pass(comm, peer, stream); });
    });
  }
  if (is_captured) {
    for (NcclCommunicator* one : on) one->set_captured();
  }
  const auto set_launching = [this](std::optional<Launching> call) {
    const std::lock_guard lock(mutex_);
    launching_ = call;
    if (launching_) changed_.notify_all();
  };
  set_launching(Launching{issue.what, deadline});
  Result<void> launched = NcclCommunicator::launch(
      on,
      [&] { return nccl_group(api_, passes.size(), [&](std::size_t i) { return passes[i](); }); },
      deadline);
  set_launching(std::nullopt);
  return launched;
}

CudaResult NcclEngine::copy(const std::vector<NcclIssue::Copy>& copies, CudaStream stream) {
  for (const NcclIssue::Copy& one : copies) {
    const CudaResult copied = api_.memcpy_async(one.to, one.from, one.bytes, stream);
    if (copied != CudaResult::kSuccess) return copied;
  }
  return CudaResult::kSuccess;
}

// The event of a capture belongs to it forever and is not used again.
Result<std::shared_ptr<NcclEvent>> NcclEngine::take_event(Lane& lane, bool is_captured) {
  const Result<void> reaped = reap(lane);
  if (!reaped) return reaped.error();
  {
    const std::lock_guard lock(mutex_);
    if (!is_captured && !lane.free_events.empty()) {
      std::shared_ptr<NcclEvent> event = std::move(lane.free_events.back());
      lane.free_events.pop_back();
      return event;
    }
  }
  return NcclEvent::make(api_, lane.device);
}

Result<void> NcclEngine::monitored_barrier(CallOptions call) {
  NcclCall what{.name = "monitored_barrier", .number = ++calls_};
  {
    const std::lock_guard lock(mutex_);
    what.collective = collective_log_.called() + 1;
  }
  if (const Result<void> may = may_begin(what); !may) return may;
  if (!peers_) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .doing = "monitored_barrier",
                 .cause = "this nccl group knows nothing of its peers"};
  }
  {
    const std::lock_guard lock(mutex_);
    collective_log_.enter({.kind = CallKind::kMonitoredBarrier}, 0);
    changed_.notify_all();
  }
  const Result<void> passed = peers_->barrier(call.timeout);
  if (passed) return {};
  const Error error = passed.error().within(what.name);
  end(error);
  return error;
}

// --- splitting ---

// The ranks tell each other the result: a part that only some of them have is useless.
Result<std::shared_ptr<NcclCommunicator>> NcclEngine::split_off(int color, int key,
                                                                CallOptions call) {
  if (const Result<void> good = abort_state_->check(); !good) {
    return good.error().within("nccl group");
  }
  Lane* const first = lanes_.empty() ? nullptr : lanes_[0].get();
  if (!first || !first->communicator || !first->communicator->can_split()) {
    return std::shared_ptr<NcclCommunicator>();
  }
  const Deadline deadline(call.timeout);
  const DeviceGuard guard(api_, first->device);
  // NCCL may deadlock when it splits a communicator with outstanding calls.
  if (const Result<void> drained = drain(deadline); !drained) {
    const Error error = drained.error().within("split");
    end(error);
    return error;
  }
  Result<std::unique_ptr<NcclCommunicator>> part = first->communicator->split(color, key, deadline);
  if (!part && !first->communicator->is_usable()) {
    const Error error = with_cause(part.error());
    end(error);
    return error;
  }
  std::vector<char> failed(options_.world_size, part ? 0 : 1);
  if (peers_ && options_.world_size > 1) {
    const char mine = part ? 0 : 1;
    std::vector<WritableBytes> all;
    for (char& one : failed) all.push_back({&one, 1});
    const ReadableBytes own[] = {{&mine, 1}};
    const Result<void> gathered = peers_->all_gather(own, all, deadline.remaining());
    if (!gathered) {
      end(gathered.error().within("split"));
      return gathered.error().within("split");
    }
  }
  if (!part) return part.error();
  std::vector<int> others;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (failed[rank] != 0) others.push_back(rank);
  }
  if (!others.empty()) {
    return Error{.kind = ErrorKind::kSystem,
                 .doing = "split the NCCL communicator",
                 .cause = "it failed on " + name_ranks(others),
                 .peer_rank = others[0]};
  }
  return std::shared_ptr<NcclCommunicator>(std::move(*part));
}

}  // namespace ddprun
