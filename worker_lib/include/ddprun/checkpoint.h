// CheckpointManager: saves the state of a training on disk. A job that was killed continues from
// there and ends with the same bits.
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
// Each checkpoint is one file, which Python reads: torch.load(file, weights_only=True) gives a
// dict with "model" (a state dict), "optimizer" (one that Python's optimizer loads),
// "optimizer_class", "lr_scheduler" (one that Python's scheduler loads), "lr_scheduler_class",
// "epoch", "step", "rng" (per rank), "sampler", "extra", "world_size", "generation", "threads"
// and "data". If they exist, it also has "comm_hook", "averager", "gradients", "ranks" (state of
// single ranks), "models", "optimizers", "optimizer_classes", "lr_schedulers",
// "lr_scheduler_classes", "tensors" (by name) and "batch_size". A manifest with size and SHA-256
// is written last. A checkpoint exists iff its manifest is complete and the file matches.
// docs/concepts/checkpoints.md has the guarantees, docs/reference/file_formats.md the format.
//
// save(), maybe_save(), wait() and restore() are collective: every rank calls them at the same
// point, like the collectives of a ProcessGroup. A small state is written by rank 0, a large one by
// all ranks, each its share of the one file. With `sharded` each rank writes a file of its own.
// This happens in the background unless the options say otherwise; the training stops only to copy
// the share in memory. Every rank reads, so all ranks must see the directory.
//
// The thread that trains owns a manager. The group must outlive it. For background saves each rank
// holds a copy of its share. During restore() each rank needs 64 MiB beyond its tensors.
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
  std::string directory;  // rank 0 creates it if it is missing
  int keep_last = 3;      // a save keeps the newest ones: this number, at least 1
  // A save also keeps this number of checkpoints with the best TrainingState::metric. 0: the
  // metric is ignored.
  int keep_best = 0;
  bool higher_is_better = false;  // metric: an accuracy rather than a loss
  // save() returns when the state is copied, and a thread writes it. The next call of the manager
  // throws if the write failed.
  bool asynchronous = true;
  // Whether a save is skipped while the last one is still being written. False: it waits. True: it
  // saves nothing.
  bool skip_when_busy = false;
  // When maybe_save() saves: after this number of steps, and after this time since the last
  // save. 0: not for this reason.
  std::int64_t every_steps = 0;
  Timeout every{0};
  // Timeout for waits for other ranks' disks: for rank 0's write in save(), and for the reads of
  // all ranks in restore(). Usually longer than the group's timeout, which is for the network.
  Timeout disk_timeout = std::chrono::minutes(30);
  // Each rank writes its share of the state into its own file, all at the same time; for states
  // that take one rank too long. A checkpoint counts when all shares are there. `ddprun-ckpt
  // merge` makes one file of them. Must be the same on every rank. The constructor is then a
  // collective call, and the group must be a Context's.
  bool sharded = false;
  // Without `sharded`: from this size of the model's parameters on, in bytes, all ranks write the
  // one file together, each its share. This needs a Context's group that takes tensors on CPUs.
  // Each then needs memory and time for its share only. A smaller state is written by rank 0. 0:
  // always together. Must be the same on every rank. Some file systems, such as those on object
  // stores, may lose what several hosts write into one file. For them set it to a size that the
  // model does not reach.
  std::int64_t write_together_from = std::int64_t{64} << 20;
  // Only restore() and best() are called. The directory may be read-only, and another run may
  // save into it.
  bool read_only = false;
  // A command for /bin/sh that copies a complete checkpoint to other storage. Rank 0 runs it after
  // a save, in the background, one at a time: of checkpoints that wait only the newest is copied. A
  // failure is a warning. In its environment are DDPRUN_CHECKPOINT_DIRECTORY,
  // DDPRUN_CHECKPOINT_STEP and DDPRUN_CHECKPOINT_NAME, with which all files of the checkpoint
  // begin:
  //   rclone copy "$DDPRUN_CHECKPOINT_DIRECTORY" store:run1 --include "$DDPRUN_CHECKPOINT_NAME*"
  std::string copy_command = {};
  // A command that fetches checkpoints from there into DDPRUN_CHECKPOINT_DIRECTORY. Rank 0 runs it
  // in the constructor, if the directory has no checkpoint, for disk_timeout at most. A failure is
  // an error: otherwise the training would begin again unnoticed. The constructor is then a
  // collective call. Must be empty on all ranks or on none.
  std::string fetch_command = {};
  // The destructor gives the last copy_command this time, and 10 s if maybe_save() has returned
  // `leave`. Then the command is ended.
  Timeout copy_timeout = std::chrono::minutes(5);
};

