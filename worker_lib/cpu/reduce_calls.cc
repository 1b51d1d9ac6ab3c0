#include "worker_lib/cpu/reduce_calls.h"

#include <algorithm>

namespace ddprun {
namespace {

FoldKernel kernel_for(const ReduceJob& job, FoldForm form) {
  static const InstructionSet set = best_instruction_set();
  return fold_kernel(job.type, job.op, form, set);
}

double divisor_of(const ReduceJob& job, const NodeLayout& layout) {
  return job.op == ReduceOp::kAvg ? layout.world_size() : 1;
}

std::size_t chunk_limit(const Surroundings& here, const ReduceJob& job) {
  const std::size_t fits = here.segment.stage_bytes / size_of(job.type);
  return job.by_rank() ? fits / here.layout.rank_at.size() : fits;
}

// What stays where it is need not fit a stage.
std::size_t longest_chunk(const Surroundings& here, const ReduceJob& job, bool in_heap) {
  const std::size_t limit = chunk_limit(here, job);
  return in_heap && here.one_node() ? std::max(job.count(), limit) : limit;
}

// Pointers to one element range in every rank's memory; a small call should not go to the heap.
class Sources {
 public:
  explicit Sources(int count) {
    if (count > kFew) many_.resize(count);
  }
  const void*& operator[](int i) { return data()[i]; }
  const void** data() { return many_.empty() ? few_ : many_.data(); }

 private:
  static constexpr int kFew = 16;
  const void* few_[kFew] = {};
  std::vector<const void*> many_;
};

Range in_bytes(Range elements, std::size_t element_bytes) {
  return {elements.begin * element_bytes, elements.end * element_bytes};
}

// visit(offset, input, output, bytes) for each part of `range`, in bytes, that lies in one piece: of
// what this rank contributes to the result of `rank`, and where that result goes, null if nowhere here.
template <class Visit>
void for_each_piece(const ReduceJob& job, int rank, bool wanted, Range range, Visit visit) {
  if (!job.by_rank()) {
    job.data.for_each(range, [&](char* data, std::size_t offset, std::size_t bytes) {
      visit(offset, data, wanted ? data : nullptr, bytes);
    });
    return;
  }
  job.inputs[rank].for_each(range, [&](const char* in, std::size_t offset, std::size_t bytes) {
    if (!wanted) return visit(offset, in, static_cast<char*>(nullptr), bytes);
    const std::size_t begin = range.begin + offset;
    job.output.for_each({begin, begin + bytes}, [&](char* out, std::size_t more, std::size_t part) {
      visit(offset + more, in + more, out, part);
    });
  });
}

// Bytes a rank contributes, times the ranks of the node, up to which a second meeting costs more
// than it saves.
constexpr std::size_t kSmallReduce = std::size_t{64} << 10;

}  // namespace

// --- DirectReduce ---

DirectReduce::DirectReduce(const Surroundings& here, const ReduceJob& job)
    : here_(here),
      job_(job),
      size_(size_of(job.type)),
      plan_(job.count(), chunk_limit(here, job), elements_per_line(size_)) {}

bool DirectReduce::suits(const Surroundings& here, const ReduceJob& job) {
  if (!here.one_node()) return false;
  if (job.by_rank()) return true;
  if (job.kind == CallKind::kAllReduce && here.local_count() == 2) return true;
  return job.data.bytes() <= kSmallReduce / here.local_count();
}

void DirectReduce::stage(const Chunk& chunk) {
  const Range part = in_bytes(plan_.at(chunk.index), size_);
  char* const to = here_.stage(here_.local, chunk.number);
  if (!job_.by_rank()) return job_.data.copy_to(to, part);
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    if (rank == here_.rank) continue;
    job_.inputs[rank].copy_to(to + static_cast<std::size_t>(rank) * part.size(), part);
  }
}

void DirectReduce::copy_out(const Chunk& chunk) {
  if (!job_.wants_result(here_.rank)) return;
  const Range part = in_bytes(plan_.at(chunk.index), size_);
  const std::size_t block = job_.by_rank() ? static_cast<std::size_t>(here_.rank) * part.size() : 0;
  for_each_piece(job_, here_.rank, /*wanted=*/true, part,
                 [&](std::size_t offset, const char* input, char* output, std::size_t bytes) {
                   Sources sources(here_.local_count());
                   for (int local = 0; local < here_.local_count(); ++local) {
                     sources[local] = here_.stage(local, chunk.number) + block + offset;
                   }
                   sources[here_.local] = input;
                   kernel_for(job_, FoldForm::kWhole)({.sources = sources.data(),
                                                       .source_count = here_.local_count(),
                                                       .count = bytes / size_,
                                                       .out = output,
                                                       .divisor = divisor_of(job_, here_.layout)});
                 });
}

// --- SharedReduce ---

