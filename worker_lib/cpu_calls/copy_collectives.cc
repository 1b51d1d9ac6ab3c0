#include "worker_lib/cpu_calls/copy_collectives.h"

#include <algorithm>

#include "base/cache_line.h"

namespace ddprun {
namespace {

template <class Byte>
std::size_t bytes_of(std::span<const std::span<Byte>> parts) {
  std::size_t bytes = 0;
  for (const std::span<Byte>& part : parts) bytes += part.size();
  return bytes;
}

// A stage holds a block for every rank of a lane, and the leader's own block.
std::size_t block_limit(const GroupTopology& here) {
  std::size_t longest = 0;
  for (int lane = 0; lane < here.layout.lanes; ++lane) {
    longest = std::max(longest, here.layout.lane_positions(lane).size());
  }
  return here.segment.stage_bytes / (longest + 1);
}

}  // namespace

// --- broadcast ---

BroadcastCall::BroadcastCall(const GroupTopology& here, Scattered<char> data, int root)
    : CopyCall(here, root, data.bytes(), here.segment.stage_bytes), data_(std::move(data)) {}

void BroadcastCall::stage(const Chunk& chunk) {
  if (here_.rank != root_) return;
  data_.copy_to(own_stage(chunk), plan_.at(chunk.index));
}

Relay BroadcastCall::relay() const {
  const int nodes = here_.layout.node_count();
  const int place = (here_.node - here_.layout.node_of[root_] + nodes) % nodes;
  return tree_is_shorter(plan_.chunks(), nodes) ? relay_in_tree(place, nodes)
                                                : relay_in_chain(place, nodes);
}

int BroadcastCall::node_at(int place) const {
  return (here_.layout.node_of[root_] + place) % here_.layout.node_count();
}

std::span<char> BroadcastCall::own_share(const Chunk& chunk) const {
  const Range share = ChunkShape::even(here_.layout, plan_.at(chunk.index).size(), kCacheLineBytes)
                          .share(here_.local);
  const int source = here_.on_my_node(root_) ? here_.layout.local_of[root_] : here_.local;
  return {here_.stage(source, chunk.number) + share.begin, share.size()};
}

Sendings BroadcastCall::passes_on(const Chunk& chunk) const {
  const std::span<char> bytes = own_share(chunk);
  Sendings sendings;
  for (const int to : relay().to) sendings.push_back({node_at(to), bytes.data(), bytes.size()});
  return sendings;
}

Sendings BroadcastCall::sends_first(const Chunk& chunk) {
  if (here_.rank != root_) return {};
  return passes_on(chunk);
}

TcpMesh::End BroadcastCall::work(const Chunk& chunk, TimePoint deadline) {
  if (const int before = relay().from; before >= 0) {
    const std::span<char> bytes = own_share(chunk);
    const TcpMesh::Receiving from{node_at(before), bytes.data(), bytes.size()};
    const auto end = here_.mesh->exchange({}, {&from, 1}, deadline);
    if (end.how != WaitEnd::kReady) return end;
  }
  const bool is_sent = chunk.is_ahead && here_.rank == root_;
  return here_.mesh->exchange(is_sent ? Sendings() : passes_on(chunk), {}, deadline);
}

void BroadcastCall::copy_out(const Chunk& chunk) {
  if (here_.rank == root_) return;
  const Range part = plan_.at(chunk.index);
  const CopyBytes copy = here_.result_copy(data_.bytes());
  if (here_.on_my_node(root_)) {
    data_.copy_from(here_.stage(here_.layout.local_of[root_], chunk.number), part, copy);
    return;
  }
  const ChunkShape shape = ChunkShape::even(here_.layout, part.size(), kCacheLineBytes);
  for (int lane = 0; lane < here_.layout.lanes; ++lane) {
    const Range share = shape.share(lane);
    data_.copy_from(here_.stage(lane, chunk.number) + share.begin,
                    {part.begin + share.begin, part.begin + share.end}, copy);
  }
}

// --- all_gather and gather ---

GatherCall::GatherCall(const GroupTopology& here, Scattered<const char> input,
                       std::span<const Scattered<char>> outputs, int root)
    : CopyCall(here, root, input.bytes(), block_limit(here)),
      input_(std::move(input)),
      outputs_(outputs) {}

void GatherCall::stage(const Chunk& chunk) {
  if (root_ == here_.rank) return;
  input_.copy_to(own_stage(chunk), plan_.at(chunk.index));
}

std::size_t GatherCall::place_of(int rank) const {
  const int lane = here_.layout.lane_of(rank);
  const Range here_positions = here_.layout.lane_positions(lane, here_.node);
  const std::size_t position = here_.layout.position_of[rank];
  const std::size_t of_this_node = position >= here_positions.end ? here_positions.size() : 0;
  return position - here_.layout.lane_positions(lane).begin - of_this_node;
}

const char* GatherCall::staged(int rank, const Chunk& chunk) const {
  if (here_.on_my_node(rank)) return here_.stage(here_.layout.local_of[rank], chunk.number);
  const std::size_t block = plan_.at(chunk.index).size();
  return here_.stage(here_.layout.lane_of(rank), chunk.number) + (1 + place_of(rank)) * block;
}

template <class Visit>
void GatherCall::for_each_of_lane(int node, Visit visit) const {
  const Range positions = here_.layout.lane_positions(here_.local, node);
  for (std::size_t at = positions.begin; at < positions.end; ++at) visit(here_.layout.rank_at[at]);
}

Sendings GatherCall::sends_first(const Chunk& chunk) {
  const std::size_t block = plan_.at(chunk.index).size();
  Sendings sendings;
  here_.for_each_other_node([&](int node) {
    if (root_ >= 0 && here_.layout.node_of[root_] != node) return;
    for_each_of_lane(here_.node, [&](int rank) {
      sendings.push_back({node, staged(rank, chunk), block});
    });
  });
  return sendings;
}

TcpMesh::End GatherCall::work(const Chunk& chunk, TimePoint deadline) {
  const std::size_t block = plan_.at(chunk.index).size();
  Receivings receivings;
  here_.for_each_other_node([&](int node) {
    if (root_ >= 0 && !here_.on_my_node(root_)) return;
    for_each_of_lane(node, [&](int rank) {
      receivings.push_back({node, const_cast<char*>(staged(rank, chunk)), block});
    });
  });
  return here_.mesh->exchange(still_to_send(chunk), receivings, deadline);
}

void GatherCall::copy_out(const Chunk& chunk) {
  if (!wants_result()) return;
  const Range part = plan_.at(chunk.index);
  const CopyBytes copy = here_.result_copy(input_.bytes() * (1 + outputs_.size()));
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    if (rank != here_.rank) {
      outputs_[rank].copy_from(staged(rank, chunk), part, copy);
      continue;
    }
    input_.for_each(part, [&](const char* from, std::size_t offset, std::size_t bytes) {
      const std::size_t begin = part.begin + offset;
      outputs_[rank].copy_from(from, {begin, begin + bytes}, copy);  // it may lie there already
    });
  }
}

