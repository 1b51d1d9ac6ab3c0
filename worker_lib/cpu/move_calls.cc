#include "worker_lib/cpu/move_calls.h"

#include <algorithm>

namespace ddprun {
namespace {

ChunkPipeline::Work work_between_nodes(const Surroundings& here) {
  return here.one_node() ? ChunkPipeline::Work::kNone : ChunkPipeline::Work::kSome;
}

// A stage holds a block for every rank of a lane, and the leader's own.
std::size_t block_limit(const Surroundings& here) {
  std::size_t longest = 0;
  for (int lane = 0; lane < here.layout.lanes; ++lane) {
    longest = std::max(longest, here.layout.lane_positions(lane).size());
  }
  return here.segment.stage_bytes / (longest + 1);
}

}  // namespace

// --- broadcast ---

BroadcastCall::BroadcastCall(const Surroundings& here, char* data, std::size_t bytes, int root)
    : here_(here),
      data_(data),
      root_(root),
      plan_(bytes, here.segment.stage_bytes, kCacheLineBytes) {}

ChunkPipeline::Work BroadcastCall::work_mode() const { return work_between_nodes(here_); }

void BroadcastCall::stage(const Chunk& chunk) {
  if (here_.rank != root_) return;
  const Range part = plan_.at(chunk.index);
  copy_bytes(here_.stage(here_.local, chunk.number), data_ + part.begin, part.size());
}

TcpMesh::End BroadcastCall::work(const Chunk& chunk, TimePoint deadline) {
  const Range share = ChunkShape::even(here_.layout, plan_.at(chunk.index).size(), kCacheLineBytes)
                          .share(here_.local);
  const int nodes = here_.layout.node_count();
  const int root_node = here_.layout.node_of[root_];
  const int place = (here_.node - root_node + nodes) % nodes;  // in the chain
  const int source = place == 0 ? here_.layout.local_of[root_] : here_.local;
  char* const bytes = here_.stage(source, chunk.number) + share.begin;
  if (place > 0) {
    const TcpMesh::Receiving from{(here_.node - 1 + nodes) % nodes, bytes, share.size()};
    if (const auto end = here_.mesh->exchange({}, {&from, 1}, deadline);
        end.how != WaitEnd::kReady) {
      return end;
    }
  }
  if (place == nodes - 1) return {};
  const TcpMesh::Sending to{(here_.node + 1) % nodes, bytes, share.size()};
  return here_.mesh->exchange({&to, 1}, {}, deadline);
}

void BroadcastCall::copy_out(const Chunk& chunk) {
  if (here_.rank == root_) return;
  const Range part = plan_.at(chunk.index);
  char* const to = data_ + part.begin;
  if (here_.on_my_node(root_)) {
    copy_bytes(to, here_.stage(here_.layout.local_of[root_], chunk.number), part.size());
    return;
  }
  const ChunkShape shape = ChunkShape::even(here_.layout, part.size(), kCacheLineBytes);
  for (int lane = 0; lane < here_.layout.lanes; ++lane) {
    const Range share = shape.share(lane);
    copy_bytes(to + share.begin, here_.stage(lane, chunk.number) + share.begin, share.size());
  }
}

// --- all_gather and gather ---

GatherCall::GatherCall(const Surroundings& here, const char* input, std::span<void* const> outputs,
                       std::size_t bytes, int root)
    : here_(here),
      input_(input),
      outputs_(outputs),
      root_(root),
      plan_(bytes, block_limit(here), kCacheLineBytes) {}

ChunkPipeline::Work GatherCall::work_mode() const { return work_between_nodes(here_); }

void GatherCall::stage(const Chunk& chunk) {
  if (root_ == here_.rank) return;
  const Range part = plan_.at(chunk.index);
  copy_bytes(here_.stage(here_.local, chunk.number), input_ + part.begin, part.size());
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

TcpMesh::End GatherCall::work(const Chunk& chunk, TimePoint deadline) {
  const std::size_t block = plan_.at(chunk.index).size();
  const int nodes = here_.layout.node_count();
  const int root_node = root_ < 0 ? -1 : here_.layout.node_of[root_];
  const auto ranks_of_lane = [&](int node, auto visit) {
    const Range positions = here_.layout.lane_positions(here_.local, node);
    for (std::size_t at = positions.begin; at < positions.end; ++at)
      visit(here_.layout.rank_at[at]);
  };
  std::vector<TcpMesh::Sending> sendings;
  std::vector<TcpMesh::Receiving> receivings;
  for (int step = 1; step < nodes; ++step) {
    const int node = (here_.node + step) % nodes;
    if (root_node < 0 || root_node == node) {
      ranks_of_lane(here_.node, [&](int rank) {
        sendings.push_back({node, staged(rank, chunk), block});
      });
    }
    if (root_node < 0 || root_node == here_.node) {
      ranks_of_lane(node, [&](int rank) {
        receivings.push_back({node, const_cast<char*>(staged(rank, chunk)), block});
      });
    }
  }
  return here_.mesh->exchange(sendings, receivings, deadline);
}

void GatherCall::copy_out(const Chunk& chunk) {
  if (!wants_result()) return;
  const Range part = plan_.at(chunk.index);
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    char* const to = static_cast<char*>(outputs_[rank]) + part.begin;
    const char* const from = rank == here_.rank ? input_ + part.begin : staged(rank, chunk);
    if (to != from) copy_bytes(to, from, part.size());  // the input may be its own output
  }
}

// --- scatter ---

ScatterCall::ScatterCall(const Surroundings& here, std::span<const void* const> inputs,
                         char* output, std::size_t bytes, int root)
    : here_(here),
      inputs_(inputs),
      output_(output),
      root_(root),
      plan_(bytes, here.segment.stage_bytes / here.layout.rank_at.size(), kCacheLineBytes) {}

ChunkPipeline::Work ScatterCall::work_mode() const { return work_between_nodes(here_); }

void ScatterCall::stage(const Chunk& chunk) {
  if (here_.rank != root_) return;
  const Range part = plan_.at(chunk.index);
  const ChunkShape shape = ChunkShape::by_rank(here_.layout, part.size());
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    if (rank == root_) continue;
    copy_bytes(here_.stage(here_.local, chunk.number) + shape.block(rank).begin,
               static_cast<const char*>(inputs_[rank]) + part.begin, part.size());
  }
}

