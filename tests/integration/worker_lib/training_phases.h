// The current phase of each worker of a training, in a file that the workers and their test
// map. So a test can kill a worker in a certain phase, and can see later in which phase it
// really died. A worker has a slot for each generation. The last values of a killed worker
// stay.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace ddprun::testing_support {

// The phase of the training thread. Backward includes averaging the gradients. Collective: a
// call of the program's own. Saving: until the state is copied; slot.saved_step shows what
// comes after that.
enum class Phase : std::int32_t {
  kLoading,  // before main()
  kJoining,
  kRestoring,
  kForward,
  kBackward,
  kOptimizer,
  kCollective,
  kSaving,
  kEnding,
};
inline constexpr std::array<std::string_view, 9> kPhaseNames{"loading",    "joining",  "restoring",
                                                             "forward",    "backward", "optimizer",
                                                             "collective", "saving",   "ending"};

struct PhaseSlot {
  std::atomic<Phase> phase;
  std::atomic<std::int64_t> steps;       // done in this generation
  std::atomic<std::int64_t> saved_step;  // step of the last save, which may still be in progress
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "it is shared by processes");

class PhaseFile {
 public:
  static constexpr std::size_t kGenerations = 256, kRanks = 4;

  // Makes the file if it is missing. A new file is all zeros. Throws std::runtime_error.
  explicit PhaseFile(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (::ftruncate(file.get(), kBytes) == 0)
      map_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (map_ == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  }
  ~PhaseFile() { ::munmap(map_, kBytes); }
  PhaseFile(const PhaseFile&) = delete;
  PhaseFile& operator=(const PhaseFile&) = delete;

  PhaseSlot& slot(std::size_t generation, std::size_t rank) const {
    if (generation >= kGenerations || rank >= kRanks)
      throw std::runtime_error("the file of phases has no room for rank " + std::to_string(rank) +
                               " of generation " + std::to_string(generation));
    return static_cast<PhaseSlot*>(map_)[generation * kRanks + rank];
  }

 private:
  static constexpr std::size_t kBytes = kGenerations * kRanks * sizeof(PhaseSlot);
  void* map_ = MAP_FAILED;
};

}  // namespace ddprun::testing_support
