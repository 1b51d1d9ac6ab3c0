// The NCCL part of NcclDouble: what a call on a communicator returns, which state it leaves,
// and when it is illegal. Sources: src/init.cc, src/group.cc, src/enqueue.cc.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/worker_lib/nccl/double_state.h"

namespace ddprun {
namespace {

bool is_failure(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

NcclResult planned(std::optional<int> failure) { return static_cast<NcclResult>(*failure); }

}  // namespace

NcclDouble::Group& NcclDouble::own_group() {
  thread_local Group the_group;
  return the_group;
}

NcclDouble::Comm& NcclDouble::at(NcclComm handle, const std::string& call) {
  if (!handle) {
    breach(call + " on no communicator");
    throw std::logic_error("a null communicator");
  }
  Comm& comm = *reinterpret_cast<Comm*>(handle);
  if (comm.is_gone) breach(call + " on a communicator that was aborted or destroyed");
  return comm;
}

NcclDouble::Comm& NcclDouble::add_comm(Clique& clique, int rank, int device) {
  comms_.push_back(std::make_unique<Comm>(
      Comm{.clique = &clique, .rank = rank, .device = device, .is_blocking = is_blocking_}));
  if (!clique.members.emplace(rank, comms_.back().get()).second) breach("a rank came twice");
  return *comms_.back();
}

// --- state

// ncclCommGetAsyncError: returns the communicator's own result, or if that is success, what
// its proxy has noticed. Only if both are success, the job of the last call is joined and
// forgotten.
NcclResult NcclDouble::read_state(Comm& comm) {
  pump();
  NcclResult state = comm.async_result;
  if (state == NcclResult::kSuccess) state = comm.noticed;
  if (state == NcclResult::kSuccess) comm.job = nullptr;
  if (state == NcclResult::kInProgress && comm.job && comm.job->rounds_left > 0) {
    --comm.job->rounds_left;
  }
  return state;
}

// ncclCommEnsureReady: refuses a call on a communicator that is in progress. If the
// communicator has an error, every later call returns that error.
NcclResult NcclDouble::ensure_ready(Comm& comm, const std::string& call) {
  const NcclResult state = read_state(comm);
  if (state != NcclResult::kInProgress) return state;
  breach(call + " on a communicator that is in progress");
  return NcclResult::kInvalidArgument;
}

// ncclGroupErrCheck: makes an error within a group the result of the group.
NcclResult NcclDouble::group_error(NcclResult result) {
  if (own_group().depth > 0 && is_failure(result)) own_group().error = result;
  return result;
}

// ncclGroupEndInternal, for a job: the communicators are in progress. If they do not block, a
// thread of NCCL's runs the job. If they block, the caller runs it.
NcclResult NcclDouble::run(Lock& lock, const std::string& call, std::shared_ptr<Job> job) {
  const auto planned_failure = planned_job_failures_.extract(call);
  if (planned_failure) job->result = planned_failure.mapped();
  Comm& first = *job->comms[0];
  jobs_.push_back(job);
  if (!first.is_blocking) {
    job->rounds_left = rounds_in_progress_;
    for (Comm* comm : job->comms) {
      comm->async_result = NcclResult::kInProgress;
      comm->job = job;
    }
    pump();
    return NcclResult::kInProgress;
  }
  for (Comm* comm : job->comms) ++comm->callers_inside;
  pump();
  changed_.wait(lock, [&] { return job->is_done; });
  for (Comm* comm : job->comms) --comm->callers_inside;
  return job->result;
}

// groupLaunch: puts the work on the streams at the end of the job, then sets the state of the
// communicators. If the job has failed, groupCleanup sets the state, and it stays.
void NcclDouble::end_job(Job& job) {
  job.is_done = true;
  if (job.finish) job.finish(job.result);
  if (!is_failure(job.result)) {
    for (auto& [stream, entry] : job.launches) put(*stream, std::move(entry));
  }
  for (Comm* comm : job.comms) {
    if (!comm->is_blocking) comm->async_result = job.result;
  }
  changed_.notify_all();
}

bool NcclDouble::run_jobs() {
  bool has_moved = false;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const std::shared_ptr<Job> job = jobs_[i];
    if (job->is_done || job->rounds_left > 0) continue;
    if (!is_failure(job->result) && !job->is_ready()) continue;
    end_job(*job);
    has_moved = true;
  }
  std::erase_if(jobs_, [](const auto& job) { return job->is_done; });
  return has_moved;
}

// --- collectives and groups

// ncclEnqueueCheck: refuses a revoked communicator before anything else. Every other failure
// of the call is a failure of the group, and stays on the communicator (label fail).
NcclResult NcclDouble::issue(const std::string& call, NcclComm handle,
                             const std::function<NcclResult(Comm&, Group&)>& add) {
  Lock lock(mutex_);
  Comm& comm = at(handle, call);
  const std::optional<int> failure = planned_failure(call);
  if (comm.is_revoked) {
    breach(call + " on a communicator that was revoked");
    return group_error(NcclResult::kInvalidUsage);
  }
  Group& group = own_group();
  ++group.depth;
  NcclResult result = failure ? planned(failure) : ensure_ready(comm, call);
  if (!is_failure(result)) result = add(comm, group);
  if (std::ranges::find(group.comms, &comm) == group.comms.end()) group.comms.push_back(&comm);
  group.calls.insert(call);
  if (is_failure(result) && !comm.is_blocking) comm.async_result = result;
  group_error(result);
  NcclResult ended = NcclResult::kSuccess;
  if (--group.depth == 0) ended = end_group(lock);
  if (is_failure(ended)) return ended;
  return comm.is_blocking ? result : read_state(comm);
}

// ncclGroupEndInternal, for collectives and messages. The first collective connects the ranks
// (ncclCollPreconnectFunc), so it is in progress until all ranks have called one.
NcclResult NcclDouble::end_group(Lock& lock) {
  Group group = std::exchange(own_group(), {});
  if (is_failure(group.error)) {
    for (Comm* comm : group.comms) {
      if (!comm->is_blocking) comm->async_result = group.error;
    }
    return group.error;
  }
  if (group.comms.empty()) return NcclResult::kSuccess;
  const auto are_connected = [comms = group.comms] {
    return std::ranges::all_of(comms, [](const Comm* comm) {
      if (comm->issued != 1) return true;
      return std::ranges::all_of(comm->clique->members,
                                 [](const auto& one) { return one.second->issued > 0; });
    });
  };
  const std::string call = group.calls.empty() ? "" : *group.calls.begin();
  return run(lock, call,
             std::make_shared<Job>(Job{.kind = Job::Kind::kLaunch,
                                       .comms = std::move(group.comms),
                                       .is_ready = are_connected,
                                       .launches = std::move(group.launches)}));
}

// --- forming

NcclDouble::Clique* NcclDouble::clique_of(std::span<const NcclUniqueId> ids) {
  std::vector<std::uint64_t> numbers;
  for (const NcclUniqueId& id : ids) {
    numbers.push_back(0);
    std::memcpy(&numbers.back(), id.bytes.data(), sizeof(std::uint64_t));
    if (!cliques_.contains(numbers.back()) || id.bytes.back() != 'i') {
      breach("an id that was not made");
      return nullptr;
    }
  }
  if (std::set(numbers.begin(), numbers.end()).size() != numbers.size()) {
    breach("an id is given twice");
  }
  Clique& clique = *cliques_[numbers[0]];
  if (!clique.ids.empty() && clique.ids != numbers) breach("ids differ");
  clique.ids = numbers;
  return &clique;
}

// ncclCommInitRankDev and ncclCommInitRankConfig: write the handle at once, before they wait
// for anything. If the call itself fails, the handle is NULL. If the job fails, the handle
// stays, with the failure as its state. They return the state.
NcclResult NcclDouble::init(const std::string& call, NcclComm* comm, int size, int rank,
                            std::span<const NcclUniqueId> ids) {
  Lock lock(mutex_);
  *comm = nullptr;
  if (const auto failure = planned_failure(call)) return planned(failure);
  if (capture_ && capture_->is_open) breach("an init in a capture");
  touch_context();  // cudaFree(NULL)
  Clique* const clique = clique_of(ids);
  if (!clique || size < 1 || rank < 0 || rank >= size) return NcclResult::kInvalidArgument;
  if (clique->size != 0 && clique->size != size) breach("sizes differ");
  clique->size = size;
  Comm& made = add_comm(*clique, rank, current_device());
  __atomic_store_n(comm, reinterpret_cast<NcclComm>(&made), __ATOMIC_RELEASE);
  const auto have_all_come = [clique] {
    return clique->members.size() == static_cast<std::size_t>(clique->size);
  };
  const auto finish = [&made](NcclResult result) { made.is_formed = !is_failure(result); };
  const NcclResult ended = run(lock, call,
                               std::make_shared<Job>(Job{.kind = Job::Kind::kInit,
                                                         .comms = {&made},
                                                         .is_ready = have_all_come,
                                                         .finish = finish}));
  return made.is_blocking ? ended : read_state(made);
}

// ncclCommInitChildComm: leaves nothing if the call itself fails. ncclCommSplit drops "in
// progress" from its result (macro NCCLCHECK): it returns success, and the parent is in
// progress. The part's handle is NULL until ncclCommInitRankFunc writes it. A rank without a
// color takes part.
NcclResult NcclDouble::split(NcclComm handle, int color, int key, NcclComm* part) {
  Lock lock(mutex_);
  Comm& parent = at(handle, "comm_split");
  if (const auto failure = planned_failure("comm_split")) return planned(failure);
  if (color < -1) breach("comm_split with a color that is none");
  // NCCL's user guide: outstanding calls on the parent may deadlock with the split.
  if (has_outstanding(parent)) breach("comm_split with calls outstanding");
  const NcclResult ready = ensure_ready(parent, "comm_split");
  if (is_failure(ready)) return ready;
  return divide(lock, "comm_split", parent, color, key,
                static_cast<std::size_t>(parent.clique->size), part);
}

NcclResult NcclDouble::divide(Lock& lock, const std::string& call, Comm& parent, int color, int key,
                              std::size_t expected, NcclComm* part) {
  __atomic_store_n(part, nullptr, __ATOMIC_RELEASE);
  Clique* const clique = parent.clique;
  const std::size_t number = parent.splits++;
  if (clique->splits.size() <= number) clique->splits.resize(number + 1);
  clique->splits[number].expected = expected;
  clique->splits[number].asked[parent.rank] = {color, key};
  const auto have_all_come = [clique, number, expected] {
    return clique->splits[number].asked.size() == expected;
  };
  const auto finish = [this, &parent, number, part](NcclResult result) {
    write_part(parent, number, part, result);
  };
  const NcclResult ended = run(lock, call,
                               std::make_shared<Job>(Job{.kind = Job::Kind::kSplit,
                                                         .comms = {&parent},
                                                         .is_ready = have_all_come,
                                                         .finish = finish,
                                                         .is_without_part = color < 0}));
  return parent.is_blocking ? ended : NcclResult::kSuccess;
}

// ncclCommInitRankFunc, labels exit and fail: writes the handle even if the split has failed.
// The state of such a part says success, so the caller must ask for the parent's state.
// Without a color there is no part. A failure then writes to a null pointer, and the process
// dies.
void NcclDouble::write_part(Comm& parent, std::size_t number, NcclComm* part, NcclResult result) {
  Clique::Split& split = parent.clique->splits[number];
  const auto [own_color, own_key] = split.asked.at(parent.rank);
  if (own_color < 0) {
    if (is_failure(result)) {
      breach("a split without a color fails, or is aborted: ncclCommInitRankFunc crashes");
    }
    return;
  }
  Comm* made = nullptr;
  if (is_failure(result)) {
    auto& clique = cliques_[++ids_] = std::make_unique<Clique>();
    clique->size = 1;
    made = &add_comm(*clique, 0, parent.device);
    made->failed_parent = &parent;
  } else {
    std::vector<std::pair<int, int>> ranks;  // key and rank, in the order of commGetSplitInfo
    for (const auto& [rank, asked] : split.asked) {
      if (asked.first == own_color) ranks.push_back({asked.second, rank});
    }
    std::ranges::sort(ranks);
    Clique*& clique = split.parts[own_color];
    if (!clique) {
      auto& owned = cliques_[++ids_] = std::make_unique<Clique>();
      clique = owned.get();
      clique->size = static_cast<int>(ranks.size());
    }
    const auto own = std::ranges::find(ranks, std::pair(own_key, parent.rank));
    made = &add_comm(*clique, static_cast<int>(own - ranks.begin()), parent.device);
    made->is_formed = true;
  }
  __atomic_store_n(part, reinterpret_cast<NcclComm>(made), __ATOMIC_RELEASE);
}

// ncclCommShrink: acts as a split among the ranks that are not excluded. NCCL_SHRINK_ABORT
// first ends the parent's work on the device.
NcclResult NcclDouble::shrink(NcclComm handle, std::span<const int> exclude, NcclComm* part,
                              bool with_abort) {
  Lock lock(mutex_);
  Comm& parent = at(handle, "comm_shrink");
  if (const auto failure = planned_failure("comm_shrink")) return planned(failure);
  if (with_abort && !parent.is_formed) {
    breach("comm_shrink with abort of a communicator that never formed: NCCL crashes");
    return NcclResult::kInternalError;
  }
  if (with_abort) stop_kernels(parent);
  parent.is_shrunk_with_abort |= with_abort;
  if (exclude.empty() || std::ranges::find(exclude, parent.rank) != exclude.end()) {
    breach("comm_shrink that excludes nobody, or its caller");
    return NcclResult::kInvalidArgument;
  }
  const NcclResult ready = ensure_ready(parent, "comm_shrink");
  if (is_failure(ready)) return ready;
  return divide(lock, "comm_shrink", parent, 0, parent.rank,
                static_cast<std::size_t>(parent.clique->size) - exclude.size(), part);
}

// ncclCommGrow, since 2.29: writes the handle of the grown communicator at once. That
// communicator is in progress, the parent is not. Returns success. Here every rank passes the
// id; with NCCL, the new ranks and one old rank pass it.
NcclResult NcclDouble::grow(NcclComm handle, int size, const NcclUniqueId* id, int rank,
                            NcclComm* grown) {
  Lock lock(mutex_);
  calls_.push_back("comm_grow");
  if (version_ == NcclVersion::k2_28_9) return NcclResult::kInvalidUsage;
  *grown = nullptr;
  if (handle) {
    Comm& parent = at(handle, "comm_grow");
    if (size <= parent.clique->size || rank != -1) {
      breach("comm_grow of an old rank: to no larger size, or with a rank");
      return NcclResult::kInvalidArgument;
    }
    const NcclResult ready = ensure_ready(parent, "comm_grow");
    if (is_failure(ready)) return ready;
    ++parent.splits;
    rank = parent.rank;
  } else if (!id || rank < 0 || rank >= size) {
    breach("comm_grow of a new rank: without an id, or with no rank of the new size");
    return NcclResult::kInvalidArgument;
  }
  Clique* const clique = clique_of({id, 1});
  if (!clique) return NcclResult::kInvalidArgument;
  clique->size = size;
  Comm& made = add_comm(*clique, rank, current_device());
  *grown = reinterpret_cast<NcclComm>(&made);
  const auto have_all_come = [clique, size] {
    return clique->members.size() == static_cast<std::size_t>(size);
  };
  const auto finish = [&made](NcclResult result) { made.is_formed = !is_failure(result); };
  run(lock, "comm_grow",
      std::make_shared<Job>(Job{.kind = Job::Kind::kInit,
                                .comms = {&made},
                                .is_ready = have_all_come,
                                .finish = finish}));
  return NcclResult::kSuccess;
}

// --- the end

// ncclCommRevoke: is refused after finalize, destroy and another revoke. It then joins and
// frees the job of the last call (ncclCommEnsureReady with the abort flag), but keeps the
// pointer. So the caller must have seen the last call succeed. commRevokeAsync reads resources
// that only a formed communicator has. Sets finalizeCalled: only destroy, abort and splits may
// follow.
NcclResult NcclDouble::revoke(NcclComm handle) {
  Lock lock(mutex_);
  Comm& comm = at(handle, "comm_revoke");
  if (const auto failure = planned_failure("comm_revoke")) return planned(failure);
  if (comm.is_finalized || comm.is_revoked) {
    breach("comm_revoke of a communicator that was finalized or revoked");
    return NcclResult::kInvalidArgument;
  }
  if (!comm.is_formed || comm.job) {
    breach(comm.is_formed
               ? "comm_revoke of a communicator whose last call was not seen to succeed: NCCL "
                 "frees its job twice"
               : "comm_revoke of a communicator that never formed: NCCL crashes");
    return NcclResult::kInternalError;
  }
  comm.is_revoked = true;
  comm.is_finalized = true;
  stop_kernels(comm);
  const NcclResult ended =
      run(lock, "comm_revoke",
          std::make_shared<Job>(
              Job{.kind = Job::Kind::kRevoke, .comms = {&comm}, .is_ready = [] { return true; }}));
  return comm.is_blocking ? ended : read_state(comm);
}

// ncclCommFinalize and commDestroySync: are in progress until the communicator's work on the
// device is done and no graph that captured it exists. They do not wait for the peers. If the
// call is refused, the reason stays as the communicator's state.
NcclResult NcclDouble::finalize(NcclComm handle) {
  Lock lock(mutex_);
  Comm& comm = at(handle, "comm_finalize");
  if (const auto failure = planned_failure("comm_finalize")) return planned(failure);
  if (comm.is_shrunk_with_abort && version_ == NcclVersion::k2_31_2) {
    breach("comm_finalize of a communicator that was shrunk with abort");
  }
  NcclResult result = ensure_ready(comm, "comm_finalize");
  if (!is_failure(result) && comm.is_finalized) {
    breach("comm_finalize of a communicator that was finalized or revoked");
    result = NcclResult::kInvalidArgument;
  }
  if (is_failure(result)) {
    if (!comm.is_blocking) comm.async_result = result;
    return result;
  }
  comm.is_finalized = true;
  const auto is_quiet = [this, &comm] { return !has_outstanding(comm) && !is_in_graph(comm); };
  const NcclResult ended =
      run(lock, "comm_finalize",
          std::make_shared<Job>(
              Job{.kind = Job::Kind::kFinalize, .comms = {&comm}, .is_ready = is_quiet}));
  return comm.is_blocking ? ended : read_state(comm);
}

// ncclCommDestroy: always blocks (ncclAsyncLaunch: destroyFlag). If the communicator has
// failed or is in progress, it returns the error and leaves this thread's group open. Only
// abort ends that.
NcclResult NcclDouble::destroy(NcclComm handle) {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !abort_hangs_; });
  Comm& comm = at(handle, "comm_destroy");
  if (const auto failure = planned_failure("comm_destroy")) return planned(failure);
  const NcclResult ready = ensure_ready(comm, "comm_destroy");
  if (is_failure(ready)) {
    breach("comm_destroy of a communicator that has failed, instead of comm_abort");
    return ready;
  }
  if (comm.is_shrunk_with_abort && version_ == NcclVersion::k2_31_2) {
    breach("comm_destroy of a communicator that was shrunk with abort, instead of comm_abort");
  }
  if (!comm.is_finalized && (has_outstanding(comm) || is_in_graph(comm))) {
    breach("comm_destroy, without comm_finalize, waits for what is on the device");
  }
  comm.is_gone = true;
  comm.registered.clear();
  return NcclResult::kSuccess;
}

