// Learning rates that change during a training, and that checkpoints keep. LRScheduler follows
// the number of steps, ReduceLROnPlateau follows a metric.
//
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   ddprun::LRScheduler schedule(
//       optimizer, ddprun::SequentialLR{.schedules = {ddprun::LinearWarmup{.total_iters = 5},
//                                                     ddprun::CosineAnnealingLR{.t_max = 85}},
//                                       .milestones = {5}});
//   for (int epoch = 0; epoch < 90; ++epoch) { train(); schedule.step(); }
//
// Values and the layout of the state are those of torch.optim.lr_scheduler of PyTorch 2.11, whose
// schedulers load the state. (MultiStepLR keeps the milestones that it was constructed with.) Each
// value is computed from the previous one by PyTorch's formula, in the same order of operations. So
// it has the same bits. If the program sets a rate by hand, the next value is computed from that
// rate. Each parameter group has its own base rate: the rate that it had when the schedule was
// constructed.
//
// A scheduler changes the optimizer when it is constructed (a warm-up begins at once) and when
// it steps. Construct it before CheckpointManager::restore(). The thread that trains owns it.
// The optimizer must outlive it.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddprun/lr_rules.h"

namespace ddprun {

// SavedScheduler: the part of either scheduler that a checkpoint saves.
class SavedScheduler {
 public:
  SavedScheduler() = default;
  virtual ~SavedScheduler() = default;
  SavedScheduler(const SavedScheduler&) = delete;
  SavedScheduler& operator=(const SavedScheduler&) = delete;

  // Returns the name of PyTorch's class.
  virtual std::string class_name() const = 0;
  // Returns what state_dict() gives in Python. Numbers may be infinite.
  virtual nlohmann::json state() const = 0;
  // Continues from a state(), by the rules saved there. The optimizer's present rates stay
  // unchanged, because they are part of its own state. Throws kInvalidArgument for a state of
  // another class or of another number of parameter groups, and if something is missing. Nothing
  // is changed then.
  virtual void load_state(const nlohmann::json& state) = 0;

  // Returns the rate of each parameter group after the last step.
  virtual std::vector<double> last_lr() const = 0;
};

class LRScheduler : public SavedScheduler {
 public:
  // Throws kInvalidArgument for an invalid rule.
  LRScheduler(torch::optim::Optimizer& optimizer, const LRRule& rule);
  LRScheduler(torch::optim::Optimizer& optimizer, const SequentialLR& rules);
  ~LRScheduler() override;

  // Starts the next epoch. Call it after the optimizer's step.
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
  // Throws kInvalidArgument for invalid options.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             const ReduceLROnPlateauOptions& options = {});
  ~ReduceLROnPlateau() override;

  // Starts the next epoch, with its metric (usually the loss on the validation data). All ranks
  // must give the same metric (an average over the ranks, from an all_reduce), or their rates
  // diverge.
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
