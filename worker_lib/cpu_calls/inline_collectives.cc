#include "worker_lib/cpu_calls/inline_collectives.h"

#include <vector>

#include "base/cache_line.h"

namespace ddprun {

// --- InlineReduce ---

void InlineReduce::stage(const Chunk& chunk) {
  job_.data.copy_to(own_stage(chunk), {0, job_.data.bytes()});
}

void InlineReduce::copy_out(const Chunk&) {
  if (!job_.wants_result(here_.rank)) return;
  alignas(kCacheLineBytes) char result[sizeof(Arrival::bytes)];
  here_.in_rank_order ? reduce_by_ranks(result) : reduce_by_nodes(result);
  job_.data.copy_from(result, {0, job_.data.bytes()});
}

void InlineReduce::reduce_by_ranks(char* out) const {
  std::vector<const void*> sources;
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    sources.push_back(here_.arrival_of(rank).bytes);
  }
  job_.reduce(ReduceForm::kWhole, sources, job_.count(), out, here_.layout.world_size());
}

void InlineReduce::reduce_by_nodes(char* out) const {
  const std::size_t partial_bytes = job_.count() * size_of(accumulator_of(job_.type));
  std::vector<char> partials(here_.layout.nodes.size() * partial_bytes);
  std::vector<const void*> of_nodes;
  for (int node = 0; node < here_.layout.node_count(); ++node) {
    std::vector<const void*> of_ranks;
    for (int local = 0; local < here_.layout.local_count(node); ++local) {
      of_ranks.push_back(here_.arrivals_of(node)[local].bytes);
    }
    char* const partial = partials.data() + of_nodes.size() * partial_bytes;
    job_.reduce(ReduceForm::kPartial, of_ranks, job_.count(), partial, here_.layout.world_size());
    of_nodes.push_back(partial);
  }
  job_.reduce(ReduceForm::kFinish, of_nodes, job_.count(), out, here_.layout.world_size());
}

// --- InlineBroadcast ---

void InlineBroadcast::stage(const Chunk& chunk) {
  if (here_.rank == root_) {
    data_.copy_to(own_stage(chunk), {0, data_.bytes()});
  }
}

void InlineBroadcast::copy_out(const Chunk&) {
  if (here_.rank != root_) data_.copy_from(here_.arrival_of(root_).bytes, {0, data_.bytes()});
}

// --- InlineGather ---

void InlineGather::stage(const Chunk& chunk) {
  input_.copy_to(own_stage(chunk), {0, input_.bytes()});
}

void InlineGather::copy_out(const Chunk&) {
  for (std::size_t rank = 0; rank < outputs_.size(); ++rank) {
    outputs_[rank].copy_from(here_.arrival_of(static_cast<int>(rank)).bytes,
                             {0, outputs_[rank].bytes()});
  }
}

}  // namespace ddprun
