#include "worker_lib/cpu_group/shared_group.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/cache_line.h"
#include "base/concat.h"
#include "base/poll_until.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_calls/cma_collective.h"
#include "worker_lib/cpu_calls/copy_collectives.h"
#include "worker_lib/cpu_calls/core/pull_trial.h"
#include "worker_lib/cpu_calls/inline_collectives.h"
#include "worker_lib/cpu_calls/reduce_collectives.h"
#include "worker_lib/cpu_group/mailbox.h"
#include "worker_lib/cpu_group/requirements.h"
#include "worker_lib/cpu_peers/forked_sockets.h"
#include "worker_lib/cpu_shm/core/pair_sizes.h"
#include "worker_lib/cpu_shm/shared_heap.h"

namespace ddprun {
namespace {

template <class Bytes>
CallHeader header_of(std::span<const Bytes> tensors) {
  return ddprun::header_of(tensors, [](const Bytes& one) { return one.size(); });
}

CallHeader in_terms(const CpuCallOptions& terms, CallHeader header) {
  header.set_moved_type(terms.type, terms.types);
  return header;
}

// Splits a list into one list per rank, in rank order, each with the same number of tensors.
template <class Byte>
std::vector<Scattered<Byte>> one_for_each_rank(std::span<const std::span<Byte>> list, int ranks) {
  std::vector<Scattered<Byte>> by_rank;
  const std::size_t each = ranks == 0 ? 0 : list.size() / ranks;
  by_rank.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) by_rank.emplace_back(list.subspan(rank * each, each));
  return by_rank;
}

// Returns whether the collective works on the tensors in the heap, in place.
bool is_in_heap(const CallHeader& header) {
  return header.shortcut != 0 && header.kind == CallKind::kAllReduce;
}

// A flag of CallHeader::shortcut: the bytes are pulled.
constexpr std::uint64_t kPulled = std::uint64_t{1} << 63;

// Returns the size of every part of both lists, if all have the same size.
std::optional<std::size_t> size_of_each(ReadableList inputs, WritableList outputs) {
  const std::size_t first = inputs[0].size();
  const auto is_like_first = [first](const auto& part) { return part.size() == first; };
  if (!std::ranges::all_of(inputs, is_like_first)) return std::nullopt;
  if (!std::ranges::all_of(outputs, is_like_first)) return std::nullopt;
  return first;
}

WritableBytes bytes_of(std::vector<std::uint64_t>& numbers) {
  return {reinterpret_cast<char*>(numbers.data()), numbers.size() * sizeof(std::uint64_t)};
}

// After a failed call, a rank waits this long for other ranks that still write to its tensor.
constexpr Duration kWorkPatience = std::chrono::milliseconds(200);
constexpr Duration kWorkInterval = std::chrono::microseconds(100);

// Collective: one collective. It has a number from begin() on. It consists of one or more
// phases, each of which is carried out in chunks. All ranks make the same phases.
struct Collective {
  Collective(const CallHeader& call, Duration timeout)
      : header(call),
        attempt{.doing = [this] { return describe(header); }, .deadline = Deadline(timeout)} {}
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  CallHeader header;
  OperationContext attempt;
};

enum class PhaseEnd {
  kDone,
  kMixed,  // nothing was done: the ranks' shortcuts differ
};

Result<void> done(const Result<PhaseEnd>& end) {
  if (!end) return end.error();
  return {};
}

// PhaseRunner: makes the phases of collectives. It has the numbers that count them.
class PhaseRunner {
 public:
  PhaseRunner(GroupCore& core, const SharedHeap& heap)
      : core_(core), here_(core.here()), progress_(core.progress()), heap_(heap) {}

  // Returns where the tensors of a collective in the heap will be found, by local index.
  std::span<char* const> make_room_for_tensors() {
    tensors_.resize(here_.local_count());
    return tensors_;
  }

  Result<void> run(const CallHeader& header, ChunkedCall& call, Duration timeout) {
    Collective collective(header, timeout);
    if (const Result<void> begun = begin(collective); !begun) return begun;
    const Result<PhaseEnd> end = run_phase(collective, call);
    if (!end || *end == PhaseEnd::kDone) return done(end);
    return done(run_phase(collective, call));  // other ranks had a shortcut
  }

