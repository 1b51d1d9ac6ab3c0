// For tests: ranks that share the first GPU, as threads of one process. Without this setup the
// ranks would wait for each other for ever. A kernel of NCCL runs until the kernels of all
// other ranks have started. So whatever a rank does before it starts its kernel must not wait
// for the device or for another rank's stream.
//
// - The thread of a rank has its own current stream, because all threads share the default
//   stream.
// - Streams have their own hardware queues, as far as the GPU has enough of them. An operation
//   that waits at the head of a queue delays all other streams of that queue.
// - NCCL uses few of the GPU's multiprocessors, so that the kernels of all ranks can run at the
//   same time.
// - Kernels are loaded when CUDA starts, and the allocators hold memory before the ranks start.
//   Loading a kernel or allocating memory may otherwise wait until the device is idle.
//
// The second, third and first half of the fourth point are environment variables. They are set
// before main(), and values that the user has set stay as they are. How NCCL itself handles
// several communicators of one process on one device is not changed.
#pragma once

#include <torch/types.h>

#include <string>

#include "tests/support/rank_threads.h"

namespace ddprun {

inline const torch::Device kFirstGpu(torch::kCUDA, 0);

// Returns why `ranks` ranks cannot share the first GPU through NCCL, or an empty text if they
// can. One rank needs only the GPU.
std::string why_no_ranks_on_gpu(int ranks);

// Allocates memory for `ranks` ranks. Call it before there are ranks. REQUIRES: there is a GPU.
void prepare_gpu_for(int ranks);
// Makes the calling thread the thread of this rank. REQUIRES: prepare_gpu_for().
void become_rank_on_gpu(int rank);

// Runs the ranks as run_ranks() does, on the GPU.
template <class Body>
void run_ranks_on_gpu(int size, const Body& body) {
  prepare_gpu_for(size);
  testing_support::run_ranks(size, [&body](int rank) {
    become_rank_on_gpu(rank);
    body(rank);
  });
}

}  // namespace ddprun
