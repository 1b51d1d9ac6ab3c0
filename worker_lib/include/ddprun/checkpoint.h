// CheckpointManager: the state of a training on disk, so that a job that was killed goes on where
// it was and ends with the same bits.
//
//   ddprun::CheckpointManager checkpoints(ctx, {.directory = "run1"});
//   ddprun::TrainingState state{
//       .model = net.get(), .optimizer = &optimizer, .sampler = &sampler};
//   std::int64_t step = 0;
//   if (auto restored = checkpoints.restore(state)) step = restored.step;
//   ...
//   if (++step % 100 == 0) checkpoints.save(step, state);  // after a step
//   ...
//   checkpoints.wait();  // at the end
//
// One file for each checkpoint, which Python reads: torch.load(file, weights_only=True) gives a
// dict with "model" (a state dict), "optimizer" (one that Python's optimizer loads),
// "optimizer_class", "lr_scheduler" (one that Python's scheduler loads), "lr_scheduler_class",
// "epoch", "step", "rng" (per rank), "sampler", "extra", "world_size", "generation", "threads",
// "data", and where they are: "comm_hook", "averager", "gradients", "ranks" (what ranks have of
// their own), "models", "optimizers", "optimizer_classes", "lr_schedulers", "lr_scheduler_classes",
// "tensors" (by name), "batch_size". A manifest with size and SHA-256 is written last: a checkpoint
// exists iff its manifest is whole and the file matches. docs/checkpoints.md has the format and the
// guarantees.
//
// save(), maybe_save(), wait() and restore() are collective: every rank calls them at the same point,
// like the collectives of a ProcessGroup. Rank 0 writes, in the background unless the options say
// otherwise: the training stops for a copy of the state in memory only. With `sharded` every rank
// writes a share. Every rank reads, so the directory must be one that all ranks see.
//
// The thread that trains owns a manager; the group must outlive it. Rank 0 holds a copy of the state
// for background saves; each rank that restores holds a whole file in memory meanwhile.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/comm_hook.h"
#include "ddprun/context.h"
#include "ddprun/lr_scheduler.h"
#include "ddprun/process_group.h"
#include "ddprun/sampler.h"

