#include "worker_lib/cpu_calls/reduce_collectives.h"

#include <algorithm>

#include "base/cache_line.h"

namespace ddprun {
namespace {

std::size_t chunk_limit(const GroupTopology& here, const ReduceJob& job) {
  const std::size_t fits = here.segment.stage_bytes / size_of(job.type);
  return job.by_rank() ? fits / here.layout.rank_at.size() : fits;
}

std::size_t direct_chunk_limit(const GroupTopology& here, const ReduceJob& job) {
  const std::size_t limit = chunk_limit(here, job);
  if (job.by_rank() || job.data.bytes() < here.tuning.long_direct_bytes) return limit;
  return std::min(limit, here.tuning.direct_chunk_bytes / size_of(job.type));
}

// Data that stays in place need not fit a stage.
std::size_t longest_chunk(const GroupTopology& here, const ReduceJob& job, bool in_heap) {
  const std::size_t limit = chunk_limit(here, job);
  return in_heap && here.one_node() ? std::max(job.count(), limit) : limit;
}

// Sources: pointers to one element range in every rank's memory. A small call needs no heap
// allocation.
class Sources {
 public:
  explicit Sources(int count) : count_(count) {
    if (count > kFew) many_.resize(count);
  }
  const void*& operator[](int i) { return data()[i]; }
  operator std::span<const void* const>() { return {data(), count_}; }

 private:
  const void** data() { return many_.empty() ? few_ : many_.data(); }

  static constexpr int kFew = 16;
  const std::size_t count_;
  const void* few_[kFew] = {};
  std::vector<const void*> many_;
};

// Bytes reduced at a time if results bypass the caches: the kernels' own stores do not bypass
// them.
constexpr std::size_t kStreamBlockBytes = 8192;

// Bytes reduced in shared tensors before the next check for a failure: some hundred
// microseconds.
constexpr std::size_t kHeapBlockBytes = 1 << 20;

Range in_bytes(Range elements, std::size_t element_bytes) {
  return {elements.begin * element_bytes, elements.end * element_bytes};
}

// visit(offset, input, output, bytes) for each contiguous part of `range`, in bytes. `input` is
// what this rank contributes to the result of `rank`. `output` is where that result goes; null:
// not here.
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

}  // namespace

// --- DirectReduce ---

DirectReduce::DirectReduce(const GroupTopology& here, const ReduceJob& job)
    : ChunkedCall(here),
      job_(job),
      size_(size_of(job.type)),
      plan_(job.count(), direct_chunk_limit(here, job), elements_per_line(size_)) {}

bool DirectReduce::suits(const GroupTopology& here, const ReduceJob& job) {
  if (!here.one_node()) return false;
  if (job.by_rank()) return true;
  if (job.kind == CallKind::kAllReduce && here.local_count() == 2) return true;
  return job.data.bytes() <= here.tuning.small_reduce_bytes / here.local_count();
}

void DirectReduce::stage(const Chunk& chunk) {
  const Range part = in_bytes(plan_.at(chunk.index), size_);
  char* const to = own_stage(chunk);
  if (!job_.by_rank()) return job_.data.copy_to(to, part);
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    if (rank == here_.rank) continue;
    job_.inputs[rank].copy_to(to + rank * part.size(), part);
  }
}

void DirectReduce::copy_out(const Chunk& chunk) {
  if (!job_.wants_result(here_.rank)) return;
  const Range part = in_bytes(plan_.at(chunk.index), size_);
  const std::size_t block_at = job_.by_rank() ? here_.rank * part.size() : 0;
  // The result of an all_reduce lies where its input lay, which has just been read.
  const bool streams = job_.by_rank() && here_.streams(job_.bytes_by_rank());
  for_each_piece(job_, here_.rank, /*wanted=*/true, part,
                 [&](std::size_t offset, const char* input, char* output, std::size_t bytes) {
                   const std::size_t step = streams ? kStreamBlockBytes : bytes;
                   alignas(kCacheLineBytes) char block[kStreamBlockBytes];
                   for (std::size_t at = 0; at < bytes; at += step) {
                     const std::size_t now = std::min(step, bytes - at);
                     reduce_chunk(chunk, block_at + offset + at, input + at, now,
                                  streams ? block : output);
                     if (streams) stream_bytes(output + at, block, now);
                   }
                 });
}

// Reduces the ranks' stages at offset `from`, and `input` for this rank.
void DirectReduce::reduce_chunk(const Chunk& chunk, std::size_t from, const char* input,
                                std::size_t bytes, char* out) {
  Sources sources(here_.local_count());
  for (int local = 0; local < here_.local_count(); ++local) {
    sources[local] = here_.stage(local, chunk.number) + from;
  }
  sources[here_.local] = input;
  job_.reduce(ReduceForm::kWhole, sources, bytes / size_, out, here_.layout.world_size());
}

