// Ranks that share the first GPU, as threads of one process, for tests. Without this they would
// wait for each other for ever: a kernel of NCCL's runs until those of the other ranks have come,
// so nothing that a rank does before its own may wait for the device, or for another rank's stream.
//
// - A rank's thread has a stream of its own as the current one: the default one is all threads'.
// - Streams have hardware queues of their own, as far as there are any: what waits at the head of a
//   queue holds up the other streams in it.
// - NCCL takes few of the GPU's processors, so that the kernels of all ranks run at the same time.
// - Kernels are loaded when CUDA begins, and ranks find memory that the allocators have got before:
//   to load a kernel, or to get memory, may wait until the device is idle.
//
// The second to fourth are variables of the environment, set before main(); those that the user has
// set stay as they are. What NCCL itself does with several communicators of one process on one
// device is its own.
#pragma once

#include <torch/types.h>

#include <string>

#include "tests/support/rank_threads.h"

namespace ddprun {

inline const torch::Device kFirstGpu(torch::kCUDA, 0);

// Why so many ranks cannot share the first GPU by NCCL; empty: they can. One needs only the GPU.
std::string why_no_ranks_on_gpu(int ranks);

// Gets memory for so many ranks, of which there are none yet. REQUIRES: there is a GPU.
void prepare_gpu_for(int ranks);
// The calling thread is this rank's from now on. REQUIRES: prepare_gpu_for().
void become_rank_on_gpu(int rank);

// As run_ranks().
template <class Body>
void run_ranks_on_gpu(int size, const Body& body) {
  prepare_gpu_for(size);
  testing_support::run_ranks(size, [&body](int rank) {
    become_rank_on_gpu(rank);
    body(rank);
  });
}

}  // namespace ddprun