// --- scatter ---

ScatterCall::ScatterCall(const GroupTopology& here, ReadableList inputs, WritableBytes output,
                         int root)
    : CopyCall(here, root, output.size(), here.segment.stage_bytes / here.layout.rank_at.size()),
      inputs_(inputs),
      output_(output) {}

void ScatterCall::stage(const Chunk& chunk) {
  if (here_.rank != root_) return;
  const Range part = plan_.at(chunk.index);
  const ChunkShape shape = ChunkShape::by_rank(here_.layout, part.size());
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    if (rank == root_) continue;
    copy_bytes(own_stage(chunk) + shape.block(rank).begin, inputs_[rank].data() + part.begin,
               part.size());
  }
}

Sendings ScatterCall::sends_first(const Chunk& chunk) {
  if (!here_.on_my_node(root_)) return {};
  const ChunkShape shape = ChunkShape::by_rank(here_.layout, plan_.at(chunk.index).size());
  const char* const staged = here_.stage(here_.layout.local_of[root_], chunk.number);
  Sendings sendings;
  for (int node = 0; node < here_.layout.node_count(); ++node) {
    if (node == here_.node) continue;
    const Range theirs = shape.piece(here_.local, node);
    sendings.push_back({node, staged + theirs.begin, theirs.size()});
  }
  return sendings;
}

TcpMesh::End ScatterCall::work(const Chunk& chunk, TimePoint deadline) {
  if (here_.on_my_node(root_)) {
    return here_.mesh->exchange(still_to_send(chunk), {}, deadline);
  }
  const ChunkShape shape = ChunkShape::by_rank(here_.layout, plan_.at(chunk.index).size());
  const Range mine = shape.piece(here_.local, here_.node);
  const TcpMesh::Receiving from{here_.layout.node_of[root_], own_stage(chunk), mine.size()};
  return here_.mesh->exchange({}, {&from, 1}, deadline);
}