namespace ddprun {

struct CheckpointOptions {
  std::string directory;  // is created by rank 0 where it is missing
  int keep_last = 3;      // the newest ones that a save leaves, at least 1
  // Those with the best TrainingState::metric, which a save leaves as well; 0: goodness does not count.
  int keep_best = 0;
  bool higher_is_better = false;  // metric: an accuracy rather than a loss
  // Whether save() returns when the state is copied, and a thread of rank 0 writes it. A write that fails is
  // then thrown by the next call of the manager.
  bool asynchronous = true;
  // What a save does while the last one is still being written: waits for it, or saves nothing.
  bool skip_when_busy = false;
  // When maybe_save() saves: every so many steps, and when so much time has gone since the last save;
  // 0: not for this reason.
  std::int64_t every_steps = 0;
  Timeout every{0};
  // How long ranks wait for each other's disks: for rank 0's write in save(), for everybody's
  // reading in restore(). Longer than the group's timeout as a rule, which is for the network.
  Timeout disk_timeout = std::chrono::minutes(30);
  // Whether each rank writes its share of the state into a file of its own, all at the same time:
  // for states that take one rank too long. A checkpoint counts when all of them are there.
  // `ddprun-ckpt merge` makes the one file of them. The same on every rank; the constructor is a
  // collective call then, and the group one of a Context.
  bool sharded = false;
  // Only restore() and best() are called: the directory may be read-only, and another run may save
  // into it.
  bool read_only = false;
};

// In what the ranks may differ between steps. That is compared by hash when a checkpoint is saved,
// and what is not rank 0's is saved for each rank.
enum class RanksDiffer {
  kNowhere,    // nothing is compared: rank 0's state is everybody's before it is used
  kInBuffers,  // BatchNorm's statistics, with broadcast_buffers off or without DDP
  kAnywhere,   // parameters and the optimizer's state, too: ignored_names, local SGD
};

// What a checkpoint holds: the live objects, which save() reads and restore() fills, and two
// values. The pointers are borrowed for the call; those that are null are left out.
struct TrainingState {
  torch::nn::Module* model = nullptr;
  // SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS or ddprun::Adadelta.
  torch::optim::Optimizer* optimizer = nullptr;
  SavedScheduler* scheduler = nullptr;  // an LRScheduler or a ReduceLROnPlateau
  DistributedSampler* sampler = nullptr;
  std::int64_t epoch = 0;
  nlohmann::json extra = {};  // anything else that the program wants back
  // How good the model is (a validation loss, an accuracy), for keep_best. restore() leaves it alone; what
  // is not finite counts as none. Set it for the save of the model that was measured and reset() it then:
  // the next save would claim it for a model that has been trained on.
  std::optional<double> metric = {};
  // What the training data is, in words that change with it (a name and a version, a digest). restore()
  // refuses a checkpoint that was saved with other ones; empty: not compared.
  std::string data = {};
  // The model's communication hook, if it carries something from pass to pass (PowerSgd,
  // PostLocalSgd). Needs `model`.
  CommHook* hook = nullptr;
  PeriodicModelAverager* averager = nullptr;
  // Costs nothing for a model without buffers, else a hash of them on each rank. Where DDP
  // broadcasts buffers before each forward, those of other ranks need not be saved: kNowhere makes
  // the file smaller. A hook that lets the ranks drift apart (PostLocalSgd) counts as kAnywhere.
  RanksDiffer ranks_differ = RanksDiffer::kInBuffers;
  // The parameters' .grad belong to the state: each rank's own, for a save in the middle of an
  // accumulation, after passes in no_sync(). restore() fills .grad if the checkpoint has them, and
  // says so here.
  bool gradients = false;
  // More of each, by name: the networks of a GAN, averaged weights, a teacher, an actor and a critic, with
  // or without the ones above. They are saved with everything else as one checkpoint. A name is not
  // empty and has no '/'. restore() needs every name in the file. Names that are only in the file
  // are an error, because the next save would drop them; with the option read_only they are a
  // remark.
  std::map<std::string, torch::nn::Module*> models = {};
  std::map<std::string, torch::optim::Optimizer*> optimizers = {};
  std::map<std::string, SavedScheduler*> schedulers = {};
  // The program's own (fixed noise, a queue, a replay buffer). restore() copies into them; an undefined
  // one becomes a tensor of its own, on the CPU. What ranks have of their own is saved for each.
  std::map<std::string, torch::Tensor> tensors = {};
  // Whether a resumed run needs a position in its data. save() then warns once if `sampler` is null
  // or does not move. Set it to false for generated data, or if `extra` holds the position.
  bool has_position = true;
  // Samples in a batch, by the program's own count; 0: not given. restore() adds a remark if the
  // saved number is another one. Needed only for loaders that are not made by make_data_loader()
  // with `sampler`: of these the size is known.
  std::int64_t batch_size = 0;
};

// What restore() did.
struct Restored {
  std::string file;       // of shards the first; empty: there was nothing whole to restore
  std::int64_t step = 0;  // steps that were done when it was saved
  // One line for each newer checkpoint that was passed over: which, and why.
  std::vector<std::string> skipped;
  // One line for each thing that is another than it was when it was saved, and may be.
  std::vector<std::string> remarks;
  explicit operator bool() const { return !file.empty(); }
};

// What maybe_save() did.
struct MaybeSaved {
  bool saved = false;
  // Somebody asked to save and to leave (ddprun --checkpoint-signal): it is saved and on the disk, and every
  // rank should end with 0, which makes ddprun end with 75, "start the job again".
  bool leave = false;
};

// SHA-256 over the names, dtypes, shapes and bytes of a module's parameters and buffers, as 64
// hexadecimal digits: equal exactly when two modules are equal bit for bit.
std::string digest_of(const torch::nn::Module& module);

class CheckpointManager {
 public:
  // On rank 0, takes the directory: from now on no earlier run can announce a checkpoint in it,
  // such as one of a generation that was cut off. Removes what saves that were killed left there.
  // Throws kInvalidArgument for options that cannot be meant, kSystem if the directory cannot be
  // made or written, kStopped if another job has taken it from an earlier generation of this one.
  CheckpointManager(Context& context, const CheckpointOptions& options);
  // For a group without a Context.
  // announce: called on rank 0 when a checkpoint is whole, with its step, by the thread that wrote it;
  // empty: nobody is told.
  CheckpointManager(ProcessGroup& group, std::int64_t generation, const CheckpointOptions& options,
                    std::function<void(std::int64_t step)> announce = {});
  // Waits until what is being written is on the disk. That it cannot be written is a warning then.
  ~CheckpointManager();
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;