  Result<void> begin(Collective& collective) {
    collective.header.sequence = sequence_ + 1;
    if (const Result<void> may = core_.may_begin(collective.attempt); !may) return may.error();
    ++sequence_;
    return {};
  }

  Result<PhaseEnd> run_phase(Collective& collective, ChunkedCall& call, std::size_t place = 0) {
    collective.attempt.round = ++round_;
    progress_.enter(collective.header, round_, place);
    try {
      Result<PhaseEnd> end = take_steps(collective.header, call, collective.attempt);
      ++collective.header.phase;
      return end;
    } catch (const std::exception& thrown) {
      // Out of memory: the others need not wait for this rank.
      core_.raise(ErrorKind::kResource, here_.rank,
                  name_rank(here_.rank) + " cannot go on with " + describe(collective.header) +
                      ": " + thrown.what());
      throw;
    }
  }

  // Runs a phase that is carried out if all ranks have the same shortcut.
  Result<PhaseEnd> take_shortcut(Collective& collective, std::uint64_t shortcut, ChunkedCall& call,
                                 std::size_t place = 0) {
    collective.header.shortcut = shortcut;
    Result<PhaseEnd> end = run_phase(collective, call, place);
    collective.header.shortcut = 0;
    return end;
  }

 private:
  Result<PhaseEnd> take_steps(const CallHeader& header, ChunkedCall& call,
                              const OperationContext& attempt) {
    using Action = ChunkPipeline::Action;
    ChunkPipeline pipeline(next_arrival_, call.chunks(), call.work_mode());
    bool arrived = false;
    while (const std::optional<ChunkPipeline::Step> step = pipeline.next()) {
      const bool idle = step->action == Action::kWork && !here_.leads();
      if (step->wait != 0 && !idle) {
        const WaitEnd end = progress_.wait_for_all(step->wait, attempt.deadline.when());
        if (end != WaitEnd::kReady) return core_.fail(attempt, end);
      }
      const ChunkedCall::Chunk chunk{step->chunk, next_chunk_ + step->chunk,
                                     step->chunk == 0 && here_.one_rank_each()};
      switch (step->action) {
        case Action::kStage: call.stage(chunk); break;
        case Action::kCopyOut: call.copy_out(chunk); break;
        case Action::kWork: {
          if (idle) break;
          const bool in_tensors_of_others = is_in_heap(header) && here_.one_node();
          const TcpMesh::End end =
              in_tensors_of_others ? work_in_tensors_of_others(call, chunk, attempt.deadline.when())
                                   : call.work(chunk, attempt.deadline.when());
          if (end.how != WaitEnd::kReady) return core_.fail(attempt, end.how, end.node);
          break;
        }
      }
      if (step->publish != 0) progress_.publish(step->publish);
      if (!arrived) {
        const Result<bool> alike = arrive(header, call, pipeline, attempt);
        if (!alike) return alike.error();
        if (!*alike) return turn_back();
        if (is_in_heap(header)) find_tensors();
        arrived = true;
      }
    }
    next_arrival_ = pipeline.next_arrival();
    next_chunk_ += call.chunks();
    return PhaseEnd::kDone;
  }

  TcpMesh::End work_in_tensors_of_others(ChunkedCall& call, const ChunkedCall::Chunk& chunk,
                                         TimePoint deadline) {
    if (!progress_.begin_work()) return {WaitEnd::kFailed, -1};
    struct AtWork {
      SharedProgress& progress;
      ~AtWork() { progress.end_work(); }
    };
    const AtWork until_it_is_done{progress_};
    return call.work(chunk, deadline);
  }

  // Ends a phase that was not carried out. Every rank continues from the same tick, whatever its
  // own call was.
  PhaseEnd turn_back() {
    next_arrival_ = ChunkPipeline(next_arrival_, 1, ChunkPipeline::Work::kSome).next_arrival();
    next_chunk_ += 1;
    return PhaseEnd::kMixed;
  }

  void find_tensors() {
    for (int local = 0; local < here_.local_count(); ++local) {
      tensors_[local] = heap_.at(local, progress_.place_of(local, round_));
    }
  }