void ScatterCall::copy_out(const Chunk& chunk) {
  const Range part = plan_.at(chunk.index);
  const CopyBytes copy = here_.result_copy(output_.size());
  char* const to = output_.data() + part.begin;
  if (here_.rank == root_) {
    const char* const from = inputs_[root_].data() + part.begin;
    if (to != from) copy(to, from, part.size());
    return;
  }
  const ChunkShape shape = ChunkShape::by_rank(here_.layout, part.size());
  const Range block = shape.block(here_.rank);
  if (here_.on_my_node(root_)) {
    copy(to, here_.stage(here_.layout.local_of[root_], chunk.number) + block.begin, part.size());
    return;
  }
  const int lane = here_.layout.lane_of(here_.rank);
  copy(to, here_.stage(lane, chunk.number) + (block.begin - shape.piece(lane, here_.node).begin),
       part.size());
}

// --- all_to_all ---

AllToAllCall::AllToAllCall(const GroupTopology& here, const PairSizes& sizes, ReadableList inputs,
                           WritableList outputs)
    : CopyCall(here, -1, sizes.largest(), pair_slot_bytes(here.layout, here.segment.stage_bytes)),
      sizes_(sizes),
      inputs_(inputs),
      outputs_(outputs),
      slot_(pair_slot_bytes(here.layout, here.segment.stage_bytes)) {}

Range AllToAllCall::part(int from, int to, const Chunk& chunk) const {
  const std::size_t bytes = sizes_.of(from, to);
  return {std::min(chunk.index * slot_, bytes), std::min((chunk.index + 1) * slot_, bytes)};
}

char* AllToAllCall::outgoing(int from, int to, const Chunk& chunk) const {
  return here_.stage(here_.layout.local_of[from], chunk.number) +
         here_.layout.position_of[to] * slot_;
}

// The rows follow the leader's own slots: a row per rank of other nodes, a slot per rank of the
// lane.
char* AllToAllCall::incoming(int from, int to, const Chunk& chunk) const {
  const NodeLayout& layout = here_.layout;
  const int lane = layout.lane_of(to);
  const Range of_lane = layout.lane_positions(lane, here_.node);
  const std::size_t world = layout.world_size();
  // The number of ranks of other nodes with a lower number.
  const std::vector<int>& mine = layout.nodes[here_.node];
  const std::size_t row = from - (std::ranges::lower_bound(mine, from) - mine.begin());
  const std::size_t column = layout.position_of[to] - of_lane.begin;
  return here_.stage(lane, chunk.number) + (world + row * of_lane.size() + column) * slot_;
}

void AllToAllCall::stage(const Chunk& chunk) {
  for (int to = 0; to < here_.layout.world_size(); ++to) {
    if (to == here_.rank) continue;
    const Range bytes = part(here_.rank, to, chunk);
    copy_bytes(outgoing(here_.rank, to, chunk), inputs_[to].data() + bytes.begin, bytes.size());
  }
}

TcpMesh::End AllToAllCall::work(const Chunk& chunk, TimePoint deadline) {
  const NodeLayout& layout = here_.layout;
  Sendings sendings;
  Receivings receivings;
  // visit(from, to, bytes) for the pairs whose bytes this lane carries from node to node.
  const auto for_each_pair = [&](int from_node, int to_node, auto visit) {
    const Range of_lane = layout.lane_positions(here_.local, to_node);
    for (const int from : layout.nodes[from_node]) {
      for (std::size_t at = of_lane.begin; at < of_lane.end; ++at) {
        const int to = layout.rank_at[at];
        const std::size_t bytes = part(from, to, chunk).size();
        if (bytes > 0) visit(from, to, bytes);
      }
    }
  };
  here_.for_each_other_node([&](int node) {
    for_each_pair(here_.node, node, [&](int from, int to, std::size_t bytes) {
      sendings.push_back({node, outgoing(from, to, chunk), bytes});
    });
    for_each_pair(node, here_.node, [&](int from, int to, std::size_t bytes) {
      receivings.push_back({node, incoming(from, to, chunk), bytes});
    });
  });
  return here_.mesh->exchange(sendings, receivings, deadline);
}

void AllToAllCall::copy_out(const Chunk& chunk) {
  const CopyBytes copy = here_.result_copy(bytes_of(inputs_) + bytes_of(outputs_));
  for (int from = 0; from < here_.layout.world_size(); ++from) {
    const Range bytes = part(from, here_.rank, chunk);
    const char* const staged = from == here_.rank       ? inputs_[from].data() + bytes.begin
                               : here_.on_my_node(from) ? outgoing(from, here_.rank, chunk)
                                                        : incoming(from, here_.rank, chunk);
    copy(outputs_[from].data() + bytes.begin, staged, bytes.size());
  }
}

}  // namespace ddprun