// The state in which ranks may differ between steps. A save compares this state by hash, and
// saves every rank's state that is not equal to rank 0's.
enum class RanksDiffer {
  kNowhere,    // nothing is compared: all ranks get rank 0's state before it is used
  kInBuffers,  // BatchNorm's statistics, with broadcast_buffers off or without DDP
  kAnywhere,   // parameters and the optimizer's state, too: ignored_names, local SGD
};

// TrainingState: the content of a checkpoint. It has pointers to the live objects, which save()
// reads and restore() fills, and values. The pointers are borrowed for the call. Null ones are
// left out.
struct TrainingState {
  torch::nn::Module* model = nullptr;
  // SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS or ddprun::Adadelta.
  torch::optim::Optimizer* optimizer = nullptr;
  SavedScheduler* scheduler = nullptr;  // an LRScheduler or a ReduceLROnPlateau
  DistributedSampler* sampler = nullptr;
  std::int64_t epoch = 0;
  nlohmann::json extra = {};  // other data that the program wants back
  // Quality of the model (a validation loss, an accuracy), for keep_best. restore() does not
  // change it. An infinite or NaN value counts as none. Set it for the save of the model that
  // was measured, then reset() it. Otherwise the next save would store it for a model that has
  // been trained further.
  std::optional<double> metric = {};
  // Identifies the training data by text that changes with it (a name and a version, a digest).
  // restore() refuses a checkpoint that was saved with another text. Empty: not compared.
  std::string data = {};
  // The model's communication hook, if it keeps state from pass to pass (PowerSgd,
  // PostLocalSgd). Needs `model`.
  CommHook* hook = nullptr;
  PeriodicModelAverager* averager = nullptr;
  // Costs nothing for a model without buffers, else a hash of them on each rank. If DDP
  // broadcasts buffers before each forward, the buffers of other ranks need not be saved, and
  // kNowhere makes the file smaller. A hook that lets the ranks drift apart (PostLocalSgd)
  // counts as kAnywhere.
  RanksDiffer ranks_differ = RanksDiffer::kInBuffers;
  // Makes the parameters' .grad part of the state, each rank's own. It is for a save in the middle
  // of an accumulation, after passes in no_sync(). restore() fills .grad if the checkpoint has
  // gradients, and sets this to whether it has.
  bool gradients = false;
  // More objects of each kind, by name: the networks of a GAN, averaged weights, a teacher, an
  // actor and a critic. They may be given with or without the ones above, and are saved in the
  // same checkpoint. A name is not empty and has no '/'. restore() needs every name in the file.
  // Names that are only in the file are an error, because the next save would drop them. With
  // the option read_only they are a remark.
  std::map<std::string, torch::nn::Module*> models = {};
  std::map<std::string, torch::optim::Optimizer*> optimizers = {};
  std::map<std::string, SavedScheduler*> schedulers = {};
  // The program's own tensors (fixed noise, a queue, a replay buffer). restore() copies into
  // them; an undefined one becomes a new tensor on the CPU. If ranks differ, the tensor is saved
  // for each rank.
  std::map<std::string, torch::Tensor> tensors = {};
  // A resumed run needs a position in its data. save() then warns once if `sampler` is null or
  // does not move. Set it to false for generated data, or if `extra` holds the position.
  bool has_position = true;
  // Samples in a batch, as the program counts them; 0: not given. restore() adds a remark if the
  // saved number differs. Needed only for loaders that make_data_loader() did not make with
  // `sampler`; for those the size is known.
  std::int64_t batch_size = 0;
};

// Result of restore().
struct Restored {
  std::string file;       // of shards the first; empty: no complete checkpoint was found
  std::int64_t step = 0;  // steps that were done when it was saved
  // One line for each newer checkpoint that was skipped: its name and the reason.
  std::vector<std::string> skipped;
  // One line for each thing that differs from when the checkpoint was saved, and is allowed to.
  std::vector<std::string> remarks;
  explicit operator bool() const { return !file.empty(); }
};

// Result of maybe_save().
struct MaybeSaved {
  bool saved = false;
  // Saving and leaving was requested (ddprun --checkpoint-signal). The checkpoint is on the
  // disk, and every rank should exit with 0. ddprun then exits with 75, "start the job again".
  bool leave = false;
};

// Returns the SHA-256 over the names, dtypes, shapes and bytes of a module's parameters and
// buffers, as 64 hexadecimal digits. Two modules have the same digest exactly when they are
// equal bit for bit.
std::string digest_of(const torch::nn::Module& module);

