// Learning rates that change while a training goes on, and that checkpoints keep: LRScheduler for those
// that follow the number of steps, ReduceLROnPlateau for those that follow a measure of success.
//
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   ddprun::LRScheduler schedule(
//       optimizer, ddprun::SequentialLR{.schedules = {ddprun::LinearWarmup{.total_iters = 5},
//                                                     ddprun::CosineAnnealingLR{.t_max = 85}},
//                                       .milestones = {5}});
//   for (int epoch = 0; epoch < 90; ++epoch) { train(); schedule.step(); }
//
// Values, and the layout of the state, are those of torch.optim.lr_scheduler of PyTorch 2.11: its
// schedulers load the state (MultiStepLR keeps the milestones that it was constructed with). Each value is
// made from the one before, by PyTorch's formula in the same order of operations, so with the same bits; a
// rate that the program sets by hand in between is what the next one is made from. Each parameter group
// has its own base rate, which is what it had when the schedule was constructed.
//
// A scheduler changes the optimizer when it is constructed (a warm-up begins at once) and when it steps.
// Construct it before CheckpointManager::restore(). The thread that trains owns it; the optimizer must
// outlive it.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddprun/lr_rules.h"

namespace ddprun {

// What a checkpoint keeps of either kind.
class SavedScheduler {
 public:
  SavedScheduler() = default;
  virtual ~SavedScheduler() = default;
  SavedScheduler(const SavedScheduler&) = delete;
  SavedScheduler& operator=(const SavedScheduler&) = delete;

  // The name of PyTorch's class.
  virtual std::string class_name() const = 0;
  // What state_dict() gives in Python. Numbers may be infinite.
  virtual nlohmann::json state() const = 0;
  // Continues where state() was taken, by the rules saved there. The optimizer's present rates are left
  // alone: they are part of its own state. Throws kInvalidArgument for a state of another class or of
  // another number of parameter groups, and if something is missing; nothing is changed then.
  virtual void load_state(const nlohmann::json& state) = 0;

  // The rate of each parameter group after the last step.
  virtual std::vector<double> last_lr() const = 0;
};

class LRScheduler : public SavedScheduler {
 public:
  // Throws kInvalidArgument for a rule that cannot be meant.
  LRScheduler(torch::optim::Optimizer& optimizer, const LRRule& rule);
  LRScheduler(torch::optim::Optimizer& optimizer, const SequentialLR& rules);
  ~LRScheduler() override;

  // The next epoch. Call it after the optimizer's step.
  void step();

  std::int64_t last_epoch() const;
  std::vector<double> last_lr() const override;

  std::string class_name() const override;
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class ReduceLROnPlateau : public SavedScheduler {
 public:
  // Throws kInvalidArgument for options that cannot be meant.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             const ReduceLROnPlateauOptions& options = {});
  ~ReduceLROnPlateau() override;

  // The next epoch, with its measure: the loss on the validation data, as a rule. All ranks must give the
  // same one (an average over the ranks, from an all_reduce), or their rates part.
  void step(double metric);

  std::vector<double> last_lr() const override;

  std::string class_name() const override;
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
