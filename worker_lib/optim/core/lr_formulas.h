// The arithmetic of learning-rate schedules: computes the next rate from the present one.
//
// The formulas are those of torch.optim.lr_scheduler of PyTorch 2.11, with each operation in the
// same order, so that every bit is the same. They go from one epoch to the next, so a rate that
// the program has changed in between stays changed.
//
// Pure functions and a value type; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "ddprun/lr_rules.h"

namespace ddprun {

// Returns why a rule is invalid, with the name of the field; empty: it is valid.
std::string fault_of(const LRRule& rule);
std::string fault_of(const SequentialLR& rules);
std::string fault_of(const ReduceLROnPlateauOptions& options);

// Returns the rate of epoch 0, from the group's given rate.
double first_lr(const LRRule& rule, double lr);

// Returns the rate of `epoch`, at least 1, from that of the previous epoch. base_lr: the group's
// given rate.
double next_lr(const LRRule& rule, std::int64_t epoch, double lr, double base_lr);

// Returns the rate with which a rule that follows another one begins its epoch 0.
double restarted_lr(const LRRule& rule, double base_lr);

// PlateauWatch: the state of ReduceLROnPlateau between epochs.
struct PlateauWatch {
  double best;
  std::int64_t num_bad_epochs = 0;
  std::int64_t cooldown_counter = 0;

  explicit PlateauWatch(const ReduceLROnPlateauOptions& options);

  // Counts one epoch. Returns whether the rates must be reduced.
  bool judge(const ReduceLROnPlateauOptions& options, double metric);
};

double reduced_lr(const ReduceLROnPlateauOptions& options, double lr, double min_lr);

}  // namespace ddprun
