// Context: what a worker is part of, and the owner of everything in it (there are no globals).
//
//   auto ctx = ddprun::init();
//   torch::nn::Linear model(4, 2);
//   ctx.group().all_reduce(tensor);
//
// init() reads what ddprun (or torchrun) wrote into the environment; docs/worker_environment.md
// lists it, and says how ranks are started without a launcher (docs/start_by_hand.md is the
// how-to). A program without any of it is a world of one and needs no store. Keep the Context alive
// as long as anything made from it. One thread makes and destroys it; its getters may be called
// from any thread.
//
// Random numbers: a program that calls torch::manual_seed(1) on every rank draws the same dropout masks and
// the same noise on every rank, so that the world trains on fewer different samples than it seems to. Call
//   ctx.manual_seed(1);
// instead, once, before the model is made. DistributedDataParallel makes the weights rank 0's anyway.
//
// Where rank 0 hosts the store (no launcher does), its Context's end waits for the others' ends, a
// minute at most, because they may still form groups; not where the group has failed, or while an
// exception passes. When its Context has ended, a process may call init() again, if all ranks do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/backend_kind.h"
#include "ddprun/nccl_backend.h"
#include "ddprun/process_group.h"
#include "ddprun/store.h"

namespace ddprun {

class BackendFactory;

struct InitOptions {
  // cpu or cuda[:n]. Default: cuda:(local rank modulo device count) when there is a GPU and the
  // program links ddprun::worker_cuda, else cpu. Other devices need a backend that takes them.
  std::optional<torch::Device> device = {};
  // One backend, "cpu", "nccl" or one of more_backends, or one for each type of device,
  // "cpu:cpu,cuda:nccl", as PyTorch has it. Default: cpu for tensors on the cpu and, where the device is a
  // GPU, nccl for tensors on GPUs. "nccl" without a GPU, or in a program that links only ddprun::worker,
  // throws kUnsupported. The cpu backend takes tensors on GPUs, too: they travel through the host, so that
  // several ranks can share a GPU, and programs without NCCL work.
  std::optional<std::string> backend = {};
  // Backends of the program's own, by name.
  std::vector<BackendKind> more_backends = {};
  // Deadline of forming the group and of every collective that gives none. Default: DDPRUN_TIMEOUT, in
  // seconds, else as PyTorch's: 10 minutes where nccl carries this rank's device, 30 elsewhere.
  std::optional<Timeout> timeout = {};

  // The cpu backend's reductions give the same bits for every split of the ranks over nodes, for more bytes
  // between nodes (docs/collectives.md, "The same bits"). The same on all ranks.
  bool deterministic_across_layouts = false;
  // The nccl backend compares what the ranks call, beside the calls (docs/collectives.md, "The nccl
  // backend"): ranks that disagree hear of it within a second, instead of a hang. The cpu backend always does.
  bool compare_calls = true;
  // Default: what DDPRUN_VERIFY says.
  std::optional<Verify> verify = {};

  // Where the ranks meet, as torch.distributed.init_process_group has it:
  //   "env://"           RANK, WORLD_SIZE, MASTER_ADDR (127.0.0.1), MASTER_PORT (29500)
  //   "tcp://host:port"  rank 0 hosts the store there
  //   "file:///path"     a file that all ranks see; rank 0 hosts a store and writes where into it
  // Default: "env://".
  // With env:// rank 0 hosts the store, too, where no launcher does. Rank 0 uses a ddp-store that
  // listens there already.
  std::optional<std::string> init_method = {};
  // This rank's place; goes over RANK and WORLD_SIZE. Needed by all methods but env:// and by
  // `store`; an init_method may end with ?rank=R&world_size=N instead.
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // Where the ranks meet instead of an init_method: a store of the program's own. One world at a
  // time meets in it.
  std::shared_ptr<Store> store = {};
  // How the others reach this rank: an address, a network (10.1.0.0/16), an interface (ib0) or a
  // name. Default: the address on the way to the store; where this does not tell, that of the
  // default route.
  std::optional<std::string> local_address = {};
};

class Context {
 public:
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  int rank() const;
  int world_size() const;
  int local_rank() const;
  int local_world_size() const;
  int node_rank() const;
  // Number of this forming of the world, from 0: more than 0 after a restart.
  long generation() const;
  int restart_count() const;
  const std::string& run_id() const;
  torch::Device device() const;

  // The group of all ranks.
  ProcessGroup& group();

  // Seeds LibTorch's random generators, of the CPU and of every GPU, with seed + rank: each rank draws numbers
  // of its own (dropout, noise, augmentation), the same ones in every run. Rank 0 draws what
  // torch::manual_seed(seed) gives. Weights that are drawn afterwards differ by rank, until
  // DistributedDataParallel or a broadcast makes them rank 0's. What all ranks must draw alike (a sampler's
  // order) takes a seed of its own. A checkpoint holds the generators of every rank.
  void manual_seed(std::uint64_t seed) const;

  // The group of these ranks, in ascending order; null on ranks that are not among them. Only members
  // need to call it; they call it in the same order where they make several groups of the same ranks. It
  // blocks until all have come. The group works beside others, with an order of calls of its own, and
  // must end before the Context. One thread at a time makes groups. Throws kInvalidArgument for ranks
  // that the world does not have or that are there twice, kTimeout with the ranks that did not come.
  std::unique_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const GroupOptions& options = {});

  // Whether any rank was asked to save and to leave (ddprun --checkpoint-signal): then all of them
  // should save a checkpoint and end with 0, which makes ddprun end with 75, "start the job again".
  // A collective call: every rank makes it at the same point and gets the same answer, so it is one
  // small all-reduce; without --checkpoint-signal it costs nothing. Throws DistError as a collective does.
  bool save_requested();
  // Whether save_requested() may ever say so: ddprun was started with --checkpoint-signal. The same on every
  // rank, and costs nothing.
  bool may_be_asked_to_save() const;

  // Tells ddprun how far this rank is: steps done so far, which grow. For --hang-timeout, which counts
  // from the first report on, --restart-on-progress, and the steps a second of the status line; call it
  // once in each step. Costs some nanoseconds, no system call; without ddprun it does nothing. Any thread.
  void report_progress(std::int64_t step);
  // Tells ddprun that this rank is at work, where no step comes for a while (an evaluation, a long
  // preparation). Calls into the group, DistributedDataParallel's forward and CheckpointManager's
  // reading and writing say so by themselves. Cost and thread as above.
  void report_activity();

  // Tells ddprun that the checkpoint of `step` is whole: jobs of --on-join=checkpoint take in new
  // nodes then. To be called by one rank; CheckpointManager does it by itself. Blocks for some
  // milliseconds, for seconds where the store does not answer; that is a warning, never an error. Does
  // nothing without ddprun. The function may outlive the context.
  std::function<void(std::int64_t step)> checkpoint_announcer() const;

 private:
  friend Context init_with(const InitOptions& options, BackendFactory* nccl);
  struct Impl;
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Makes the group over all ranks; a collective call. `nccl` makes the nccl backend, null where the
// program was not linked with it. Use init().
Context init_with(const InitOptions& options, BackendFactory* nccl);

// Reads the environment, chooses device and backend, and forms the group over all ranks. Throws
// DistError: kInvalidArgument names a bad variable or option, kConnection or kTimeout the store or
// the rank that did not come, or who else is where the ranks meet.
inline Context init(const InitOptions& options = {}) {
#ifdef DDPRUN_WORKER_CUDA
  return init_with(options, nccl_backend_factory());
#else
  return init_with(options, nullptr);
#endif
}

}  // namespace ddprun