// --- SharedReduce ---

SharedReduce::SharedReduce(const GroupTopology& here, const ReduceJob& job, ReduceScratch& scratch,
                           std::span<char* const> tensors)
    : ChunkedCall(here),
      job_(job),
      scratch_(scratch),
      tensors_(tensors),
      size_(size_of(job.type)),
      accumulator_size_(size_of(accumulator_of(job.type))),
      plan_(job.count(), longest_chunk(here, job, in_heap()), elements_per_line(size_)) {}

// If each node has one rank, the order of the ranks is that of the nodes. The input of a rank is
// then its node's reduction. So it travels as it is, and f16 takes half the bytes.
bool SharedReduce::reduces_by_ranks() const {
  return here_.in_rank_order || here_.layout.world_size() == here_.layout.node_count();
}

// Returns whether every node that gets the result reduces all of it. A node then sends A(n-1)
// bytes: A bytes of input to each other node. Otherwise it sends (A + S)(n-1)/n bytes for a
// result of S bytes.
bool SharedReduce::is_repeated() const {
  if (here_.one_node() || job_.by_rank()) return false;
  // Bytes sent from neighbours' tensors count only after a second check for a failure. The
  // second exchange makes that check (SharedGroup::reduce_in_heap).
  if (in_heap() && reduces_by_ranks() && here_.in_rank_order) return false;
  const std::size_t nodes = here_.layout.node_count();
  const auto locals = static_cast<std::size_t>(here_.layout.world_size()) / nodes;
  const std::size_t result = job_.data.bytes();
  const std::size_t given = reduces_by_ranks() ? locals * result : job_.count() * accumulator_size_;
  return given * (nodes - 1) <=
         (given + result) * (nodes - 1) / nodes + here_.tuning.repeated_bytes;
}

ChunkShape SharedReduce::shape(const Chunk& chunk) const {
  const std::size_t length = plan_.at(chunk.index).size();
  if (job_.by_rank()) return ChunkShape::by_rank(here_.layout, length);
  const std::size_t quantum = elements_per_line(size_);
  return is_repeated() ? ChunkShape::repeated(here_.layout, length, quantum)
                       : ChunkShape::even(here_.layout, length, quantum);
}

// Returns whether a node reduces a piece over the nodes.
bool SharedReduce::is_reduced_on(int node) const {
  return !is_repeated() || job_.root < 0 || here_.layout.node_of[job_.root] == node;
}