SharedReduce::SharedReduce(const Surroundings& here, const ReduceJob& job, ReduceScratch& scratch,
                           std::span<char* const> tensors)
    : here_(here),
      job_(job),
      scratch_(scratch),
      tensors_(tensors),
      size_(size_of(job.type)),
      accumulator_size_(size_of(accumulator_of(job.type))),
      plan_(job.count(), longest_chunk(here, job, in_heap()), elements_per_line(size_)) {}

ChunkShape SharedReduce::shape(const Chunk& chunk) const {
  const std::size_t length = plan_.at(chunk.index).size();
  return job_.by_rank() ? ChunkShape::by_rank(here_.layout, length)
                        : ChunkShape::even(here_.layout, length, elements_per_line(size_));
}

void SharedReduce::stage(const Chunk& chunk) {
  if (in_heap()) return;
  const Range whole = plan_.at(chunk.index);
  const ChunkShape parts = shape(chunk);
  char* const to = here_.stage(here_.local, chunk.number);
  if (job_.by_rank()) {
    for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
      if (here_.leads() && here_.layout.lane_of(rank) == here_.local) continue;
      job_.inputs[rank].copy_to(to + parts.block(rank).begin * size_, in_bytes(whole, size_));
    }
    return;
  }
  const Range own = here_.leads() ? parts.share(here_.local) : Range{};
  job_.data.copy_to(to, in_bytes({whole.begin, whole.begin + own.begin}, size_));
  job_.data.copy_to(to + own.end * size_, in_bytes({whole.begin + own.end, whole.end}, size_));
}

std::vector<SharedReduce::Stretch> SharedReduce::own_share(const Chunk& chunk) const {
  const Range whole = plan_.at(chunk.index);
  const ChunkShape parts = shape(chunk);
  std::vector<Stretch> stretches;
  // `elements` of what goes to `rank`, which lie at `at` in the chunk.
  const auto add = [&](int rank, bool wanted, std::size_t at, Range elements) {
    for_each_piece(job_, rank, wanted, in_bytes(elements, size_),
                   [&](std::size_t offset, const char* input, char* output, std::size_t bytes) {
                     const std::size_t begin = at + offset / size_;
                     stretches.push_back({{begin, begin + bytes / size_}, input, output});
                   });
  };
  if (!job_.by_rank()) {
    const Range share = parts.share(here_.local);
    add(here_.rank, job_.wants_result(here_.rank), share.begin,
        {whole.begin + share.begin, whole.begin + share.end});
    return stretches;
  }
  const Range positions = here_.layout.lane_positions(here_.local);
  for (std::size_t position = positions.begin; position < positions.end; ++position) {
    const int rank = here_.layout.rank_at[position];
    add(rank, rank == here_.rank, parts.block(rank).begin, whole);
  }
  return stretches;
}

void SharedReduce::fold_over_node(const Chunk& chunk, const Stretch& stretch, FoldForm form,
                                  char* out, std::span<void* const> copies) {
  Sources sources(here_.local_count());
  const std::size_t in_tensor = (plan_.at(chunk.index).begin + stretch.at.begin) * size_;
  for (int local = 0; local < here_.local_count(); ++local) {
    sources[local] = in_heap() ? tensors_[local] + in_tensor
                               : here_.stage(local, chunk.number) + stretch.at.begin * size_;
  }
  sources[here_.local] = stretch.input;
  kernel_for(job_,
             form)({.sources = sources.data(),
                    .source_count = here_.local_count(),
                    .count = stretch.at.size(),
                    .out = out,
                    .copies = copies.data(),
                    .copy_count = static_cast<int>(copies.size()),
                    .divisor = form == FoldForm::kWhole ? divisor_of(job_, here_.layout) : 1});
}

// Into the tensors of all ranks of the node, the own one first.
void SharedReduce::fold_in_heap(const Chunk& chunk, const Stretch& stretch) {
  const std::size_t in_tensor = (plan_.at(chunk.index).begin + stretch.at.begin) * size_;
  std::vector<void*> others;
  for (int local = 0; local < here_.local_count(); ++local) {
    if (local != here_.local) others.push_back(tensors_[local] + in_tensor);
  }
  fold_over_node(chunk, stretch, FoldForm::kWhole, stretch.output, others);
}

TcpMesh::End SharedReduce::work(const Chunk& chunk, TimePoint deadline) {
  const std::vector<Stretch> share = own_share(chunk);
  if (here_.one_node()) {
    for (const Stretch& stretch : share) {
      if (in_heap()) {
        fold_in_heap(chunk, stretch);
        continue;
      }
      char* const staged = here_.stage(here_.local, chunk.number) + stretch.at.begin * size_;
      void* const output = stretch.output;
      fold_over_node(chunk, stretch, FoldForm::kWhole, staged, {&output, output ? 1u : 0u});
    }
    return {};
  }
  const Range whole = shape(chunk).share(here_.local);
  scratch_.partial.resize(std::max(scratch_.partial.size(), whole.size() * accumulator_size_));
  for (const Stretch& stretch : share) {
    char* const out =
        scratch_.partial.data() + (stretch.at.begin - whole.begin) * accumulator_size_;
    fold_over_node(chunk, stretch, FoldForm::kPartial, out, {});
  }
  if (const auto end = collect_pieces(chunk, deadline); end.how != WaitEnd::kReady) return end;
  fold_over_nodes(chunk);
  return spread_pieces(chunk, deadline);
}

