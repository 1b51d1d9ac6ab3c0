// SpawnBoard: what the program, the monitor and the ranks of a spawn() share, in shared memory.
//
// Each field has one writer. It is read after that writer has ended, or after a byte was
// received from it through a pipe. So no locks are needed. The memory is anonymous and is freed
// with the last of the processes.
//
// Owner: the program's SpawnContext. The other processes inherit it by the fork.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "base/mapped_memory.h"
#include "base/result.h"
#include "ddprun/error.h"

namespace ddprun {

// SharedText: a text of bounded length; longer text is cut.
template <std::size_t most>
class SharedText {
 public:
  void set(std::string_view text) {
    size_ = std::min(text.size(), most);
    std::copy_n(text.data(), size_, text_.data());
  }
  std::string text() const { return std::string(text_.data(), size_); }

 private:
  std::size_t size_ = 0;
  std::array<char, most> text_{};
};

// Aligned so that the ranks can follow in memory.
struct alignas(std::max_align_t) SpawnBoard {
  struct Rank {
    // Written by the monitor.
    pid_t pid = 0;
    int wait_status = 0;
    bool ended = false;
    // Written by the rank when it throws.
    bool threw = false;
    DistError::Kind kind = DistError::Kind::kSystem;  // also of other exceptions
    int peer_rank = -1;
    SharedText<512> line;      // type and first line
    SharedText<8000> message;  // the whole text
  };

  // Written by the monitor before its first byte: why the ranks could not be started.
  SharedText<512> trouble;
  int trouble_errno = 0;
  // Written by the monitor before it ends.
  bool over = false;
  int story = -1;  // the rank whose failure is reported; -1: none
  bool stopped = false;
};

// SharedSpawnBoard: the memory of a board and its ranks. Move-only.
class SharedSpawnBoard {
 public:
  static Result<SharedSpawnBoard> make(int ranks) {
    const std::size_t bytes = sizeof(SpawnBoard) + ranks * sizeof(SpawnBoard::Rank);
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return system_error("share memory with the ranks", errno);
    SharedSpawnBoard shared;
    shared.board_ = {new (memory) SpawnBoard, Unmap{bytes}};
    shared.ranks_ = {static_cast<SpawnBoard::Rank*>(static_cast<void*>(shared.board_.get() + 1)),
                     static_cast<std::size_t>(ranks)};
    for (SpawnBoard::Rank& rank : shared.ranks_) new (&rank) SpawnBoard::Rank;
    return shared;
  }

  SpawnBoard* operator->() const { return board_.get(); }
  std::span<SpawnBoard::Rank> ranks() const { return ranks_; }

 private:
  SharedSpawnBoard() = default;

  std::unique_ptr<SpawnBoard, Unmap> board_;
  std::span<SpawnBoard::Rank> ranks_;  // after the board
};

}  // namespace ddprun
