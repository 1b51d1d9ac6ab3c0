// spawn(): ranks as processes of this host, from the program itself, without a launcher, as
// torch.multiprocessing.spawn starts them.
//
//   int main() {
//     ddprun::spawn([](int rank) {
//       auto ctx = ddprun::init();  // one of the two ranks of a world
//       train(ctx);
//     }, 2);
//   }
//
// Each rank is a fork of this process: it sees what the program had made before, captured variables
// too, and what it changes is its own. A fork takes over one thread and leaves the others behind
// with the locks they hold, so spawn() refuses a process that has more than one thread, or that
// uses CUDA. Call it before the program computes.
//
// A rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the
// rest of docs/worker_environment.md in its environment, so that init() and PyTorch's env:// form a
// world of these ranks; a store is hosted for them, on a port that nobody else can have taken.
// LibTorch gets each rank's share of the CPUs unless OMP_NUM_THREADS says otherwise. Standard input
// is /dev/null.
//
// When the function returns, or throws, the rank flushes its streams and ends with _exit(): what is
// static is not destroyed, atexit handlers do not run (those of the program run once, in the
// program).
//
// When a rank fails, the others get SIGTERM, and SIGKILL after a grace; what they have started is
// ended with them. So is all of it when this process ends, by whatever. docs/start_by_hand.md says
// more.
//
// This header needs no LibTorch.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {

// How the first rank to fail has failed; the others are its victims. what() is one line.
//
// kind(), peer_rank(): of the DistError that the rank threw; kSystem where it threw another
// exception; kPeerLost, and the rank itself, where it ended in another way.
class SpawnError : public DistError {
 public:
  struct Facts {
    Kind kind = Kind::kSystem;
    int peer_rank = -1;
    int rank = 0;
    int pid = 0;
    std::optional<int> exit_code = {};
    std::optional<int> signal = {};
    std::string message = {};
  };
  SpawnError(const std::string& what, Facts facts)
      : DistError(facts.kind, what, facts.peer_rank),
        facts_(std::make_shared<const Facts>(std::move(facts))) {}

  int rank() const noexcept { return facts_->rank; }
  int pid() const noexcept { return facts_->pid; }
  // Both empty: it threw.
  std::optional<int> exit_code() const noexcept { return facts_->exit_code; }
  std::optional<int> signal() const noexcept { return facts_->signal; }
  // what() of the exception, all its lines, 8000 bytes at most; empty where it did not throw one.
  const std::string& message() const noexcept { return facts_->message; }

 private:
  std::shared_ptr<const Facts> facts_;  // so that copies do not throw
};

struct SpawnOptions {
  // Between SIGTERM and SIGKILL for those that are left when one has failed.
  std::chrono::nanoseconds grace = std::chrono::seconds(30);
};

// Ranks that run beside this process. One thread owns it.
class SpawnContext {
 public:
  // Ends ranks that still run, as if one had failed, and says so on stderr.
  ~SpawnContext();
  SpawnContext(SpawnContext&&) noexcept;
  SpawnContext& operator=(SpawnContext&&) noexcept;

  // Waits for the ranks' end: true when all have ended well, and nothing of them is left; false
  // when the time is over. nullopt: as long as they take. Throws SpawnError when a rank has failed
  // and all have ended, DistError kStopped after kill(), kSystem if the process that watches over
  // them was killed, and they with it. Called again it says the same.
  bool join(std::optional<std::chrono::nanoseconds> timeout = {});

  // Of rank 0, 1, ...; as long as they run. Their parent is the process that watches over them.
  std::vector<int> pids() const;

  // Ends all ranks and what they have started, at once, and returns when nothing is left.
  void kill();

 private:
  friend SpawnContext spawn_context(const std::function<void(int rank)>& fn, int nprocs,
                                    const SpawnOptions& options);
  struct Impl;
  explicit SpawnContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Runs fn(0) ... fn(nprocs - 1) in processes of their own and returns when all have ended well.
// Throws as SpawnContext::join(), and as spawn_context().
void spawn(const std::function<void(int rank)>& fn, int nprocs = 1,
           const SpawnOptions& options = {});

// The same without waiting. Throws DistError: kInvalidArgument for no function, nprocs < 1 or a
// grace that is negative; kUnsupported where this process has other threads, by name, or uses CUDA;
// kSystem where the processes cannot be made.
SpawnContext spawn_context(const std::function<void(int rank)>& fn, int nprocs = 1,
                           const SpawnOptions& options = {});

}  // namespace ddprun