TcpMesh::End SharedReduce::collect_pieces(const Chunk& chunk, TimePoint deadline) {
  const ChunkShape parts = shape(chunk);
  const std::size_t share_begin = parts.share(here_.local).begin;
  const std::size_t piece_bytes = parts.piece(here_.local, here_.node).size() * accumulator_size_;
  const int nodes = here_.layout.node_count();
  scratch_.inbox.resize(std::max(scratch_.inbox.size(), piece_bytes * nodes));
  std::vector<TcpMesh::Sending> sendings;
  std::vector<TcpMesh::Receiving> receivings;
  // Node i begins with node i+1: not everybody sends to the same one at first.
  for (int step = 1; step < nodes; ++step) {
    const int node = (here_.node + step) % nodes;
    const Range piece = parts.piece(here_.local, node);
    sendings.push_back({node,
                        scratch_.partial.data() + (piece.begin - share_begin) * accumulator_size_,
                        piece.size() * accumulator_size_});
    receivings.push_back(
        {node, scratch_.inbox.data() + static_cast<std::size_t>(node) * piece_bytes, piece_bytes});
  }
  return here_.mesh->exchange(sendings, receivings, deadline);
}

void SharedReduce::fold_over_nodes(const Chunk& chunk) {
  const ChunkShape parts = shape(chunk);
  const Range piece = parts.piece(here_.local, here_.node);
  const std::size_t share_begin = parts.share(here_.local).begin;
  const std::size_t piece_bytes = piece.size() * accumulator_size_;
  Sources sources(here_.layout.node_count());
  for (int node = 0; node < here_.layout.node_count(); ++node) {
    sources[node] = scratch_.inbox.data() + static_cast<std::size_t>(node) * piece_bytes;
  }
  sources[here_.node] = scratch_.partial.data() + (piece.begin - share_begin) * accumulator_size_;
  kernel_for(
      job_, FoldForm::kFinish)({.sources = sources.data(),
                                .source_count = here_.layout.node_count(),
                                .count = piece.size(),
                                .out = here_.stage(here_.local, chunk.number) + piece.begin * size_,
                                .divisor = divisor_of(job_, here_.layout)});
}

TcpMesh::End SharedReduce::spread_pieces(const Chunk& chunk, TimePoint deadline) {
  if (job_.by_rank()) return {};  // a piece is already where its ranks are
  const ChunkShape parts = shape(chunk);
  const int nodes = here_.layout.node_count();
  const int root_node = job_.root < 0 ? -1 : here_.layout.node_of[job_.root];
  std::vector<TcpMesh::Sending> sendings;
  std::vector<TcpMesh::Receiving> receivings;
  const auto staged = [&](const Range& piece) {
    return here_.stage(here_.local, chunk.number) + piece.begin * size_;
  };
  for (int step = 1; step < nodes; ++step) {
    const int node = (here_.node + step) % nodes;
    const Range mine = parts.piece(here_.local, here_.node);
    const Range theirs = parts.piece(here_.local, node);
    if (root_node < 0 || root_node == node)
      sendings.push_back({node, staged(mine), mine.size() * size_});
    if (root_node < 0 || root_node == here_.node) {
      receivings.push_back({node, staged(theirs), theirs.size() * size_});
    }
  }
  return here_.mesh->exchange(sendings, receivings, deadline);
}

void SharedReduce::copy_out(const Chunk& chunk) {
  if (in_heap() && here_.one_node()) return;  // everyone has written to everyone's tensor
  const Range whole = plan_.at(chunk.index);
  const ChunkShape parts = shape(chunk);
  if (job_.by_rank()) {
    const char* const from = here_.stage(here_.layout.lane_of(here_.rank), chunk.number);
    job_.output.copy_from(from + parts.block(here_.rank).begin * size_, in_bytes(whole, size_));
    return;
  }
  if (!job_.wants_result(here_.rank)) return;
  for (int lane = 0; lane < here_.layout.lanes; ++lane) {
    if (here_.one_node() && lane == here_.local) continue;  // folded into the output
    const Range share = parts.share(lane);
    job_.data.copy_from(here_.stage(lane, chunk.number) + share.begin * size_,
                        in_bytes({whole.begin + share.begin, whole.begin + share.end}, size_));
  }
}

}  // namespace ddprun
