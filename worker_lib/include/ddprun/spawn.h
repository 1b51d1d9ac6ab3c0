// spawn(): runs ranks as processes of this host, started by the program itself without a
// launcher, as torch.multiprocessing.spawn does.
//
//   int main() {
//     ddprun::spawn([](int rank) {
//       auto ctx = ddprun::init();  // one of the two ranks of a world
//       train(ctx);
//     }, 2);
//   }
//
// Each rank is a fork of this process. It sees what the program has made before, captured
// variables included. Its changes are its own. A fork copies only one thread; the locks that
// other threads hold would stay locked. So spawn() refuses a process that has more than one
// thread or that uses CUDA. Call it before the program computes.
//
// A rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the
// rest of docs/reference/worker_environment.md in its environment. So init() and PyTorch's env://
// form a world of these ranks. spawn() hosts a store for them. No other process can have taken its
// port. LibTorch gets each rank's share of the CPUs unless OMP_NUM_THREADS says otherwise. Standard
// input is /dev/null.
//
// When the function returns or throws, the rank flushes its streams and ends with _exit().
// Static objects are not destroyed, and atexit handlers do not run (the program's handlers run
// once, in the program).
//
// When a rank fails, the others get SIGTERM, and SIGKILL after a grace period. All processes
// that they started are ended, too. The same happens when this process ends, whatever the
// reason. docs/how-to/start_by_hand.md says more.
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

// SpawnError: says how the first failed rank failed. The others failed because of it. what() is
// one line.
//
// kind() and peer_rank() come from the DistError that the rank threw. kind() is kSystem if the
// rank threw another exception. If the rank ended in another way, they are kPeerLost and the
// rank itself.
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
  // Return how the process ended. Both are empty if the rank threw.
  std::optional<int> exit_code() const noexcept { return facts_->exit_code; }
  std::optional<int> signal() const noexcept { return facts_->signal; }
  // Returns what() of the exception with all its lines, at most 8000 bytes; empty if the rank did
  // not throw.
  const std::string& message() const noexcept { return facts_->message; }

 private:
  std::shared_ptr<const Facts> facts_;  // shared, so that copies do not throw
};

struct SpawnOptions {
  // Time between SIGTERM and SIGKILL for the ranks that are left when one has failed.
  std::chrono::nanoseconds grace = std::chrono::seconds(30);
};

// SpawnContext: the ranks that run concurrently with this process. One thread owns it.
class SpawnContext {
 public:
  // Ends ranks that still run, as if one had failed, and reports it on stderr.
  ~SpawnContext();
  SpawnContext(SpawnContext&&) noexcept;
  SpawnContext& operator=(SpawnContext&&) noexcept;

  // Waits for the ranks to end. Returns true when all have succeeded and none of their processes
  // is left, false when the timeout has passed. nullopt: no timeout. Throws SpawnError when a
  // rank has failed and all have ended. Throws DistError: kStopped after kill(), kSystem if the
  // process that monitors the ranks was killed (the ranks are killed with it). Later calls give
  // the same result.
  bool join(std::optional<std::chrono::nanoseconds> timeout = {});

  // Returns the pids of rank 0, 1, ...; valid while they run. Their parent is the process that
  // monitors them.
  std::vector<int> pids() const;

  // Kills all ranks and the processes that they started, and returns when none is left.
  void kill();

 private:
  friend SpawnContext spawn_context(const std::function<void(int rank)>& fn, int nprocs,
                                    const SpawnOptions& options);
  struct Impl;
  explicit SpawnContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Runs fn(0) ... fn(nprocs - 1), each in its own process, and returns when all have succeeded.
// Throws what SpawnContext::join() and spawn_context() throw.
void spawn(const std::function<void(int rank)>& fn, int nprocs = 1,
           const SpawnOptions& options = {});

// Starts the ranks as spawn() does, and does not wait. Throws DistError: kInvalidArgument for an
// empty function, nprocs < 1 or a negative grace; kUnsupported if this process has other threads
// (named in the message) or uses CUDA; kSystem if the processes cannot be created.
SpawnContext spawn_context(const std::function<void(int rank)>& fn, int nprocs = 1,
                           const SpawnOptions& options = {});

}  // namespace ddprun
