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
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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
  bool empty() const { return size_ == 0; }

 private:
  std::size_t size_ = 0;
  std::array<char, most> text_{};
};

struct SpawnBoard {
  struct Rank {
    // Written by the monitor.
    pid_t pid = 0;
    int wait_status = 0;
    bool ended = false;
    // Written by the rank when it throws.
    bool threw = false;
    bool threw_dist_error = false;
    DistError::Kind kind = DistError::Kind::kSystem;
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
    const std::size_t bytes = kRanksAt + ranks * sizeof(SpawnBoard::Rank);
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return system_error("share memory with the ranks", errno);
    SharedSpawnBoard board;
    board.bytes_ = bytes;
    board.board_ = new (memory) SpawnBoard;
    board.ranks_ = {static_cast<SpawnBoard::Rank*>(
                        static_cast<void*>(static_cast<std::byte*>(memory) + kRanksAt)),
                    static_cast<std::size_t>(ranks)};
    for (SpawnBoard::Rank& rank : board.ranks_) new (&rank) SpawnBoard::Rank;
    return board;
  }
  ~SharedSpawnBoard() {
    if (board_) munmap(board_, bytes_);
  }
  SharedSpawnBoard(SharedSpawnBoard&& other) noexcept
      : bytes_(other.bytes_),
        board_(std::exchange(other.board_, nullptr)),
        ranks_(std::exchange(other.ranks_, {})) {}
  SharedSpawnBoard& operator=(SharedSpawnBoard&&) = delete;

  SpawnBoard* operator->() const { return board_; }
  std::span<SpawnBoard::Rank> ranks() const { return ranks_; }

 private:
  SharedSpawnBoard() = default;
  static constexpr std::size_t kRanksAt = (sizeof(SpawnBoard) + alignof(std::max_align_t) - 1) /
                                          alignof(std::max_align_t) * alignof(std::max_align_t);

  std::size_t bytes_ = 0;
  SpawnBoard* board_ = nullptr;
  std::span<SpawnBoard::Rank> ranks_;
};

}  // namespace ddprun