  // Waits until every rank of the world is in the phase, and compares their calls. Returns whether
  // they have the same shortcut; in all else they must agree.
  Result<bool> arrive(const CallHeader& header, ChunkedCall& call, const ChunkPipeline& pipeline,
                      const OperationContext& attempt) {
    const WaitEnd end = progress_.wait_for_all(next_arrival_, attempt.deadline.when());
    if (end != WaitEnd::kReady) return core_.fail(attempt, end);
    if (!here_.one_node()) return agree_over_nodes(header, call, pipeline, attempt);
    return compare(
        header, [&](int rank) { return progress_.call_of(rank, round_); }, attempt);
  }

  // Compares the calls of all ranks. call_of(rank): the call of a rank.
  template <class CallOf>
  Result<bool> compare(const CallHeader& header, CallOf call_of, const OperationContext& attempt) {
    bool same = true, alike = true;
    for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
      const CallHeader& other = call_of(rank);
      same = same && other == header;
      alike = alike && other.shortcut == header.shortcut;
    }
    if (same) return alike;
    std::vector<CallHeader> by_rank;
    for (int rank = 0; rank < here_.layout.world_size(); ++rank) by_rank.push_back(call_of(rank));
    const Error error = check_agreement(header, by_rank).error();
    return core_.fail(attempt, error.kind, -1, error.cause + core_.origins_of_calls());
  }

  // Compares the calls of all nodes' ranks. The first rank of each node exchanges the arrivals of
  // its ranks with the other nodes, and writes them to a table for its neighbours. It may
  // overwrite the table: every rank has arrived, so every rank has finished the previous
  // collective.
  Result<bool> agree_over_nodes(const CallHeader& header, ChunkedCall& call,
                                const ChunkPipeline& pipeline, const OperationContext& attempt) {
    if (here_.local == 0) {
      const TcpMesh::End end = exchange_arrivals(call, attempt.deadline.when());
      if (end.how != WaitEnd::kReady) return core_.fail(attempt, end.how, end.node);
    }
    progress_.publish(pipeline.header_tick());
    const WaitEnd end = progress_.wait_for(0, pipeline.header_tick(), attempt.deadline.when());
    if (end != WaitEnd::kReady) return core_.fail(attempt, end);
    return compare(
        header, [&](int rank) { return here_.arrival_of(rank).call; }, attempt);
  }

  TcpMesh::End exchange_arrivals(ChunkedCall& call, TimePoint deadline) {
    Arrival* const own = here_.arrivals_of(here_.node);
    for (int local = 0; local < here_.local_count(); ++local) {
      own[local] = {.call = progress_.call_of(local, round_)};
      if (call.is_inline()) {
        std::memcpy(own[local].bytes, here_.stage(local, next_chunk_), sizeof own[local].bytes);
      }
    }
    Sendings sendings;
    Receivings receivings;
    const auto bytes_of_node = [&](int node) {
      return static_cast<std::size_t>(here_.layout.local_count(node)) * sizeof(Arrival);
    };
    for (int node = 0; node < here_.layout.node_count(); ++node) {
      if (node == here_.node) continue;
      sendings.push_back({node, own, bytes_of_node(here_.node)});
      receivings.push_back({node, here_.arrivals_of(node), bytes_of_node(node)});
    }
    Sendings ahead;
    if (here_.one_rank_each()) ahead = call.sends_first({.number = next_chunk_});
    return here_.mesh->exchange(sendings, receivings, deadline, ahead);
  }

  GroupCore& core_;
  const GroupTopology& here_;
  SharedProgress& progress_;
  const SharedHeap& heap_;
  std::vector<char*> tensors_;      // of the collective in the heap, by local index
  std::uint64_t sequence_ = 0;      // of the last collective
  std::uint64_t round_ = 0;         // of the last phase
  std::uint64_t next_arrival_ = 1;  // a tick
  std::size_t next_chunk_ = 0;      // a number, see ChunkedCall::Chunk
};

// SharedGroup: checks arguments, makes a ChunkedCall for each collective, or for each of its
// phases, and has a PhaseRunner drive it through its steps.
class SharedGroup final : public CpuGroup {
 public:
  explicit SharedGroup(std::unique_ptr<GroupCore> core)
      : core_(std::move(core)),
        here_(core_->here()),
        mailbox_(*core_),
        heap_(
            std::make_shared<SharedHeap>(core_->parts().segment, here_.local_count(), here_.local)),
        phases_(*core_, *heap_) {}

  int rank() const override { return here_.rank; }
  int size() const override { return here_.layout.world_size(); }

