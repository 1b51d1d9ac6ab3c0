// in_a_world_of(): Contexts on the cpu backend whose ranks are threads of this process, for
// tests that need a Context. The groups of these Contexts can be split.
#pragma once

#include <ATen/Parallel.h>

#include <memory>

#include "ddprun/context.h"
#include "tests/support/eventually.h"
#include "tests/support/map_store.h"
#include "tests/support/rank_threads.h"

namespace ddprun::testing_support {

// Forms the Context of this rank, whose thread calls it. store: of all ranks.
inline Context context_of(int rank, int size, const std::shared_ptr<MapStore>& store) {
  at::set_num_threads(1);
  return init_with({.device = torch::kCPU,
                    .timeout = kPatience,
                    .rank = rank,
                    .world_size = size,
                    .store = store},
                   nullptr);
}

// Runs body(context) on every rank. A barrier at the end makes each rank wait for the others.
template <class Body>
void in_a_world_of(int size, Body body) {
  const auto store = std::make_shared<MapStore>();
  run_ranks(size, [&](int rank) {
    Context context = context_of(rank, size, store);
    body(context);
    context.group().barrier();
  });
}

}  // namespace ddprun::testing_support
