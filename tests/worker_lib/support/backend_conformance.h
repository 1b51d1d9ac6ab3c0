// What every backend must do, through ProcessGroup, against results computed in place: each
// collective, dtype and reduction, in worlds of several sizes and layouts. The tests are in
// backend_conformance.cc; a program that links them puts backends under test:
//
//   INSTANTIATE_TEST_SUITE_P(, BackendConformance, testing::Values(...), name_of_backend);
//
// Ranks are threads, unless DDPRUN_CONFORMANCE_RANK says which one this process is: then each rank
// of a world is a process that goes through the whole suite (conformance_processes.h). Tests make
// tensors on the host, put() them on the world's device and get() the results back.
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

// The one rank that this process is, where ranks are processes: DDPRUN_CONFORMANCE_RANK holds its
// world's letters (tests/worker_lib/cpu_group/world.h), its rank, and the port of a store.
struct ProcessRank {
  std::string letters;
  int rank = 0;
  std::uint16_t store_port = 0;

  static std::optional<ProcessRank> of_environment();
};

// One world, one letter for each rank. Any thread, but what names a rank: that rank's.
class World {
 public:
  World(std::string letters, torch::Device device);
  virtual ~World() = default;

  // The first that a rank's thread calls.
  std::unique_ptr<ProcessGroup> form(int rank);

  // Returns when every rank of the world is here. REQUIRES: the ranks meet equally often.
  void meet(int rank);
  // How often the world's ranks have called this so far.
  std::int64_t count() { return store()->add(unique_name() + "/count", 1); }
  std::int64_t counted() { return store()->add(unique_name() + "/count", 0); }

  // Waits for the calling thread's stream, where a look at a tensor does not.
  virtual void synchronize() {}
  // Waits for everything that the device was given, also where no stream waits for it.
  virtual void drain() {}

  const std::string letters;
  const int size;
  const torch::Device device;

 protected:
  // Worlds of all tests may share a store; each rank makes the same worlds.
  std::string unique_name() const;
  std::unique_ptr<CpuGroup> form_cpu_group(int rank, Store& store) const;

 private:
  // Makes the calling thread the rank's, where that takes anything.
  virtual void begin(int /*rank*/) {}
  virtual std::unique_ptr<Backend> form_backend(int rank, std::shared_ptr<Store> store) = 0;

  std::shared_ptr<Store> store() const;

  std::optional<testing_support::RunningStore> own_store_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::map<int, int> meetings_;
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
  // Why there is no world of so many ranks on this machine; empty: there is.
  std::function<std::string(int ranks)> why_not = {};

  friend void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }
};

// What the two backends have, whatever their worlds are like.
BackendUnderTest cpu_under_test(std::string name, std::vector<std::string> layouts);
BackendUnderTest nccl_under_test(std::string name, std::vector<std::string> layouts);

inline std::string name_of_backend(const testing::TestParamInfo<BackendUnderTest>& backend) {
  return backend.param.name;
}

class BackendConformance : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override;

  // body(group) on every rank of each world; a body may take the std::unique_ptr of it. Where there
  // is no such world the test is skipped.
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
  // Before a test looks at results.
  void synchronize() { world_->synchronize(); }

  std::unique_ptr<World> world_;  // of in_every_world; null where there was none

 private:
  static std::string why_not_of(std::size_t ranks);
  // The worlds of so many ranks or more; says which of them there cannot be, and skips the test
  // where none is left.
  std::vector<std::string> worlds_from(std::size_t size);

  template <class Body>
  void in_worlds_from(std::size_t size, Body body) {
    for (const std::string& letters : worlds_from(size)) {
      SCOPED_TRACE("world " + letters);
      world_.reset();  // there may be one at a time
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

// Objects are read on the host between two collectives, which the NCCL double's streams do not know
// of.
class ObjectConformance : public BackendConformance {};

}  // namespace ddprun