  void leave_to_parent() const override {
    if (core_->parts().listener) close_sockets_at(core_->parts().addresses);
  }

  Result<void> all_reduce(WritableList tensors, ElementType type, ReduceOp op,
                          const CpuCallOptions& terms) override {
    ReduceJob job{.kind = CallKind::kAllReduce, .type = type, .op = op};
    job.data = Scattered<char>(tensors);
    return run_reduce(header_of(tensors), job, terms);
  }

  Result<void> reduce(WritableList tensors, ElementType type, ReduceOp op, Rank root,
                      const CpuCallOptions& terms) override {
    require_root(root, size());
    ReduceJob job{.kind = CallKind::kReduce, .type = type, .op = op, .root = root.value};
    job.data = Scattered<char>(tensors);
    return run_reduce(header_of(tensors), job, terms);
  }

  Result<void> reduce_scatter(ReadableList inputs, WritableList outputs, ElementType type,
                              ReduceOp op, const CpuCallOptions& terms) override {
    require_count(inputs.size(), outputs.size() * size());
    const std::vector<Scattered<const char>> by_rank = one_for_each_rank(inputs, size());
    ReduceJob job{.kind = CallKind::kReduceScatter, .type = type, .op = op};
    job.inputs = by_rank;
    job.output = Scattered<char>(outputs);
    return run_reduce(header_of(outputs), job, terms);
  }

  Result<void> broadcast(WritableList tensors, Rank root, const CpuCallOptions& terms) override {
    require_root(root, size());
    CallHeader header = in_terms(terms, header_of(tensors));
    header.kind = CallKind::kBroadcast;
    header.root = root.value;
    const Scattered<char> data(tensors);
    if (InlineCollective::suits(here_, data.bytes())) {
      return run<InlineBroadcast>(header, terms, data, root.value);
    }
    return run<BroadcastCall>(header, terms, data, root.value);
  }

  Result<void> all_gather(ReadableList inputs, WritableList outputs,
                          const CpuCallOptions& terms) override {
    require_count(outputs.size(), inputs.size() * size());
    CallHeader header = in_terms(terms, header_of(inputs));
    header.kind = CallKind::kAllGather;
    const Scattered<const char> input(inputs);
    const std::vector<Scattered<char>> by_rank = one_for_each_rank(outputs, size());
    if (InlineCollective::suits(here_, input.bytes())) {
      return run<InlineGather>(header, terms, input, by_rank);
    }
    GatherCall staged(here_, input, by_rank, -1);
    const std::size_t in_all = input.bytes() * (1 + size());
    const Way way = choose_way(gather_trials_, input.bytes(), inputs.size(), in_all);
    Collective collective(header, terms.timeout);
    if (const Result<void> begun = phases_.begin(collective); !begun) return begun;
    const TimePoint start = way.trial ? BootClock::now() : TimePoint();
    Result<PhaseEnd> end = PhaseEnd::kMixed;
    if (way.pulls) {
      PullJob job;
      job.offered.assign(inputs.begin(), inputs.end());
      for (const Scattered<char>& to : by_rank) job.takes.push_back({{0, inputs.size()}, to});
      end = pull(collective, kPulled, way, std::move(job));
      if (end && *end == PhaseEnd::kMixed) pulls_ = false;  // not all ranks can
    } else {
      end = phases_.run_phase(collective, staged);
    }
    if (end && *end == PhaseEnd::kMixed) return done(phases_.run_phase(collective, staged));
    if (end && way.trial) way.trial->took(BootClock::now() - start);
    return done(end);
  }

  Result<void> gather(ReadableBytes input, WritableList outputs, Rank root,
                      const CpuCallOptions& terms) override {
    require_root(root, size());
    const int wanted = root.value == rank() ? size() : 0;
    require_count(outputs.size(), wanted);
    const std::vector<Scattered<char>> by_rank = one_for_each_rank(outputs, wanted);
    const CallHeader header =
        in_terms(terms, {.count = input.size(), .root = root.value, .kind = CallKind::kGather});
    const Scattered<const char> given(input);
    if (InlineCollective::suits(here_, input.size())) {
      return run<InlineGather>(header, terms, given, by_rank);
    }
    return run<GatherCall>(header, terms, given, by_rank, root.value);
  }

