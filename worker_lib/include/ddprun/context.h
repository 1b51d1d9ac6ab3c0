// Context: a worker's place in the job. It owns the group, the store and everything else that
// belongs to the worker. There are no globals.
//
//   auto ctx = ddprun::init();
//   torch::nn::Linear model(4, 2);
//   ctx.group().all_reduce(tensor);
//
// init() reads the environment variables that ddprun (or torchrun) set.
// docs/reference/worker_environment.md lists them. docs/how-to/start_by_hand.md says how to start
// ranks without a launcher. A program without these variables is a world of one rank and needs no
// store. Keep the Context alive as long as anything made from it. One thread makes and destroys the
// Context. Its getters may be called from any thread.
//
// Random numbers: a program that calls torch::manual_seed(1) on every rank draws the same
// dropout masks and the same noise on every rank. The world then trains on fewer different
// samples than it seems to. Instead, call
//   ctx.manual_seed(1);
// once, before the model is made. DistributedDataParallel makes all weights equal to rank 0's in
// any case.
//
// Without a launcher, rank 0 may host the store. Then its Context's destructor waits until the
// other ranks' Contexts have ended, for at most a minute. The others may still form groups until
// then. It does not wait if the group has failed or if an exception is propagating. After its
// Context has ended, a process may call init() again, if all ranks do.
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
  // cpu or cuda[:n]. Default: cuda:(local rank modulo device count) if there is a GPU and the
  // program links ddprun::worker_cuda, else cpu. Other devices need a backend that supports
  // them.
  std::optional<torch::Device> device = {};
  // Either one backend ("cpu", "nccl" or one of more_backends), or one for each type of device,
  // as in PyTorch: "cpu:cpu,cuda:nccl". Default: cpu for tensors on the CPU and, if `device` is
  // a GPU, nccl for tensors on GPUs. "nccl" throws kUnsupported without a GPU, and in a program
  // that links only ddprun::worker. The cpu backend takes tensors on GPUs, too, and copies them
  // through the host. With it several ranks can share a GPU, and programs work without NCCL.
  std::optional<std::string> backend = {};
  // Backends that the program implements, by name.
  std::vector<BackendKind> more_backends = {};
  // Deadline of forming the group, and of every collective that gives none. Default:
  // DDPRUN_TIMEOUT, in seconds. Without it the default is PyTorch's: 10 minutes if nccl serves
  // this rank's device, else 30.
  std::optional<Timeout> timeout = {};

  // The cpu backend's reductions give the same bits for every split of the ranks over nodes, at the
  // cost of more bytes between nodes (docs/concepts/determinism.md). Must be the
  // same on all ranks.
  bool deterministic_across_layouts = false;
  // The nccl backend compares the calls of the ranks in the background
  // (docs/concepts/collectives.md, "The nccl backend"). Ranks whose calls disagree get an error
  // within a second instead of a hang. The cpu backend always compares.
  bool compare_calls = true;
  // Default: the value of DDPRUN_VERIFY.
  std::optional<Verify> verify = {};

  // How the ranks find each other, as in torch.distributed.init_process_group:
  //   "env://"           RANK, WORLD_SIZE, MASTER_ADDR (127.0.0.1), MASTER_PORT (29500)
  //   "tcp://host:port"  rank 0 hosts the store there
  //   "file:///path"     a file that all ranks see; rank 0 hosts a store and writes its address
  // Default: "env://". With env://, too, rank 0 hosts the store if no launcher does. If a
  // ddp-store already listens at the address, rank 0 uses it.
  std::optional<std::string> init_method = {};
  // This rank and the number of ranks; they override RANK and WORLD_SIZE. Required with `store`
  // and with all methods but env://. An init_method may end with ?rank=R&world_size=N instead.
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // A store of the program's own, through which the ranks find each other instead of an
  // init_method. It serves one world at a time.
  std::shared_ptr<Store> store = {};
  // How the other ranks reach this one: an address, a network (10.1.0.0/16), an interface (ib0)
  // or a name. Default: the local address of the route to the store. If that does not tell, the
  // address of the default route.
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
  // Returns the number of this forming of the world, from 0; above 0 after a restart.
  long generation() const;
  int restart_count() const;
  const std::string& run_id() const;
  torch::Device device() const;

  // Returns the group of all ranks.
  ProcessGroup& group();

  // Seeds LibTorch's random generators, of the CPU and of every GPU, with seed + rank. Each rank
  // then draws its own numbers (dropout, noise, augmentation), the same ones in every run. Rank
  // 0 draws what torch::manual_seed(seed) gives. Weights drawn afterwards differ by rank, until
  // DistributedDataParallel or a broadcast makes them equal to rank 0's. What all ranks must
  // draw alike (a sampler's order) takes a separate seed. A checkpoint holds the generators of
  // every rank.
  void manual_seed(std::uint64_t seed) const;

  // Returns the group of these ranks, in ascending order; null on ranks that are not members.
  // Only members need to call it. If they make several groups of the same ranks, they make them
  // in the same order. Blocks until all members have called it. The group has its own order of
  // calls and works concurrently with other groups. It must end before the Context. One thread
  // at a time makes groups.
  //
  // Throws kInvalidArgument for ranks that the world does not have and for ranks given twice.
  // Throws kTimeout with the ranks that did not come.
  std::unique_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const GroupOptions& options = {});

  // Returns whether any rank was asked to save and to exit (ddprun --checkpoint-signal). If so,
  // all ranks should save a checkpoint and exit with 0. ddprun then exits with 75, "start the
  // job again". This is a collective call: every rank makes it at the same point and gets the
  // same answer. It is one small all-reduce; without --checkpoint-signal it costs nothing.
  // Throws DistError as a collective does.
  bool save_requested();
  // Returns whether save_requested() can ever return true: ddprun was started with
  // --checkpoint-signal. The same on every rank. Costs nothing.
  bool may_be_asked_to_save() const;

  // Reports the progress of this rank to ddprun: the number of steps done so far, which must grow.
  // --hang-timeout, --restart-on-progress and the steps per second of the status line use it.
  // --hang-timeout counts from the first report on. Call it once in each step. Costs some
  // nanoseconds and no system call; does nothing without ddprun. Any thread.
  // total: the number of steps of the whole training. With it ddprun says how long the rest will
  // take. 0 or less: it is not known, or it was said before.
  void report_progress(std::int64_t step, std::int64_t total = 0);
  // Reports to ddprun that this rank is at work where no step is reported for a while (an
  // evaluation, a long preparation). Calls into the group, DistributedDataParallel's forward,
  // and reads and writes of CheckpointManager report activity by themselves. Cost and thread
  // rule as above.
  void report_activity();

  // Returns a function that tells ddprun that the checkpoint of `step` is complete. Jobs with
  // --on-join=checkpoint admit new nodes then. One rank calls the function; CheckpointManager
  // does so by itself. It blocks for some milliseconds, or for seconds if the store does not
  // answer. That is a warning, never an error. Does nothing without ddprun. The function may
  // outlive the Context.
  std::function<void(std::int64_t step)> checkpoint_announcer() const;

 private:
  friend Context init_with(const InitOptions& options, BackendFactory* nccl);
  struct Impl;
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Makes the group over all ranks; a collective call. `nccl` makes the nccl backend; null if the
// program was not linked with it. Programs call init() instead.
Context init_with(const InitOptions& options, BackendFactory* nccl);

// Reads the environment, chooses device and backend, and forms the group over all ranks. Throws
// DistError. kInvalidArgument names a bad variable or option. kConnection and kTimeout name the
// store, the rank that did not come, or another world that uses the same address, file or store.
inline Context init(const InitOptions& options = {}) {
#ifdef DDPRUN_WORKER_CUDA
  return init_with(options, nccl_backend_factory());
#else
  return init_with(options, nullptr);
#endif
}

}  // namespace ddprun
