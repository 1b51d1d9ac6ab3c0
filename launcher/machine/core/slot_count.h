// SlotCount: how many workers a node runs, as --nproc-per-node names it. A value type; any thread.
#pragma once

namespace ddprun {

// A number, or what to count on this machine.
struct SlotCount {
  enum class Kind { kNumber, kCpus, kGpus, kAuto };  // kAuto: GPUs, or CPUs if there is no GPU
  Kind kind = Kind::kNumber;
  int number = 1;
};

}  // namespace ddprun