  Result<void> scatter(ReadableList inputs, WritableBytes output, Rank root,
                       const CpuCallOptions& terms) override {
    require_root(root, size());
    const int wanted = root.value == rank() ? size() : 0;
    require_count(inputs.size(), wanted);
    return run<ScatterCall>(
        in_terms(terms, {.count = output.size(), .root = root.value, .kind = CallKind::kScatter}),
        terms, inputs, output, root.value);
  }

  Result<void> all_to_all(ReadableList inputs, WritableList outputs,
                          const CpuCallOptions& terms) override {
    require_count(inputs.size(), size());
    require_count(outputs.size(), size());
    std::size_t bytes = 0;
    for (const ReadableBytes& input : inputs) bytes += input.size();
    Collective collective(in_terms(terms, {.kind = CallKind::kAllToAll}), terms.timeout);
    // The header has no size: the sizes are known only to each rank.
    collective.attempt.doing = [&] {
      return concat(describe(collective.header), " of ", bytes, " B");
    };
    if (const Result<void> begun = phases_.begin(collective); !begun) return begun;
    // In most calls all pairs of all ranks have one size.
    const std::optional<std::size_t> each = size_of_each(inputs, outputs);
    Result<PhaseEnd> end = PhaseEnd::kDone;
    Way way;
    if (each) {
      way = choose_way(exchange_trials_, *each, inputs.size(), 2 * bytes);
      const TimePoint start = way.trial ? BootClock::now() : TimePoint();
      if (way.pulls) {
        PullJob job;
        job.offered.assign(inputs.begin(), inputs.end());
        const std::size_t mine = rank();
        for (const WritableBytes& output : outputs) {
          job.takes.push_back({{mine, mine + 1}, Scattered<char>(output)});
        }
        end = pull(collective, (*each + 1) | kPulled, way, std::move(job));
      } else {
        const PairSizes even = PairSizes::even(*each);
        AllToAllCall call(here_, even, inputs, outputs);
        end = phases_.take_shortcut(collective, *each + 1, call);
      }
      if (end && *end == PhaseEnd::kDone && way.trial) way.trial->took(BootClock::now() - start);
      if (!end || *end == PhaseEnd::kDone) return done(end);
    } else {
      BarrierCall call(here_);
      end = phases_.take_shortcut(collective, 0, call);
      if (!end) return end.error();
    }
    const Result<PairSizes> sizes = agree_on_sizes(collective, inputs, outputs);
    if (!sizes) return sizes.error();
    if (way.pulls && sizes->is_even()) pulls_ = false;  // not all ranks can
    AllToAllCall call(here_, *sizes, inputs, outputs);
    return done(phases_.run_phase(collective, call));
  }

  Result<void> barrier(Duration timeout) override {
    return run<BarrierCall>({.kind = CallKind::kBarrier}, timeout);
  }

  Result<Rank> carry_out(const MessageRequest& request) override {
    return mailbox_.carry_out(request);
  }
  void start(const MessageRequest& request, TransferDone done) override {
    mailbox_.start(request, std::move(done));
  }
  bool await_messages(Duration patience) override { return mailbox_.await_idle(patience); }
  std::shared_ptr<char> shared_memory(std::size_t bytes) override { return heap_->allocate(bytes); }

  void write_note(std::string_view note) override { core_->progress().write_note(note); }
  std::vector<std::string> notes(Duration patience) override {
    return core_->watch().query_notes(patience);
  }
  std::vector<int> ranks_ahead(Duration patience) override { return core_->ranks_ahead(patience); }
  std::optional<Error> failure() const override { return core_->failure(); }
  void fail(ErrorKind kind, int peer_rank, const std::string& cause) override {
    core_->raise(kind, peer_rank, cause);
  }
  void abort(const std::string& reason) override { core_->raise(ErrorKind::kStopped, -1, reason); }

 private:
  // Way: how a call moves its bytes from rank to rank.
  struct Way {
    PullTrial* trial = nullptr;  // the trial that the call is part of; null: none
    bool pulls = false;
  };

  // Makes a collective that has no shortcut.
  template <class Call, class... Inputs>
  Result<void> run(const CallHeader& header, const CpuCallOptions& terms, const Inputs&... inputs) {
    Call call(here_, inputs...);
    return phases_.run(header, call, terms.timeout);
  }

