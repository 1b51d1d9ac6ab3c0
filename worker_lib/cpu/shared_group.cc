#include "worker_lib/cpu/shared_group.h"

#include <algorithm>

#include "worker_lib/cpu/move_calls.h"
#include "worker_lib/cpu/requirements.h"

namespace ddprun {

SegmentNeeds SharedGroup::segment_needs(int local_count) {
  return {.board_bytes = NodeBoard::bytes_for(local_count),
          .header_bytes = sizeof(CallHeader),
          .ring_header_bytes = ring_header_bytes()};
}

SharedGroup::SharedGroup(std::unique_ptr<GroupCore> core)
    : core_(std::move(core)), here_(core_->here()), board_(core_->board()), mailbox_(*core_) {}

// --- the collectives ---

Result<void> SharedGroup::all_reduce(void* data, std::size_t count, ElementType type, ReduceOp op,
                                     Duration timeout) {
  return run_reduce({.kind = CallKind::kAllReduce,
                     .type = type,
                     .op = op,
                     .count = count,
                     .data = static_cast<char*>(data)},
                    timeout);
}

Result<void> SharedGroup::reduce(void* data, std::size_t count, ElementType type, ReduceOp op,
                                 Rank root, Duration timeout) {
  require_root(root, size());
  return run_reduce({.kind = CallKind::kReduce,
                     .type = type,
                     .op = op,
                     .root = root.value,
                     .count = count,
                     .data = static_cast<char*>(data)},
                    timeout);
}

Result<void> SharedGroup::reduce_scatter(std::span<const void* const> inputs, void* output,
                                         std::size_t count, ElementType type, ReduceOp op,
                                         Duration timeout) {
  require_count(inputs.size(), size());
  return run_reduce({.kind = CallKind::kReduceScatter,
                     .type = type,
                     .op = op,
                     .count = count,
                     .inputs = inputs,
                     .output = static_cast<char*>(output)},
                    timeout);
}

Result<void> SharedGroup::run_reduce(const ReduceJob& job, Duration timeout) {
  require_operation(job.type, job.op);
  const CallHeader header{
      .count = job.count, .root = job.root, .kind = job.kind, .type = job.type, .op = job.op};
  if (DirectReduce::suits(here_, job)) {
    DirectReduce call(here_, job);
    return run(header, call, timeout);
  }
  SharedReduce call(here_, job, scratch_);
  return run(header, call, timeout);
}

Result<void> SharedGroup::broadcast(void* data, std::size_t bytes, Rank root, Duration timeout) {
  require_root(root, size());
  BroadcastCall call(here_, static_cast<char*>(data), bytes, root.value);
  return run({.count = bytes, .root = root.value, .kind = CallKind::kBroadcast}, call, timeout);
}

Result<void> SharedGroup::all_gather(const void* input, std::span<void* const> outputs,
                                     std::size_t bytes, Duration timeout) {
  require_count(outputs.size(), size());
  GatherCall call(here_, static_cast<const char*>(input), outputs, bytes, -1);
  return run({.count = bytes, .kind = CallKind::kAllGather}, call, timeout);
}

Result<void> SharedGroup::gather(const void* input, std::span<void* const> outputs,
                                 std::size_t bytes, Rank root, Duration timeout) {
  require_root(root, size());
  const int wanted = root.value == rank() ? size() : 0;
  require_count(outputs.size(), wanted);
  GatherCall call(here_, static_cast<const char*>(input), outputs, bytes, root.value);
  return run({.count = bytes, .root = root.value, .kind = CallKind::kGather}, call, timeout);
}

Result<void> SharedGroup::scatter(std::span<const void* const> inputs, void* output,
                                  std::size_t bytes, Rank root, Duration timeout) {
  require_root(root, size());
  const int wanted = root.value == rank() ? size() : 0;
  require_count(inputs.size(), wanted);
  ScatterCall call(here_, inputs, static_cast<char*>(output), bytes, root.value);
  return run({.count = bytes, .root = root.value, .kind = CallKind::kScatter}, call, timeout);
}

Result<void> SharedGroup::barrier(Duration timeout) {
  BarrierCall call;
  return run({.kind = CallKind::kBarrier}, call, timeout);
}

// --- how they run ---

Result<void> SharedGroup::run(CallHeader header, ChunkedCall& call, Duration timeout) {
  header.sequence = sequence_ + 1;
  const Attempt attempt{.doing = [&header] { return describe(header); },
                        .deadline = Deadline(timeout),
                        .sequence = header.sequence};
  if (const Result<void> may = core_->may_begin(attempt); !may) return may.error();
  ++sequence_;
  board_.enter(header);
  return take_steps(header, call, attempt);
}

Result<void> SharedGroup::take_steps(const CallHeader& header, ChunkedCall& call,
                                     const Attempt& attempt) {
  using Action = ChunkPipeline::Action;
  ChunkPipeline pipeline(next_arrival_, call.chunks(), call.work_mode());
  bool arrived = false;
  while (const std::optional<ChunkPipeline::Step> step = pipeline.next()) {
    const bool idle = step->action == Action::kWork && !here_.leads();
    if (step->wait != 0 && !idle) {
      const WaitEnd end = board_.wait_for_all(step->wait, attempt.deadline.when());
      if (end != WaitEnd::kReady) return core_->fail(attempt, end);
    }
    const ChunkedCall::Chunk chunk{step->chunk, next_chunk_ + step->chunk};
    switch (step->action) {
      case Action::kStage: call.stage(chunk); break;
      case Action::kCopyOut: call.copy_out(chunk); break;
      case Action::kWork: {
        if (idle) break;
        const TcpMesh::End end = call.work(chunk, attempt.deadline.when());
        if (end.how != WaitEnd::kReady) return core_->fail(attempt, end.how, end.node);
        break;
      }
    }
    if (step->publish != 0) board_.publish(step->publish);
    if (!arrived) {
      if (const Result<void> agreed = arrive(header, pipeline, attempt); !agreed)
        return agreed.error();
      arrived = true;
    }
  }
  next_arrival_ = pipeline.next_arrival();
  next_chunk_ += call.chunks();
  return {};
}

// Waits until every rank of the world is in the collective, and compares what they call.
Result<void> SharedGroup::arrive(const CallHeader& header, const ChunkPipeline& pipeline,
                                 const Attempt& attempt) {
  const WaitEnd end = board_.wait_for_all(next_arrival_, attempt.deadline.when());
  if (end != WaitEnd::kReady) return core_->fail(attempt, end);
  return here_.one_node() ? agree_on_node(header, attempt)
                          : agree_over_nodes(header, pipeline, attempt);
}

Result<void> SharedGroup::agree_on_node(const CallHeader& header, const Attempt& attempt) {
  bool same = true;
  for (int local = 0; local < here_.local_count(); ++local) {
    same = same && board_.call_of(local, header.sequence) == header;
  }
  if (same) return {};
  std::vector<CallHeader> by_rank;
  for (int local = 0; local < here_.local_count(); ++local) {
    by_rank.push_back(board_.call_of(local, header.sequence));
  }
  const Error error = check_agreement(header, by_rank).error();
  return core_->fail(attempt, error.kind, -1, error.cause);
}

// The first rank of each node exchanges the headers and lays them out for its neighbours. The table
// is free for it to write: everyone has arrived, so everyone is done with the collective before.
Result<void> SharedGroup::agree_over_nodes(const CallHeader& header, const ChunkPipeline& pipeline,
                                           const Attempt& attempt) {
  if (here_.local == 0) {
    const TcpMesh::End end = exchange_headers(header, attempt.deadline.when());
    if (end.how != WaitEnd::kReady) return core_->fail(attempt, end.how, end.node);
  }
  board_.publish(pipeline.header_tick());
  const WaitEnd end = board_.wait_for(0, pipeline.header_tick(), attempt.deadline.when());
  if (end != WaitEnd::kReady) return core_->fail(attempt, end);
  const auto* table = reinterpret_cast<const CallHeader*>(here_.memory + here_.segment.headers);
  const Result<void> agreed = check_agreement(header, {table, static_cast<std::size_t>(size())});
  if (!agreed) return core_->fail(attempt, agreed.error().kind, -1, agreed.error().cause);
  return {};
}

TcpMesh::End SharedGroup::exchange_headers(const CallHeader& header, TimePoint deadline) {
  auto* const table = reinterpret_cast<CallHeader*>(here_.memory + here_.segment.headers);
  std::vector<CallHeader> own;
  for (int local = 0; local < here_.local_count(); ++local) {
    own.push_back(board_.call_of(local, header.sequence));
    table[here_.layout.nodes[here_.node][local]] = own.back();
  }
  std::vector<TcpMesh::Sending> sendings;
  std::vector<TcpMesh::Receiving> receivings;
  for (int node = 0; node < here_.layout.node_count(); ++node) {
    if (node == here_.node) continue;
    sendings.push_back({node, own.data(), own.size() * sizeof(CallHeader)});
    for (const int rank : here_.layout.nodes[node]) {
      receivings.push_back({node, &table[rank], sizeof(CallHeader)});
    }
  }
  return here_.mesh->exchange(sendings, receivings, deadline);
}

// --- point to point ---

Result<void> SharedGroup::send(const void* data, std::size_t bytes, Rank destination, int tag,
                               Duration timeout) {
  require_partner(destination, rank(), size());
  return mailbox_.send(data, bytes, destination, tag, timeout);
}

Result<Rank> SharedGroup::recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                               Duration timeout) {
  if (source) require_partner(*source, rank(), size());
  return mailbox_.recv(data, bytes, source, tag, timeout);
}

void SharedGroup::start_send(const void* data, std::size_t bytes, Rank destination, int tag,
                             Duration timeout, TransferDone done) {
  require_partner(destination, rank(), size());
  mailbox_.start_send(data, bytes, destination, tag, timeout, std::move(done));
}

void SharedGroup::start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                             Duration timeout, TransferDone done) {
  if (source) require_partner(*source, rank(), size());
  mailbox_.start_recv(data, bytes, source, tag, timeout, std::move(done));
}

void SharedGroup::abort(const std::string& reason) { core_->abort(reason); }

}  // namespace ddprun