TcpMesh::End ScatterCall::work(const Chunk& chunk, TimePoint deadline) {
  const ChunkShape shape = ChunkShape::by_rank(here_.layout, plan_.at(chunk.index).size());
  const int root_node = here_.layout.node_of[root_];
  if (here_.node != root_node) {
    const Range mine = shape.piece(here_.local, here_.node);
    const TcpMesh::Receiving from{root_node, here_.stage(here_.local, chunk.number), mine.size()};
    return here_.mesh->exchange({}, {&from, 1}, deadline);
  }
  const char* const staged = here_.stage(here_.layout.local_of[root_], chunk.number);
  std::vector<TcpMesh::Sending> sendings;
  for (int node = 0; node < here_.layout.node_count(); ++node) {
    if (node == root_node) continue;
    const Range theirs = shape.piece(here_.local, node);
    sendings.push_back({node, staged + theirs.begin, theirs.size()});
  }
  return here_.mesh->exchange(sendings, {}, deadline);
}

void ScatterCall::copy_out(const Chunk& chunk) {
  const Range part = plan_.at(chunk.index);
  char* const to = output_ + part.begin;
  if (here_.rank == root_) {
    const char* const from = static_cast<const char*>(inputs_[root_]) + part.begin;
    if (to != from) copy_bytes(to, from, part.size());
    return;
  }
  const ChunkShape shape = ChunkShape::by_rank(here_.layout, part.size());
  const Range block = shape.block(here_.rank);
  if (here_.on_my_node(root_)) {
    copy_bytes(to, here_.stage(here_.layout.local_of[root_], chunk.number) + block.begin,
               part.size());
    return;
  }
  const int lane = here_.layout.lane_of(here_.rank);
  copy_bytes(to,
             here_.stage(lane, chunk.number) + (block.begin - shape.piece(lane, here_.node).begin),
             part.size());
}

}  // namespace ddprun