  Result<void> run_reduce(CallHeader header, const ReduceJob& job, const CpuCallOptions& terms) {
    require_operation(job.type, job.op);
    header.count = job.count();
    header.root = job.root;
    header.kind = job.kind;
    header.type = job.type;
    header.op = terms.asked.value_or(job.op);
    Collective collective(header, terms.timeout);
    if (const Result<void> begun = phases_.begin(collective); !begun) return begun;

    const std::optional<std::size_t> place = place_in_heap(job);
    const Result<PhaseEnd> end =
        place ? reduce_in_heap(collective, job, *place) : reduce_staged(collective, job);
    if (!end || *end == PhaseEnd::kDone) return done(end);
    return done(reduce_staged(collective, job));  // not all ranks' tensors are in the heap
  }

  Result<PhaseEnd> reduce_staged(Collective& collective, const ReduceJob& job) {
    if (job.kind != CallKind::kReduceScatter && InlineCollective::suits(here_, job.data.bytes())) {
      InlineReduce call(here_, job);
      return phases_.run_phase(collective, call);
    }
    if (DirectReduce::suits(here_, job)) {
      DirectReduce call(here_, job);
      return phases_.run_phase(collective, call);
    }
    SharedReduce call(here_, job, scratch_);
    return phases_.run_phase(collective, call);
  }

  // A rank whose call has failed owns its tensor again and may change it. Slower ranks may still
  // read it then, and see all that they have waited for. So the result counts only while the group
  // is intact. On one node that is checked at the end. With several nodes it is checked before
  // reduced bytes leave the node (TcpMesh::exchange).
  Result<PhaseEnd> reduce_in_heap(Collective& collective, const ReduceJob& job, std::size_t place) {
    SharedReduce call(here_, job, scratch_, phases_.make_room_for_tensors());
    Result<PhaseEnd> end = PhaseEnd::kMixed;
    try {
      end = only_if_whole(collective, phases_.take_shortcut(collective, 1, call, place));
    } catch (...) {
      take_tensor_back(place, job.data.bytes());
      throw;
    }
    if (!end) take_tensor_back(place, job.data.bytes());
    return end;
  }

  // A rank that has failed owns its memory again, from which other ranks may still read. The bytes
  // that they have read count only if the group is still intact afterwards.
  Result<PhaseEnd> only_if_whole(Collective& collective, Result<PhaseEnd> end) {
    if (end && *end == PhaseEnd::kDone && core_->progress().failed_by_now()) {
      return core_->fail(collective.attempt, WaitEnd::kFailed);
    }
    return end;
  }

  // Makes sure that no other rank writes to this rank's tensor, before the tensor's owner gets it
  // back. Other ranks may still be writing their shares to it; mostly they see the failure within
  // a moment. A stopped rank may continue at any time, so this rank's mapping is then separated
  // from that rank's. If the kernel refuses that, the late rank is killed: the group cannot be
  // used any more.
  //
  // REQUIRES: the group has failed.
  void take_tensor_back(std::size_t place, std::size_t bytes) {
    if (!here_.one_node()) return;  // with several nodes the others only read it
    const Deadline patience(kWorkPatience);
    bool is_refused = false;
    for (;;) {
      const std::vector<int> late = core_->ranks_at_work();
      if (late.empty()) return;
      if (patience.passed() && !is_refused) {
        if (heap_->make_private(place, bytes)) return;
        is_refused = true;
        for (const int local : late) core_->watch().kill(local);
      }
      poll_until({}, BootClock::now() + kWorkInterval);
    }
  }

  // Returns whether the leaders of each node reduce a piece of every chunk for other nodes. In rank
  // order, results depend on it. A node knows that its own rank has failed, and does not send what
  // was read from that rank's tensor.
  bool every_node_reduces(std::size_t bytes) const {
    if (here_.one_node() || !here_.in_rank_order) return true;
    const std::size_t shortest = std::min(bytes, here_.segment.stage_bytes / 2);
    return shortest / kCacheLineBytes >=
           static_cast<std::size_t>(here_.layout.lanes * here_.layout.node_count());
  }

  // Returns the place of an all_reduce's tensor if it lies in the heap and is large enough to risk
  // a second phase. Returns nullopt if nodes have one rank each, because no other rank reads it
  // there.
  std::optional<std::size_t> place_in_heap(const ReduceJob& job) const {
    if (job.kind != CallKind::kAllReduce || job.data.bytes() < here_.tuning.in_place_bytes ||
        here_.one_rank_each() || !every_node_reduces(job.data.bytes())) {
      return std::nullopt;
    }
    const std::span<char> piece = job.data.whole();
    return heap_->place_of(piece.data(), piece.size());
  }