void SharedReduce::stage(const Chunk& chunk) {
  if (in_heap()) return;
  const Range whole = plan_.at(chunk.index);
  const ChunkShape parts = shape(chunk);
  char* const to = own_stage(chunk);
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
  // `elements` of what goes to `rank`; they lie at `at` in the chunk.
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

// Returns the input of a rank of the node, where this rank reads it; not for this rank's own
// share.
const char* SharedReduce::input_of(const Chunk& chunk, int local, std::size_t at) const {
  return in_heap() ? tensors_[local] + (plan_.at(chunk.index).begin + at) * size_
                   : here_.stage(local, chunk.number) + at * size_;
}

void SharedReduce::reduce_over_node(const Chunk& chunk, const Stretch& stretch, ReduceForm form,
                                    char* out, std::span<void* const> copies) {
  Sources sources(here_.local_count());
  for (int local = 0; local < here_.local_count(); ++local) {
    sources[local] = input_of(chunk, local, stretch.at.begin);
  }
  sources[here_.local] = stretch.input;
  job_.reduce(form, sources, stretch.at.size(), out, here_.layout.world_size(), copies);
}

// Reduces into the tensors of all ranks of the node, the own one first. Returns false if the
// group has failed meanwhile: ranks that have got their tensors back wait for this to end.
bool SharedReduce::reduce_in_heap(const Chunk& chunk, const Stretch& stretch) {
  const std::size_t step = kHeapBlockBytes / size_;
  for (std::size_t at = stretch.at.begin; at < stretch.at.end; at += step) {
    if (here_.progress->failed()) return false;
    const Range part{at, std::min(at + step, stretch.at.end)};
    const std::size_t in_stretch = (at - stretch.at.begin) * size_;
    const std::size_t in_tensor = (plan_.at(chunk.index).begin + at) * size_;
    std::vector<void*> others;
    for (int local = 0; local < here_.local_count(); ++local) {
      if (local != here_.local) others.push_back(tensors_[local] + in_tensor);
    }
    reduce_over_node(chunk, {part, stretch.input + in_stretch, stretch.output + in_stretch},
                     ReduceForm::kWhole, stretch.output + in_stretch, others);
  }
  return true;
}

TcpMesh::End SharedReduce::work(const Chunk& chunk, TimePoint deadline) {
  const std::vector<Stretch> share = own_share(chunk);
  if (here_.one_node()) {
    for (const Stretch& stretch : share) {
      if (in_heap()) {
        if (!reduce_in_heap(chunk, stretch)) return {WaitEnd::kFailed, -1};
        continue;
      }
      char* const staged = own_stage(chunk) + stretch.at.begin * size_;
      void* const output = stretch.output;
      reduce_over_node(chunk, stretch, ReduceForm::kWhole, staged, {&output, output ? 1u : 0u});
    }
    return {};
  }
  const auto reduced = reduces_by_ranks() ? reduce_by_ranks(chunk, share, deadline)
                                          : reduce_by_nodes(chunk, share, deadline);
  if (reduced.how != WaitEnd::kReady) return reduced;
  return spread_pieces(chunk, share, deadline);
}

// Returns whether no other rank reads what this rank has staged.
bool SharedReduce::is_alone() const {
  return here_.local_count() == 1 && job_.wants_result(here_.rank);
}

// visit(data, at) for each contiguous part of the range of results, within this lane's share.
template <class Visit>
void SharedReduce::for_each_result(const Chunk& chunk, std::span<const Stretch> share, Range range,
                                   Visit visit) const {
  if (!is_alone()) {
    visit(own_stage(chunk) + range.begin * size_, range);
    return;
  }
  for (const Stretch& stretch : share) {
    const Range common = common_part(range, stretch.at);
    if (common.empty()) continue;
    visit(stretch.output + (common.begin - stretch.at.begin) * size_, common);
  }
}

TcpMesh::End SharedReduce::reduce_by_nodes(const Chunk& chunk, std::span<const Stretch> share,
                                           TimePoint deadline) {
  const Range whole = shape(chunk).share(here_.local);
  scratch_.partial.resize(std::max(scratch_.partial.size(), whole.size() * accumulator_size_));
  for (const Stretch& stretch : share) {
    char* const out =
        scratch_.partial.data() + (stretch.at.begin - whole.begin) * accumulator_size_;
    reduce_over_node(chunk, stretch, ReduceForm::kPartial, out, {});
  }
  if (const auto end = collect_pieces(chunk, deadline); end.how != WaitEnd::kReady) return end;
  if (is_reduced_on(here_.node)) reduce_over_nodes(chunk, share);
  return {};
}

// visit(data, at) for each contiguous part of the input of a rank of the node, within this
// lane's share.
template <class Visit>
void SharedReduce::for_each_input(const Chunk& chunk, std::span<const Stretch> share, int local,
                                  Range range, Visit visit) const {
  if (local != here_.local) {
    if (!range.empty()) visit(input_of(chunk, local, range.begin), range);
    return;
  }
  for (const Stretch& stretch : share) {
    const Range common = common_part(range, stretch.at);
    if (common.empty()) continue;
    visit(stretch.input + (common.begin - stretch.at.begin) * size_, common);
  }
}

Sendings SharedReduce::sends_first(const Chunk& chunk) {
  const std::vector<Stretch> share = own_share(chunk);
  const ChunkShape parts = shape(chunk);
  Sendings sendings;
  here_.for_each_other_node([&](int node) {
    for (int local = 0; local < here_.local_count() && is_reduced_on(node); ++local) {
      for_each_input(chunk, share, local, parts.piece(here_.local, node),
                     [&](const char* data, Range at) {
                       sendings.push_back({node, data, at.size() * size_});
                     });
    }
  });
  return sendings;
}

TcpMesh::End SharedReduce::collect_inputs(const Chunk& chunk, TimePoint deadline) {
  const std::size_t piece_bytes = shape(chunk).piece(here_.local, here_.node).size() * size_;
  const std::size_t ranks = here_.layout.world_size();
  scratch_.inbox.resize(std::max(scratch_.inbox.size(), piece_bytes * ranks));
  Receivings receivings;
  here_.for_each_other_node([&](int node) {
    if (!is_reduced_on(here_.node)) return;
    for (const int rank : here_.layout.nodes[node]) {
      receivings.push_back({node, scratch_.inbox.data() + rank * piece_bytes, piece_bytes});
    }
  });
  return here_.mesh->exchange(still_to_send(chunk), receivings, deadline);
}

TcpMesh::End SharedReduce::reduce_by_ranks(const Chunk& chunk, std::span<const Stretch> share,
                                           TimePoint deadline) {
  const auto collected = collect_inputs(chunk, deadline);
  if (collected.how != WaitEnd::kReady || !is_reduced_on(here_.node)) return collected;
  const Range piece = shape(chunk).piece(here_.local, here_.node);
  const std::size_t piece_bytes = piece.size() * size_;
  const int ranks = here_.layout.world_size();
  for_each_input(chunk, share, here_.local, piece, [&](const char* own, Range input) {
    for_each_result(chunk, share, input, [&](char* out, Range at) {
      Sources sources(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        sources[rank] =
            here_.on_my_node(rank)
                ? input_of(chunk, here_.layout.local_of[rank], at.begin)
                : scratch_.inbox.data() + rank * piece_bytes + (at.begin - piece.begin) * size_;
      }
      sources[here_.rank] = own + (at.begin - input.begin) * size_;
      job_.reduce(ReduceForm::kWhole, sources, at.size(), out, ranks);
    });
  });
  return {};
}

TcpMesh::End SharedReduce::collect_pieces(const Chunk& chunk, TimePoint deadline) {
  const ChunkShape parts = shape(chunk);
  const std::size_t share_begin = parts.share(here_.local).begin;
  const std::size_t piece_bytes = parts.piece(here_.local, here_.node).size() * accumulator_size_;
  scratch_.inbox.resize(std::max(scratch_.inbox.size(), piece_bytes * here_.layout.nodes.size()));
  Sendings sendings;
  Receivings receivings;
  here_.for_each_other_node([&](int node) {
    const Range piece = parts.piece(here_.local, node);
    if (is_reduced_on(node)) {
      sendings.push_back({node,
                          scratch_.partial.data() + (piece.begin - share_begin) * accumulator_size_,
                          piece.size() * accumulator_size_});
    }
    if (is_reduced_on(here_.node)) {
      receivings.push_back({node, scratch_.inbox.data() + node * piece_bytes, piece_bytes});
    }
  });
  return here_.mesh->exchange(sendings, receivings, deadline);
}

void SharedReduce::reduce_over_nodes(const Chunk& chunk, std::span<const Stretch> share) {
  const ChunkShape parts = shape(chunk);
  const Range piece = parts.piece(here_.local, here_.node);
  const std::size_t share_begin = parts.share(here_.local).begin;
  const std::size_t piece_bytes = piece.size() * accumulator_size_;
  for_each_result(chunk, share, piece, [&](char* out, Range at) {
    const std::size_t in_piece = (at.begin - piece.begin) * accumulator_size_;
    Sources sources(here_.layout.node_count());
    for (int node = 0; node < here_.layout.node_count(); ++node) {
      sources[node] = scratch_.inbox.data() + node * piece_bytes + in_piece;
    }
    sources[here_.node] = scratch_.partial.data() + (at.begin - share_begin) * accumulator_size_;
    job_.reduce(ReduceForm::kFinish, sources, at.size(), out, here_.layout.world_size());
  });
}

TcpMesh::End SharedReduce::spread_pieces(const Chunk& chunk, std::span<const Stretch> share,
                                         TimePoint deadline) {
  if (job_.by_rank() || is_repeated()) return {};  // a piece is already on the node of its ranks
  const ChunkShape parts = shape(chunk);
  const int root_node = job_.root < 0 ? -1 : here_.layout.node_of[job_.root];
  Sendings sendings;
  Receivings receivings;
  here_.for_each_other_node([&](int node) {
    if (root_node < 0 || root_node == node) {
      for_each_result(chunk, share, parts.piece(here_.local, here_.node),
                      [&](const char* data, Range at) {
                        sendings.push_back({node, data, at.size() * size_});
                      });
    }
    if (root_node < 0 || root_node == here_.node) {
      for_each_result(chunk, share, parts.piece(here_.local, node), [&](char* data, Range at) {
        receivings.push_back({node, data, at.size() * size_});
      });
    }
  });
  return here_.mesh->exchange(sendings, receivings, deadline);
}

void SharedReduce::copy_out(const Chunk& chunk) {
  if (in_heap() && here_.one_node()) return;    // every rank has written to every rank's tensor
  if (!here_.one_node() && is_alone()) return;  // the results have arrived in place
  const Range whole = plan_.at(chunk.index);
  const ChunkShape parts = shape(chunk);
  if (job_.by_rank()) {
    const char* const from = here_.stage(here_.layout.lane_of(here_.rank), chunk.number);
    job_.output.copy_from(from + parts.block(here_.rank).begin * size_, in_bytes(whole, size_),
                          here_.result_copy(job_.bytes_by_rank()));
    return;
  }
  if (!job_.wants_result(here_.rank)) return;
  for (int lane = 0; lane < here_.layout.lanes; ++lane) {
    if (here_.one_node() && lane == here_.local) continue;  // it was reduced into the output
    const Range share = parts.share(lane);
    job_.data.copy_from(here_.stage(lane, chunk.number) + share.begin * size_,
                        in_bytes({whole.begin + share.begin, whole.begin + share.end}, size_));
  }
}

}  // namespace ddprun