class CheckpointManager {
 public:
  // Takes the directory, on rank 0. From now on no earlier run, such as a generation that was cut
  // off, can announce a checkpoint in it. Removes the remains of killed saves. Throws
  // kInvalidArgument for invalid options, and kSystem if the directory cannot be created or
  // written, or the fetch_command fails. Throws kStopped if another job has taken it from an
  // earlier generation of this job.
  CheckpointManager(Context& context, const CheckpointOptions& options);
  // Does the same for a group without a Context. announce: called on rank 0 with the step of a
  // checkpoint that is complete, by the thread that wrote it. Empty: no announcement.
  CheckpointManager(ProcessGroup& group, std::int64_t generation, const CheckpointOptions& options,
                    std::function<void(std::int64_t step)> announce = {});
  // Waits until pending writes are on the disk, and for the copy_command. Their failures are only
  // warnings here.
  ~CheckpointManager();
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;

  // Writes a checkpoint of `step` (the number of steps done so far). It has rank 0's model,
  // buffers, optimizer, schedule and sampler. Of the other ranks it has the state that differs
  // (TrainingState::ranks_differ). It has the random generators of every rank (its CPU's, and
  // that of the group's GPU). When the checkpoint is on the disk it is announced. Then older
  // ones are removed, except the last `keep_last` and the best `keep_best`. Those that restore()
  // skipped are removed, too.
  //
  // asynchronous: returns when each rank has copied its share of the state (of a small one: when
  // rank 0 has copied it). Otherwise returns when the checkpoint is announced and on the disk.
  //
  // Returns false if nothing was saved because the last save is still being written
  // (skip_when_busy). Throws on every rank, with file and cause, if this checkpoint or the one
  // before cannot be written. Earlier checkpoints are then unchanged.
  //
  // Throws kInvalidArgument if the ranks differ in `step`, epoch or the sampler's position.
  // Throws it also if the directory holds a later step that this run did not restore. That step
  // belongs to another run, and would be restored instead. Throws kUnsupported for an unknown
  // class of optimizer, and kStopped if a later run has taken the directory.
  bool save(std::int64_t step, const TrainingState& state);

  // Saves if `every_steps` or `every` says so, or if ddprun asks for it (--checkpoint-signal).
  // Call it after each step. A save that ddprun asked for waits until the checkpoint is on the
  // disk.
  //
  // With `every` or --checkpoint-signal each call starts a small all-reduce and does not wait
  // for it. The next call uses its result, so such a save comes one step late (in a world of
  // one: at once). Without them, a call that saves nothing does not communicate.
  //
  // Returns and throws the same on every rank. If the training continues after `leave`, it warns
  // once. Later calls save by `every_steps` and `every` only.
  [[nodiscard]] MaybeSaved maybe_save(std::int64_t step, const TrainingState& state);

  // Returns on every rank when all saves are announced and on the disk. Throws on every rank if
  // they cannot be written.
  void wait();

  // Returns the file of the checkpoint with the best metric in the directory; empty if none has
  // a metric. Not collective. Throws kSystem if the directory cannot be read.
  std::string best() const;

  // Fills `state` and this rank's random generators from the newest checkpoint that is complete.
  // Damaged ones are skipped. Each byte is read by one rank, which passes it to the others.
  //
  // The world may have another size than the one that saved. Then the sampler divides the rest
  // of the epoch among the new ranks, and additional ranks get their own random numbers. Of
  // state that differed by rank, all ranks get rank 0's copy (of gradients and of a hook's
  // state: the average). Construct DistributedDataParallel before, because its constructor makes
  // parameters and buffers rank 0's.
  //
  // Throws on every rank:
  // - kSystem if a file cannot be read for another reason (permissions, a failing disk), or if
  //   some ranks have checkpoints but no two ranks the same one (a directory that is not
  //   shared).
  // - kInvalidArgument if it belongs to another model, optimizer or data.
  // - kUnsupported if it has another format.
  // - kCorrupt if a damaged checkpoint has overwritten a part of `state`, and no older one is
  //   complete.
  // Names and the models' shapes are compared before anything is filled. After any other failure
  // `state` may be filled in part and must not be trained on. If the result is empty, `state` is
  // unchanged.
  Restored restore(TrainingState& state);

 private:
  // job: the Context's, the same in all its generations; empty: not known.
  CheckpointManager(ProcessGroup& group, std::int64_t generation, const CheckpointOptions& options,
                    std::function<void(std::int64_t step)> announce, const std::string& job);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