  // Returns the way of a call that moves `bytes` bytes from one rank to another. in_all: the bytes
  // that a rank gives and gets.
  Way choose_way(PullTrials& trials, std::size_t bytes, std::size_t pieces,
                 std::size_t in_all) const {
    const bool may_pull = pulls_ && here_.one_node() && bytes >= here_.tuning.pull_bytes &&
                          !here_.streams(in_all) && core_->parts().memory.can_be_read() &&
                          CmaCollective::has_room(here_, pieces);
    if (!may_pull) return {};
    if (!here_.tuning.tries_pulling) return {.pulls = true};
    PullTrial& trial = trials.of(bytes);
    return {.trial = trial.is_over() ? nullptr : &trial, .pulls = trial.pulls()};
  }

  // Returns kMixed on all ranks if a rank cannot read the memory of all others: it may be allowed
  // less than the others, or less than when the group was formed.
  Result<PhaseEnd> pull(Collective& collective, std::uint64_t shortcut, const Way& way,
                        PullJob job) {
    const bool settles = way.trial && way.trial->is_last();
    if (settles) job.found_quicker = way.trial->is_quicker();
    CmaCollective call(here_, core_->parts().memory, job);
    const Result<PhaseEnd> end =
        only_if_whole(collective, phases_.take_shortcut(collective, shortcut, call));
    if (!end || *end == PhaseEnd::kMixed) return end;
    if (!call.was_possible()) {
      pulls_ = false;
      return PhaseEnd::kMixed;
    }
    if (settles) way.trial->settle(call.all_found_quicker());
    return end;
  }

  // Exchanges the size tables of all ranks.
  Result<PairSizes> agree_on_sizes(Collective& collective, ReadableList inputs,
                                   WritableList outputs) {
    std::vector<std::uint64_t> table;
    for (const ReadableBytes& input : inputs) table.push_back(input.size());
    for (const WritableBytes& output : outputs) table.push_back(output.size());
    const std::size_t ranks = size();
    std::vector<std::uint64_t> tables(ranks * table.size());
    if (const Result<void> gathered = gather_all(collective, bytes_of(table), bytes_of(tables));
        !gathered) {
      return gathered.error();
    }
    PairSizes sizes = PairSizes::from_tables(tables, ranks);
    if (const std::optional<PairSizes::Clash>& clash = sizes.clash()) {
      return core_->fail(collective.attempt, ErrorKind::kInvalidArgument, -1,
                         concat(name_rank(clash->from), " sends ", clash->sent, " B to ",
                                name_rank(clash->to), ", which expects ", clash->expected, " B"));
    }
    return sizes;
  }

  // Gathers `input` of every rank, by rank. `outputs` has room for size() times `input`.
  Result<void> gather_all(Collective& collective, ReadableBytes input, std::span<char> outputs) {
    std::vector<Scattered<char>> by_rank;
    for (int rank = 0; rank < size(); ++rank) {
      by_rank.emplace_back(outputs.subspan(rank * input.size(), input.size()));
    }
    GatherCall call(here_, Scattered<const char>(input), by_rank, -1);
    return done(phases_.run_phase(collective, call));
  }

  std::unique_ptr<GroupCore> core_;
  const GroupTopology& here_;
  Mailbox mailbox_;
  std::shared_ptr<SharedHeap> heap_;
  ReduceScratch scratch_;
  PhaseRunner phases_;
  bool pulls_ = true;  // cleared when it turns out that not all ranks can pull
  PullTrials gather_trials_;
  PullTrials exchange_trials_;  // for all_to_all
};

}  // namespace

SegmentNeeds shared_segment_needs(int local_count, int world_size) {
  return {.progress_bytes = SharedProgress::bytes_for(local_count, world_size),
          .arrival_bytes = sizeof(Arrival),
          .ring_header_bytes = ring_header_bytes()};
}

std::unique_ptr<CpuGroup> make_shared_group(std::unique_ptr<GroupCore> core) {
  return std::make_unique<SharedGroup>(std::move(core));
}

}  // namespace ddprun