  // Writes a checkpoint of `step` (steps done so far): rank 0's model, buffers, optimizer, schedule
  // and sampler, of the others what differs (TrainingState::ranks_differ), and the random generator
  // of every rank (its CPU's, and that of the group's GPU). When it is on the disk it is announced,
  // older ones than the last `keep_last` and the best `keep_best` are removed, and those that
  // restore() passed over.
  // asynchronous: returns when rank 0 has copied the state (of shards: each rank its share).
  // Otherwise when it is announced and on the disk.
  // Returns false if nothing was saved because the last save is still being written
  // (skip_when_busy).
  // Throws on every rank, naming file and cause, when it or the one before cannot be written;
  // earlier checkpoints are then as they were.
  // kInvalidArgument if the ranks differ in `step`, epoch or the sampler's position, or if the directory holds a later step that
  // this run did not restore (it belongs to another run, and would be restored instead);
  // kUnsupported for another optimizer; kStopped if a later run has taken the directory.
  bool save(std::int64_t step, const TrainingState& state);

  // Call it after each step. Saves if `every_steps` or `every` says so, or if ddprun asks for it
  // (--checkpoint-signal); in the latter case it waits until the checkpoint is on the disk.
  // With `every` or --checkpoint-signal each call starts a small all-reduce and does not wait for
  // it: the next call uses its result, so such a save comes one step late (in a world of one at
  // once).
  // Without them, a call that saves nothing does not communicate.
  // Returns and throws the same on every rank. If the training continues after `leave`, it warns
  // once; later calls save by `every_steps` and `every` only.
  [[nodiscard]] MaybeSaved maybe_save(std::int64_t step, const TrainingState& state);

  // Returns on every rank when all that was saved is announced and on the disk. Throws on every rank when it
  // cannot be written.
  void wait();

  // The file of the checkpoint in the directory that has the best metric; empty where none has. Not
  // collective; throws kSystem if the directory cannot be read.
  std::string best() const;

  // Fills `state` and this rank's random generators from the newest checkpoint that every rank can
  // read whole; damaged ones are passed over. The world may have another size than the one that saved
  // it: the sampler deals what is left of the epoch to it, ranks that there were not get random
  // numbers of their own, and what ranks had of their own is rank 0's for all (gradients, and what
  // a hook carries: the average). DistributedDataParallel's constructor makes parameters and
  // buffers rank 0's: make it before. Throws on every rank: kSystem if a file cannot be read for
  // another reason (rights, a failing disk), or if some ranks have checkpoints and no two the same
  // (a directory that is not shared); kInvalidArgument if it belongs to another model, optimizer or
  // data, kUnsupported if to another format. Names are compared before anything is filled. After
  // the other failures of these two kinds `state` may be filled in part and must not be trained on.
  Restored restore(TrainingState& state);

 private:
  // job: of a Context, the same in all its generations; empty: not known.
  CheckpointManager(ProcessGroup& group, std::int64_t generation, const CheckpointOptions& options,
                    std::function<void(std::int64_t step)> announce, const std::string& job);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
