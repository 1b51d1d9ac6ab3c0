// Backend conformance: what every backend must do, tested through ProcessGroup. The tests
// compare each collective, dtype and reduction with results that they compute themselves. They
// run in worlds of several sizes and layouts. backend_conformance.cc holds the tests. A program
// that links them names the backends to test:
//
//   INSTANTIATE_TEST_SUITE_P(, BackendConformance, testing::Values(...), name_of_backend);
//
// By default ranks are threads. If DDPRUN_CONFORMANCE_RANK is set, this process is one rank,
// and each rank of a world is a process that runs the whole suite (conformance_processes.h).
// Tests make tensors on the host, put() them on the world's device and get() the results back.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/backend.h"
#include "ddprun/process_group.h"
#include "ddprun/store.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/nccl/api.h"

namespace ddprun {

// ProcessRank: the rank that this process is, when ranks are processes. DDPRUN_CONFORMANCE_RANK
// holds the letters of its world (tests/worker_lib/cpu_group/world.h), its rank and the port of
// a store.
struct ProcessRank {
  std::string letters;
  int rank = 0;
  std::uint16_t store_port = 0;

  static std::optional<ProcessRank> of_environment();
};

// World: a world with one letter for each rank. Any thread may call it. A function that takes a
// rank must be called on the thread of that rank.
class World {
 public:
  World(std::string letters, torch::Device device);
  virtual ~World() = default;

  // Forms the group of a rank. A rank's thread must call this first.
  std::unique_ptr<ProcessGroup> form(int rank);

  // Waits until every rank of the world has called this. REQUIRES: all ranks call it equally
  // often.
  void meet(int rank);
  // Counts a call and returns how often the world's ranks have called this so far. counted()
  // only returns the number.
  std::int64_t count() { return store()->add(unique_name() + "/count", 1); }
  std::int64_t counted() { return store()->add(unique_name() + "/count", 0); }

  // Waits for the calling thread's stream, on devices where reading a tensor does not wait for
  // it.
  virtual void synchronize() {}
  // Waits for all work of the device, including work that no stream waits for.
  virtual void drain() {}

  const std::string letters;
  const int size;
  const torch::Device device;

 protected:
  // Returns a name for this world. All tests may share one store, and each rank makes the same
  // worlds.
  std::string unique_name() const;
  std::unique_ptr<CpuGroup> form_cpu_group(int rank, Store& store) const;

 private:
  // Prepares the calling thread to be the rank's, if the device needs that.
  virtual void begin(int /*rank*/) {}
  virtual std::unique_ptr<Backend> form_backend(int rank, std::shared_ptr<Store> store) = 0;

  std::shared_ptr<Store> store() const;

  std::optional<testing_support::RunningStore> own_store_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::map<int, int> barriers_;
};

class CpuWorld : public World {
 public:
  explicit CpuWorld(const std::string& letters, torch::Device device = torch::kCPU)
      : World(letters, device) {}

 private:
  std::unique_ptr<Backend> form_backend(int rank, std::shared_ptr<Store> store) override;
};

class NcclWorld : public World {
 public:
  // close_grace: of the backends.
  NcclWorld(const std::string& letters, torch::Device device, const NcclApi& api,
            Duration close_grace)
      : World(letters, device), api_(api), close_grace_(close_grace) {}

 private:
  std::unique_ptr<Backend> form_backend(int rank, std::shared_ptr<Store> store) override;

  const NcclApi& api_;
  const Duration close_grace_;
};

struct BackendUnderTest {
  std::string name;
  std::function<std::unique_ptr<World>(const std::string& letters)> make_world;
  std::vector<std::string> layouts;
  std::vector<torch::ScalarType> reducible;
  bool has_bitwise;
  bool has_tags;
  // Returns why this machine cannot have a world of `ranks` ranks, or an empty text if it can.
  std::function<std::string(int ranks)> why_not = {};

  friend void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }
};

// Return what holds for the two backends with every kind of world.
BackendUnderTest cpu_under_test(std::string name, std::vector<std::string> layouts);
BackendUnderTest nccl_under_test(std::string name, std::vector<std::string> layouts);

inline std::string name_of_backend(const testing::TestParamInfo<BackendUnderTest>& backend) {
  return backend.param.name;
}

class BackendConformance : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override;

  // Runs body(group) on every rank of each world. A body may instead take the group's
  // std::unique_ptr. Skips the test if this machine can have none of the worlds.
  template <class Body>
  void in_every_world(Body body) {
    in_worlds_from(1, body);
  }
  template <class Body>
  void in_every_world_of_several(Body body) {
    in_worlds_from(2, body);
  }

  torch::Tensor put(const torch::Tensor& host) const { return host.to(world_->device); }
  std::vector<torch::Tensor> put(const std::vector<torch::Tensor>& hosts) const;
  static torch::Tensor get(const torch::Tensor& tensor) { return tensor.cpu(); }
  // Waits for the stream. Call it before the test reads results.
  void synchronize() { world_->synchronize(); }

  std::unique_ptr<World> world_;  // of in_every_world; null if there was none
  torch::Tensor kept_;            // outlives its group, not its world

 private:
  static std::string why_not_of(std::size_t ranks);
  // Returns the worlds of at least `size` ranks. Prints which of them this machine cannot have,
  // and skips the test if none is left.
  std::vector<std::string> worlds_from(std::size_t size);

  template <class Body>
  void in_worlds_from(std::size_t size, Body body) {
    for (const std::string& letters : worlds_from(size)) {
      SCOPED_TRACE("world " + letters);
      kept_.reset();
      world_.reset();  // at most one may exist at a time
      world_ = GetParam().make_world(letters);
      const auto play = [&](int rank) {
        auto group = world_->form(rank);
        if constexpr (std::is_invocable_v<Body, std::unique_ptr<ProcessGroup>&>) {
          body(group);
        } else {
          body(*group);
        }
      };
      if (const auto self = ProcessRank::of_environment()) {
        play(self->rank);
      } else {
        testing_support::run_ranks(world_->size, play);
      }
    }
  }
};

// ObjectConformance: the tests of objects, as a suite of its own. Objects are read on the host
// between two collectives, and the streams of the NCCL double do not know of such reads.
class ObjectConformance : public BackendConformance {};

}  // namespace ddprun