// ncclCommAbort: is legal in every state, once. It sets the abort flags, which ends kernels
// and lets the job of the last call fail. It joins that job, and frees the communicator. It
// writes to the flags of a part whose split failed (childAbortFlag), so such a part must be
// aborted after its parent. If the communicator was not revoked and its finalize is not done,
// abort waits for the graphs that captured it (commDestroySync).
NcclResult NcclDouble::abort(NcclComm handle) {
  Lock lock(mutex_);
  calls_.push_back("comm_abort");
  Comm& comm = at(handle, "comm_abort");
  if (comm.failed_parent && !comm.failed_parent->is_gone) {
    breach("comm_abort of a part of a failed split before that of its parent");
  }
  stop_kernels(comm);
  for (const std::shared_ptr<Job>& job : std::vector(jobs_)) {
    if (job->is_done || std::ranges::find(job->comms, &comm) == job->comms.end()) continue;
    if (job->kind == Job::Kind::kFinalize && is_in_graph(comm)) continue;
    job->result = NcclResult::kInternalError;
    job->launches.clear();
    end_job(*job);
  }
  if (!comm.is_revoked && comm.is_formed) {
    changed_.wait(lock, [&] { return !is_in_graph(comm); });
  }
  comm.is_gone = true;
  comm.was_aborted = true;
  comm.registered.clear();
  comm.job = nullptr;
  changed_.notify_all();
  pump();
  changed_.wait(lock, [this] { return !abort_hangs_; });
  calls_.push_back("comm_abort returned");
  return NcclResult::kSuccess;
}

void NcclDouble::report_left_communicators() {
  for (const auto& comm : comms_) {
    // A communicator that a graph uses may be left to the graph.
    if (!comm->is_gone && !is_in_graph(*comm)) {
      breach("a communicator was neither destroyed nor aborted");
    }
    if (comm->premul_sums.size() > 1) breach("operations are not destroyed");
  }
  for (const auto& [id, clique] : cliques_) {
    const bool is_aborted = std::ranges::any_of(
        clique->members, [](const auto& one) { return one.second->was_aborted; });
    for (const Clique::Split& split : clique->splits) {
      if (split.asked.size() < split.expected && !is_aborted) {
        breach("a split was not called by all ranks");
      }
    }
  }
}

NcclResult NcclDouble::comm_shrink(NcclComm comm, std::span<const int> exclude, NcclComm* part,
                                   bool with_abort) {
  return self().shrink(comm, exclude, part, with_abort);
}

NcclResult NcclDouble::comm_grow(NcclComm comm, int size, const NcclUniqueId* id, int rank,
                                 NcclComm* grown) {
  return self().grow(comm, size, id, rank, grown);
}

}  // namespace ddprun
