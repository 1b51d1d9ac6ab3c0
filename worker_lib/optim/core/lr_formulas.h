// The arithmetic of learning-rate schedules: the next rate from the present one.
//
// The formulas are those of torch.optim.lr_scheduler of PyTorch 2.11, each operation in the same
// order, so that every bit is the same. They go from one epoch to the next; what the program changed
// in between stays in.
//
// Pure functions and a value type; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "ddprun/lr_rules.h"

namespace ddprun {

// Why a rule cannot be meant, in words that name the field; empty: it can.
std::string fault_of(const LRRule& rule);
std::string fault_of(const SequentialLR& rules);
std::string fault_of(const ReduceLROnPlateauOptions& options);

// The rate of epoch 0, from the one that the group was given.
double first_lr(const LRRule& rule, double lr);

// The rate of `epoch`, at least 1, from that of the epoch before. base_lr: what the group was given.
double next_lr(const LRRule& rule, std::int64_t epoch, double lr, double base_lr);

// The rate with which a rule that follows another begins its epoch 0.
double restarted_lr(const LRRule& rule, double base_lr);

// What ReduceLROnPlateau keeps between epochs.
struct PlateauWatch {
  double best;
  std::int64_t num_bad_epochs = 0;
  std::int64_t cooldown_counter = 0;

  explicit PlateauWatch(const ReduceLROnPlateauOptions& options);

  // One epoch. Returns whether the rates are to be reduced.
  bool judge(const ReduceLROnPlateauOptions& options, double metric);
};

double reduced_lr(const ReduceLROnPlateauOptions& options, double lr, double min_lr);

}  // namespace ddprun
