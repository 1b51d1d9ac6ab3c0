#include "tests/worker_lib/support/backend_conformance.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <iostream>
#include <set>
#include <sstream>

#include "ddprun/objects.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/store_of.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/reduce_ops.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_backend/backend_cpu.h"
#include "worker_lib/nccl/backend_nccl.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::_;
using testing::HasSubstr;
using testing_support::kPatience;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

const std::vector<torch::ScalarType> kAllDtypes{
    torch::kBool,    torch::kUInt8,   torch::kInt8,         torch::kInt16,
    torch::kInt32,   torch::kInt64,   torch::kFloat16,      torch::kBFloat16,
    torch::kFloat32, torch::kFloat64, torch::kComplexFloat, torch::kComplexDouble};

}  // namespace

// --- worlds and backends ---

std::optional<ProcessRank> ProcessRank::of_environment() {
  const char* const given = std::getenv("DDPRUN_CONFORMANCE_RANK");
  if (!given) return std::nullopt;
  std::istringstream words(given);
  ProcessRank self;
  words >> self.letters >> self.rank >> self.store_port;
  return self;
}

World::World(std::string letters, torch::Device device)
    : letters(std::move(letters)), size(static_cast<int>(this->letters.size())), device(device) {
  if (const auto self = ProcessRank::of_environment()) {
    port_ = self->store_port;
  } else {
    port_ = own_store_.emplace().port();
  }
}

std::unique_ptr<ProcessGroup> World::form(int rank) {
  begin(rank);
  return std::make_unique<ProcessGroup>(form_backend(rank, store()), device, seconds(30));
}

void World::meet(int rank) {
  int barrier = 0;
  {
    const std::lock_guard lock(mutex_);
    barrier = barriers_[rank]++;
  }
  const auto here = store();
  const std::string key = unique_name() + "/barrier/" + std::to_string(barrier);
  if (here->add(key, 1) == size) here->set(key + "/all", "are here");
  here->get(key + "/all", kPatience);
}

std::string World::unique_name() const {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name() + "/" + letters;
}

std::shared_ptr<Store> World::store() const { return testing_support::store_of(port_); }

std::unique_ptr<CpuGroup> World::form_cpu_group(int rank, Store& store) const {
  return value_or_throw(
      CpuGroup::form(store, {.rank = Rank(rank),
                             .world_size = size,
                             .node_id = letters.substr(static_cast<std::size_t>(rank), 1),
                             .name = unique_name(),
                             .timeout = kPatience}));
}

std::unique_ptr<Backend> CpuWorld::form_backend(int rank, std::shared_ptr<Store> store) {
  return make_cpu_backend(form_cpu_group(rank, *store),
                          std::vector<torch::DeviceType>{device.type()},
                          /*close_grace=*/std::chrono::milliseconds(300));
}

std::unique_ptr<Backend> NcclWorld::form_backend(int rank, std::shared_ptr<Store> store) {
  const NcclBackendOptions options{.rank = rank,
                                   .world_size = size,
                                   .device = device,
                                   .name = unique_name(),
                                   .close_grace = close_grace_};
  auto peers = form_cpu_group(rank, *store);
  return BackendFactory(api_).make(std::move(store), options, std::move(peers));
}

BackendUnderTest cpu_under_test(std::string name, std::vector<std::string> layouts) {
  return {.name = std::move(name),
          .make_world = [](const std::string& l) { return std::make_unique<CpuWorld>(l); },
          .layouts = std::move(layouts),
          .reducible = kAllDtypes,
          .has_bitwise = true,
          .has_tags = true};
}

BackendUnderTest nccl_under_test(std::string name, std::vector<std::string> layouts) {
  std::vector<torch::ScalarType> reducible = kAllDtypes;
  std::erase(reducible, torch::kInt16);
  return {.name = std::move(name),
          .make_world = {},
          .layouts = std::move(layouts),
          .reducible = std::move(reducible),
          .has_bitwise = false,
          .has_tags = false};
}

void BackendConformance::SetUp() {
  if (const std::string why = why_not_of(1); !why.empty()) GTEST_SKIP() << why;
}

std::string BackendConformance::why_not_of(std::size_t ranks) {
  return GetParam().why_not ? GetParam().why_not(static_cast<int>(ranks)) : "";
}

Tensors BackendConformance::put(const Tensors& hosts) const {
  Tensors there;
  for (const Tensor& one : hosts) there.push_back(put(one));
  return there;
}

std::vector<std::string> BackendConformance::worlds_from(std::size_t size) {
  const auto self = ProcessRank::of_environment();
  std::vector<std::string> worlds;
  std::string left_out;
  std::string why;
  for (const std::string& letters : self ? std::vector{self->letters} : GetParam().layouts) {
    if (letters.size() < size) continue;
    const std::string why_not = why_not_of(letters.size());
    if (why_not.empty()) {
      worlds.push_back(letters);
    } else {
      left_out += " " + letters;
      why = why_not;
    }
  }
  static std::set<std::string> told;
  if (!left_out.empty() && told.insert(left_out).second) {
    std::cout << "left out: worlds" << left_out << ": " << why << "\n";
  }
  if (why.empty()) why = "there is only a world of one";
  if (worlds.empty()) [&] { GTEST_SKIP() << why; }();
  return worlds;
}

// --- what is expected ---

namespace {

bool has_fractions(torch::ScalarType type) {
  return torch::isFloatingType(type) || torch::isComplexType(type);
}

// Returns what rank r contributes: numbers from 0 to 3, so that sums and products are exact in
// every dtype.
Tensor input_of(int rank, torch::ScalarType type, std::int64_t count = 37) {
  const Tensor numbers = ((torch::arange(count, torch::kInt64) * 7 + rank * 5) % 4).to(type);
  if (!torch::isComplexType(type)) return numbers;
  return numbers * c10::complex<double>(1, 2 + rank);
}

Tensors inputs_of_all(int size, torch::ScalarType type) {
  Tensors inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(input_of(r, type));
  return inputs;
}

Tensor reduced(const Tensors& inputs, ReduceOp op) {
  const torch::ScalarType type = inputs[0].scalar_type();
  const bool is_bool = type == torch::kBool;
  Tensor result = inputs[0].to(torch::isComplexType(type)    ? torch::kComplexDouble
                               : torch::isFloatingType(type) ? torch::kFloat64
                                                             : torch::kInt64);
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    const Tensor next = inputs[r].to(result.scalar_type());
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kPremulSum:
      case ReduceOp::kAvg: result = is_bool ? torch::maximum(result, next) : result + next; break;
      case ReduceOp::kProduct: result = result * next; break;
      case ReduceOp::kMin: result = torch::minimum(result, next); break;
      case ReduceOp::kMax: result = torch::maximum(result, next); break;
      case ReduceOp::kBitAnd: result = torch::bitwise_and(result, next); break;
      case ReduceOp::kBitOr: result = torch::bitwise_or(result, next); break;
      case ReduceOp::kBitXor: result = torch::bitwise_xor(result, next); break;
    }
  }
  if (op == ReduceOp::kAvg) result = result / static_cast<double>(inputs.size());
  return result.to(type);
}

// Compares a result with the expected one. Sums are exact. An average of three ranks is
// rounded, and each dtype and backend rounds it in its own way, so fractions have a tolerance.
void expect_equal(const Tensor& there, const Tensor& expected, const std::string& what) {
  const Tensor result = there.cpu();
  const auto wide = torch::kComplexDouble;
  const bool is_equal = has_fractions(expected.scalar_type())
                            ? torch::allclose(result.to(wide), expected.to(wide), 1e-2, 0)
                            : torch::equal(result, expected);
  EXPECT_TRUE(is_equal) << what << "\n" << result << "\nis not\n" << expected;
}

bool is_defined(ReduceOp op, torch::ScalarType type) {
  const bool is_bitwise =
      op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  if (op == ReduceOp::kAvg) return has_fractions(type);
  if (torch::isComplexType(type)) return op == ReduceOp::kSum;
  return !is_bitwise || !torch::isFloatingType(type);
}

bool is_supported(const BackendUnderTest& backend, ReduceOp op, torch::ScalarType type) {
  if (std::ranges::find(backend.reducible, type) == backend.reducible.end()) return false;
  if (backend.has_bitwise) return true;
  if (op == ReduceOp::kBitXor) return false;
  return type == torch::kBool || (op != ReduceOp::kBitAnd && op != ReduceOp::kBitOr);
}

TEST_P(BackendConformance, AllReduceKnowsEveryDtypeAndReduction) {
  in_every_world([&](ProcessGroup& group) {
    for (const torch::ScalarType type : kAllDtypes) {
      const Tensors inputs = inputs_of_all(group.size(), type);
      for (const ReduceOp op : kReduceOps) {
        if (!is_defined(op, type)) continue;
        const std::string what = std::string(to_text(op)) + " of " + c10::toString(type);
        const Tensor tensor = put(inputs[static_cast<std::size_t>(group.rank())].clone());
        if (is_supported(GetParam(), op, type)) {
          group.all_reduce(tensor, {.op = op});
          synchronize();
          expect_equal(tensor, reduced(inputs, op), what);
        } else {
          SCOPED_TRACE(what);
          EXPECT_DIST_ERROR(group.all_reduce(tensor, {.op = op}), DistError::Kind::kUnsupported, _);
        }
      }
    }
  });
}

// Each rank has its own factor.
TEST_P(BackendConformance, PremulSumMultipliesWhatEachRankHas) {
  in_every_world([&](ProcessGroup& group) {
    for (const torch::ScalarType type : {torch::kFloat16, torch::kBFloat16, torch::kFloat32,
                                         torch::kFloat64, torch::kComplexFloat}) {
      Tensors products;
      for (int r = 0; r < group.size(); ++r)
        products.push_back(input_of(r, type) * (0.5 * (r + 1)));
      const Tensor expected = reduced(products, ReduceOp::kSum);
      const double own = 0.5 * (group.rank() + 1);
      const Tensor tensor = put(input_of(group.rank(), type));
      group.all_reduce(tensor, {.op = ReduceOp::kPremulSum, .premul_factor = own});
      synchronize();
      expect_equal(tensor, expected, c10::toString(type));

      const Tensor to_root = put(input_of(group.rank(), type));
      group.reduce(to_root, {.op = ReduceOp::kPremulSum, .premul_factor = own});
      synchronize();
      expect_equal(to_root, group.rank() == 0 ? expected : input_of(group.rank(), type), "reduce");

      const Tensor given = input_of(group.rank(), type).repeat({group.size()});
      const Tensor input = put(given.clone());
      const Tensor share = put(torch::empty({37}, type));
      group.reduce_scatter_tensor(share, input, {.op = ReduceOp::kPremulSum, .premul_factor = own});
      synchronize();
      expect_equal(share, expected, "reduce_scatter");
      EXPECT_TRUE(torch::equal(get(input), given));
    }
  });
}

const std::vector<torch::ScalarType> kMovedDtypes{torch::kUInt16,          torch::kUInt32,
                                                  torch::kUInt64,          torch::kFloat8_e5m2,
                                                  torch::kFloat8_e4m3fn,   torch::kFloat8_e5m2fnuz,
                                                  torch::kFloat8_e4m3fnuz, torch::kFloat8_e8m0fnu};

// Returns every bit pattern of a byte. `from` and `to` shift the start, so each rank and each
// pair of ranks has different contents.
Tensor bytes_as(torch::ScalarType type, int from, int to = 0) {
  return ((torch::arange(256, torch::kInt64) + 7 * from + 50 * to) % 256)
      .to(torch::kUInt8)
      .view(type);
}

void expect_same_bytes(const Tensor& there, const Tensor& expected, const std::string& what) {
  EXPECT_TRUE(torch::equal(there.cpu().view(torch::kUInt8), expected.view(torch::kUInt8)))
      << what << " of " << c10::toString(expected.scalar_type());
}

TEST_P(BackendConformance, DtypesThatCannotBeReducedAreMovedWithEveryBit) {
  in_every_world([&](ProcessGroup& group) {
    const int size = group.size(), rank = group.rank(), root = size - 1;
    for (const torch::ScalarType type : kMovedDtypes) {
      const auto room = [&] { return put(torch::zeros_like(bytes_as(type, 0))); };
      const auto room_for_all = [&] {
        Tensors all;
        for (int r = 0; r < size; ++r) all.push_back(room());
        return all;
      };
      const Tensor own = put(bytes_as(type, rank));
      const Tensor copy = put(bytes_as(type, rank));
      group.broadcast(copy, {.root = root});
      const Tensors gathered = room_for_all(), at_root = rank == root ? room_for_all() : Tensors();
      group.all_gather(gathered, own);
      group.gather(at_root, own, {.root = root});
      Tensors outgoing;
      for (int r = 0; r < size; ++r) outgoing.push_back(put(bytes_as(type, rank, r)));
      const Tensor share = room();
      group.scatter(share, rank == root ? outgoing : Tensors(), {.root = root});
      const Tensors incoming = room_for_all();
      group.all_to_all(incoming, outgoing);
      const Tensor message = room();
      if (size > 1 && rank == 0) group.send(own, root);
      if (size > 1 && rank == root) group.recv(message, 0);
      synchronize();
      expect_same_bytes(copy, bytes_as(type, root), "broadcast");
      expect_same_bytes(share, bytes_as(type, root, rank), "scatter");
      for (int r = 0; r < size; ++r) {
        const auto at = static_cast<std::size_t>(r);
        expect_same_bytes(gathered[at], bytes_as(type, r), "all_gather");
        if (rank == root) expect_same_bytes(at_root[at], bytes_as(type, r), "gather");
        expect_same_bytes(incoming[at], bytes_as(type, r, rank), "all_to_all");
      }
      if (size > 1 && rank == root) expect_same_bytes(message, bytes_as(type, 0), "send");
    }
  });
}

TEST_P(BackendConformance, CoalescedCallsDoForEachTensorWhatASingleOneDoes) {
  in_every_world([&](ProcessGroup& group) {
    const std::vector<std::int64_t> counts{5, 0, 1000, 1};
    const auto list_of = [&](int rank, torch::ScalarType type) {
      Tensors list;
      for (const std::int64_t count : counts) list.push_back(input_of(rank, type, count));
      return list;
    };
    const Tensors sums = put(list_of(group.rank(), torch::kInt32));
    group.all_reduce_coalesced(sums);
    const Tensors copies = put(list_of(group.rank(), torch::kFloat64));
    copies[0].set_data(put(get(copies[0]).to(torch::kUInt8)));  // mixed dtypes
    group.broadcast_coalesced(copies, {.root = group.size() - 1});
    Tensors together, shares;
    for (const std::int64_t count : counts) {
      together.push_back(put(torch::zeros({group.size(), count})));
      shares.push_back(put(torch::zeros({count})));
    }
    group.all_gather_into_tensor_coalesced(together, put(list_of(group.rank(), torch::kFloat32)));
    std::vector<Tensors> apart;
    for (int r = 0; r < group.size(); ++r) {
      apart.emplace_back();
      for (const std::int64_t count : counts) apart.back().push_back(put(torch::zeros({count})));
    }
    group.all_gather_coalesced(apart, put(list_of(group.rank(), torch::kFloat32)));
    synchronize();
    group.reduce_scatter_tensor_coalesced(shares, together);
    synchronize();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      Tensors of_all;
      for (int r = 0; r < group.size(); ++r) of_all.push_back(list_of(r, torch::kInt32)[i]);
      expect_equal(sums[i], reduced(of_all, ReduceOp::kSum), "all_reduce");
      const Tensor roots = list_of(group.size() - 1, torch::kFloat64)[i];
      EXPECT_TRUE(torch::equal(get(copies[i]).to(torch::kFloat64), roots));
      const Tensor gathered = get(together[i]);
      EXPECT_TRUE(torch::equal(gathered.to(torch::kInt32), torch::stack(of_all)));
      for (std::size_t r = 0; r < apart.size(); ++r)
        EXPECT_TRUE(torch::equal(get(apart[r][i]).to(torch::kInt32), of_all[r]));
      EXPECT_TRUE(torch::equal(get(shares[i]), gathered[group.rank()] * group.size()));
    }
  });
}

TEST_P(BackendConformance, AllToAllGivesEveryPairItsOwn) {
  in_every_world([&](ProcessGroup& group) {
    // Rank r has r + d + 1 rows of the number 10 r + d for rank d. Rank 1 has none for rank 0.
    const auto between = [](int from, int to) {
      const std::int64_t rows = from == 1 && to == 0 ? 0 : from + to + 1;
      return torch::full({rows, 3}, 10 * from + to, torch::kInt64);
    };
    Tensors inputs, outputs, expected;
    std::vector<std::int64_t> incoming, outgoing;
    for (int r = 0; r < group.size(); ++r) {
      inputs.push_back(between(group.rank(), r));
      expected.push_back(between(r, group.rank()));
      outputs.push_back(put(torch::zeros_like(expected.back())));
      outgoing.push_back(inputs.back().size(0));
      incoming.push_back(expected.back().size(0));
    }
    group.all_to_all(outputs, put(inputs));
    const Tensor all = torch::cat(expected);
    const Tensor single = put(torch::zeros_like(all));
    group.all_to_all_single(single, put(torch::cat(inputs)),
                            {.output_splits = incoming, .input_splits = outgoing});
    const Tensor even = put(torch::full({group.size(), 7}, group.rank()));
    const Tensor even_out = put(torch::zeros({group.size(), 7}, torch::kInt64));
    group.all_to_all_single(even_out, even);
    synchronize();
    for (std::size_t r = 0; r < expected.size(); ++r) {
      EXPECT_TRUE(torch::equal(get(outputs[r]), expected[r]));
    }
    EXPECT_TRUE(torch::equal(get(single), all));
    EXPECT_TRUE(
        torch::equal(get(even_out), torch::arange(group.size()).unsqueeze(1).expand({-1, 7})));
  });
}

TEST_P(BackendConformance, PartsOfOneTensorAreGatheredAndReducedInPlace) {
  in_every_world([&](ProcessGroup& group) {
    const Tensor whole = put(torch::zeros({group.size(), 37}));
    const Tensor own = whole[group.rank()];
    own.copy_(input_of(group.rank(), torch::kFloat32));
    group.all_gather_into_tensor(whole, own);
    synchronize();
    EXPECT_TRUE(
        torch::equal(get(whole), torch::stack(inputs_of_all(group.size(), torch::kFloat32))));
    const Tensor share = put(torch::zeros({37}));
    group.reduce_scatter_tensor(share, whole, {.op = ReduceOp::kAvg});
    synchronize();
    EXPECT_TRUE(torch::allclose(get(share), get(own)));
  });
}

TEST_P(BackendConformance, SharedTensorsAreReducedLikeOthersAndOutliveTheGroup) {
  in_every_world([&](ProcessGroup& group) {
    Tensors tensors;
    for (const std::int64_t count : {0, 3, 100'000}) {
      tensors.push_back(group.shared_empty({count, 2}, torch::kFloat64));
      ASSERT_EQ(tensors.back().sizes(), (std::vector<std::int64_t>{count, 2}));
      ASSERT_EQ(tensors.back().scalar_type(), torch::kFloat64);
      ASSERT_EQ(tensors.back().device(), group.device());
    }
    if (group.rank() == 0) kept_ = tensors.back();
    // If ranks share a GPU, no rank may map memory while kernels of another rank wait for it.
    world_->meet(group.rank());
    for (const Tensor& tensor : tensors) {
      tensor.copy_(torch::full(tensor.sizes(), group.rank() + 1, torch::kFloat64));
      group.all_reduce(tensor);
      synchronize();
      const int sum = group.size() * (group.size() + 1) / 2;
      EXPECT_TRUE(torch::equal(get(tensor), torch::full(tensor.sizes(), sum, torch::kFloat64)));
    }
  });
  if (!kept_.defined()) return;
  const int size = world_->size;
  EXPECT_EQ(get(kept_).sum().item<double>(), 200'000.0 * size * (size + 1) / 2);
}

TEST_P(BackendConformance, NobodyLeavesAMonitoredBarrierBeforeTheLastHasCome) {
  in_every_world([&](ProcessGroup& group) {
    world_->count();
    group.monitored_barrier();
    EXPECT_EQ(world_->counted(), group.size());
  });
}

TEST_P(BackendConformance, AMonitoredBarrierNamesAllWhoDoNotCome) {
  in_every_world_of_several([&](ProcessGroup& group) {
    group.monitored_barrier();
    if (group.rank() == 0) {
      std::vector<int> others;
      for (int rank = 1; rank < group.size(); ++rank) others.push_back(rank);
      EXPECT_DIST_ERROR(group.monitored_barrier(milliseconds(200)), DistError::Kind::kTimeout,
                        HasSubstr(name_ranks(others) + " did not arrive"));
    }
    world_->meet(group.rank());
  });
}

TEST_P(BackendConformance, ReduceWritesToTheRootOnly) {
  in_every_world([&](ProcessGroup& group) {
    const Tensors inputs = inputs_of_all(group.size(), torch::kFloat32);
    for (int root = 0; root < group.size(); ++root) {
      const Tensor own = inputs[static_cast<std::size_t>(group.rank())];
      const Tensor tensor = put(own.clone());
      group.reduce(tensor, {.root = root, .op = ReduceOp::kMax});
      synchronize();
      const Tensor expected = group.rank() == root ? reduced(inputs, ReduceOp::kMax) : own;
      EXPECT_TRUE(torch::equal(get(tensor), expected)) << "root " << root;
    }
  });
}

TEST_P(BackendConformance, BroadcastCopiesEveryDtypeFromEveryRoot) {
  in_every_world([&](ProcessGroup& group) {
    for (const torch::ScalarType type : kAllDtypes) {
      for (int root = 0; root < group.size(); ++root) {
        const Tensor tensor = put(input_of(group.rank(), type));
        group.broadcast(tensor, {.root = root});
        synchronize();
        EXPECT_TRUE(torch::equal(get(tensor), input_of(root, type))) << c10::toString(type);
      }
    }
  });
}

TEST_P(BackendConformance, AllGatherFillsTensorsThatLieApartAndTogether) {
  in_every_world([&](ProcessGroup& group) {
    const Tensor input = put(input_of(group.rank(), torch::kInt16));
    Tensors apart;
    for (int r = 0; r < group.size(); ++r)
      apart.push_back(put(torch::full({37}, -1, torch::kInt16)));
    const Tensors together = put(torch::full({group.size(), 37}, -1, torch::kInt16)).unbind();
    for (const Tensors& outputs : {apart, together}) {
      group.all_gather(outputs, input);
      synchronize();
      for (int r = 0; r < group.size(); ++r) {
        EXPECT_TRUE(
            torch::equal(get(outputs[static_cast<std::size_t>(r)]), input_of(r, torch::kInt16)));
      }
    }
  });
}

TEST_P(BackendConformance, AllGatherWorksInPlace) {
  in_every_world([&](ProcessGroup& group) {
    const Tensors outputs = put(torch::zeros({group.size(), 37})).unbind();
    const Tensor own = outputs[static_cast<std::size_t>(group.rank())];
    own.copy_(input_of(group.rank(), torch::kFloat32));
    group.all_gather(outputs, own);
    synchronize();
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_TRUE(
          torch::equal(get(outputs[static_cast<std::size_t>(r)]), input_of(r, torch::kFloat32)));
    }
  });
}

// Tests the forms that PyTorch allows: one tensor, a list, and several tensors in one call.
TEST_P(BackendConformance, ReduceScatterMayWriteToItsOwnShare) {
  in_every_world([&](ProcessGroup& group) {
    constexpr std::int64_t kCount = 100'000;  // more than one chunk, for backends that use chunks
    const auto share = [](int from, int to) {
      return input_of(from + 10 * to, torch::kInt32, kCount);
    };
    Tensors shares, for_me;
    for (int r = 0; r < group.size(); ++r) {
      shares.push_back(share(group.rank(), r));
      for_me.push_back(share(r, group.rank()));
    }
    const auto mine = static_cast<std::size_t>(group.rank());
    const Tensor sum = reduced(for_me, ReduceOp::kSum);
    const Tensor whole = torch::cat(shares);
    const auto own_share = [&](const Tensor& of) {
      return of.narrow(0, group.rank() * kCount, kCount);
    };
    const auto expect_in_place = [&](const Tensor& all, const char* call) {
      synchronize();
      expect_equal(own_share(all), sum, call);
      const Tensor expected = whole.clone();
      own_share(expected).copy_(get(own_share(all)));
      EXPECT_TRUE(torch::equal(get(all), expected)) << call << ": other shares are only read";
    };

    const Tensor one = put(whole.clone());
    group.reduce_scatter_tensor(own_share(one), one);
    expect_in_place(one, "reduce_scatter_tensor");

    const Tensors list = put(shares);
    group.reduce_scatter(list[mine], list);
    synchronize();
    Tensors seen;
    for (const Tensor& part : list) seen.push_back(get(part));
    expect_in_place(torch::cat(seen), "reduce_scatter");

    const Tensors several{put(whole.clone()), put(whole.clone())};
    group.reduce_scatter_tensor_coalesced({own_share(several[0]), own_share(several[1])}, several);
    for (const Tensor& all : several) expect_in_place(all, "reduce_scatter_tensor_coalesced");
  });
}

TEST_P(BackendConformance, ReduceScatterGivesEachRankItsShareAndLeavesTheInputs) {
  in_every_world([&](ProcessGroup& group) {
    // Rank r's tensor for rank d is what rank r + 10 d would contribute.
    const auto for_rank = [](int from, int to) { return input_of(from + 10 * to, torch::kInt32); };
    Tensors apart;
    for (int d = 0; d < group.size(); ++d) apart.push_back(for_rank(group.rank(), d));
    const Tensors together = put(torch::stack(apart)).unbind();
    Tensors for_me;
    for (int r = 0; r < group.size(); ++r) for_me.push_back(for_rank(r, group.rank()));
    for (const Tensors& inputs : {put(apart), together}) {
      const Tensor output = put(torch::zeros({37}, torch::kInt32));
      group.reduce_scatter(output, inputs);
      synchronize();
      expect_equal(output, reduced(for_me, ReduceOp::kSum), "share");
      for (int d = 0; d < group.size(); ++d) {
        EXPECT_TRUE(
            torch::equal(get(inputs[static_cast<std::size_t>(d)]), for_rank(group.rank(), d)));
      }
    }
  });
}

TEST_P(BackendConformance, GatherFillsTheRoot) {
  in_every_world([&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      Tensors outputs;
      const Tensor input = put(input_of(group.rank(), torch::kFloat64));
      for (int r = 0; group.rank() == root && r < group.size(); ++r) {
        outputs.push_back(put(torch::zeros({37}, torch::kFloat64)));
      }
      group.gather(outputs, input, {.root = root});
      synchronize();
      for (std::size_t r = 0; r < outputs.size(); ++r) {
        EXPECT_TRUE(torch::equal(get(outputs[r]), input_of(static_cast<int>(r), torch::kFloat64)));
      }
    }
  });
}

TEST_P(BackendConformance, ScatterHandsOutTheRootsTensors) {
  in_every_world([&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      Tensors inputs;
      if (group.rank() == root) inputs = put(inputs_of_all(group.size(), torch::kUInt8));
      const Tensor output = put(torch::zeros({37}, torch::kUInt8));
      group.scatter(output, inputs, {.root = root});
      synchronize();
      EXPECT_TRUE(torch::equal(get(output), input_of(group.rank(), torch::kUInt8)));
    }
  });
}

TEST_P(BackendConformance, GatherAndScatterWorkInPlaceOnTheRoot) {
  in_every_world([&](ProcessGroup& group) {
    Tensors list;
    const Tensor own = put(input_of(group.rank(), torch::kFloat32));
    if (group.rank() == 0) {
      list = {own};
      for (int r = 1; r < group.size(); ++r) list.push_back(put(torch::zeros({37})));
    }
    group.gather(list, own);
    group.scatter(own, list);
    synchronize();
    EXPECT_TRUE(torch::equal(get(own), input_of(group.rank(), torch::kFloat32)));
  });
}

TEST_P(BackendConformance, MessagesOfAPairArriveInOrder) {
  in_every_world_of_several([&](ProcessGroup& group) {
    // Messages go around the ring; rank 0 begins.
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    for (int i = 0; i < 5; ++i) {
      const Tensor sent = put(torch::full({3}, group.rank() * 100 + i));
      const Tensor got = put(torch::zeros({3}, torch::kInt64));
      if (group.rank() == 0) group.send(sent, next);
      group.recv(got, previous);
      if (group.rank() != 0) group.send(sent, next);
      synchronize();
      EXPECT_TRUE(torch::equal(get(got), torch::full({3}, previous * 100 + i)));
    }
  });
}

TEST_P(BackendConformance, ABatchExchangesMessagesWhateverItsOrder) {
  in_every_world_of_several([&](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    const Tensor sent = put(torch::full({200'000}, group.rank(), torch::kInt32));
    const Tensor got = put(torch::zeros({200'000}, torch::kInt32));
    const std::vector<Work> works = group.batch_isend_irecv(
        {{P2POp::Kind::kSend, sent, next}, {P2POp::Kind::kRecv, got, previous}});
    ASSERT_EQ(works.size(), 2u);
    for (const Work& work : works) work.wait(std::chrono::seconds(60));
    synchronize();
    EXPECT_TRUE(torch::equal(get(got), torch::full({200'000}, previous, torch::kInt32)));
    EXPECT_EQ(works[0].source_rank(), -1);
    EXPECT_EQ(works[1].source_rank(), previous);
  });
}

TEST_P(BackendConformance, AMessageFromAnySourceSaysWhoseItIsWhereThatIsPossible) {
  in_every_world_of_several([&](ProcessGroup& group) {
    const auto exchange = [&] {
      if (group.rank() != 0) {
        group.send(put(torch::full({3}, group.rank())), 0);
        return;
      }
      for (int i = 1; i < group.size(); ++i) {
        const Tensor got = put(torch::zeros({3}, torch::kInt64));
        const int source = group.recv(got, kAnySource).source_rank();
        EXPECT_TRUE(torch::equal(get(got), torch::full({3}, source)));
      }
    };
    if (GetParam().has_tags) return exchange();
    if (group.rank() != 0) return;
    EXPECT_DIST_ERROR(exchange(), DistError::Kind::kUnsupported, HasSubstr("any source"));
    EXPECT_DIST_ERROR(
        group.batch_isend_irecv({{P2POp::Kind::kRecv, put(torch::zeros({3})), kAnySource}})[0]
            .wait(),
        DistError::Kind::kUnsupported, HasSubstr("any source"));
  });
}

TEST_P(BackendConformance, TagsKeepMessagesApartWhereThereAreTags) {
  in_every_world_of_several([&](ProcessGroup& group) {
    if (group.rank() > 1) return;
    const auto exchange = [&] {
      const Tensor first = torch::full({2}, 1.0);
      const Tensor second = torch::full({2}, 2.0);
      if (group.rank() == 0) {
        group.send(put(first), 1, {.tag = 1});
        group.send(put(second), 1, {.tag = 2});
      } else {
        const Tensor got = put(torch::zeros({2}));
        group.recv(got, 0, {.tag = 2});
        synchronize();
        EXPECT_TRUE(torch::equal(get(got), second));
        group.recv(got, 0, {.tag = 1});
        synchronize();
        EXPECT_TRUE(torch::equal(get(got), first));
      }
    };
    if (GetParam().has_tags) return exchange();
    EXPECT_DIST_ERROR(exchange(), DistError::Kind::kUnsupported, HasSubstr("tag"));
  });
}

TEST_P(BackendConformance, TensorsOfNoElementsGoThrough) {
  in_every_world([&](ProcessGroup& group) {
    const Tensor none = put(torch::zeros({0, 3}));
    group.all_reduce(none);
    group.broadcast(none);
    Tensors outputs;
    for (int r = 0; r < group.size(); ++r) outputs.push_back(put(torch::zeros({0, 3})));
    group.all_gather(outputs, none);
    group.reduce_scatter(none, outputs);
    group.barrier();
  });
}

TEST_P(BackendConformance, NobodyLeavesABarrierBeforeTheLastHasCome) {
  in_every_world([&](ProcessGroup& group) {
    world_->count();
    group.barrier();
    EXPECT_EQ(world_->counted(), group.size());
  });
}

TEST_P(BackendConformance, AsynchronousCallsRunInTheOrderInWhichTheyWereIssued) {
  in_every_world([&](ProcessGroup& group) {
    // Each call needs the result of the call before it: maximum, average, then the root's
    // value.
    const Tensor x = put(torch::full({1000}, static_cast<double>(group.rank() + 1)));
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(group.all_reduce(x, {.op = ReduceOp::kMax, .async = true}));
      works.push_back(group.all_reduce(x, {.op = ReduceOp::kAvg, .async = true}));
      works.push_back(group.broadcast(x, {.root = group.size() - 1, .async = true}));
    }
    const Tensor y = put(torch::ones({4}));
    group.all_reduce(y);  // a blocking call runs after the asynchronous ones
    synchronize();
    EXPECT_TRUE(torch::equal(get(y), torch::full({4}, static_cast<double>(group.size()))));
    for (const Work& work : works) {
      work.wait(seconds(30));
      EXPECT_TRUE(testing_support::eventually([&] { return work.is_completed(); }));
    }
    EXPECT_TRUE(torch::equal(get(x), torch::full({1000}, static_cast<double>(group.size()))));
  });
}

TEST_P(BackendConformance, AWorkThatNobodyWaitsForIsCarriedOutAllTheSame) {
  in_every_world([&](ProcessGroup& group) {
    const Tensor x = put(torch::ones({8}));
    group.all_reduce(x, {.async = true});
    group.barrier();
    world_->drain();
    EXPECT_TRUE(torch::equal(get(x), torch::full({8}, static_cast<double>(group.size()))));
  });
}

TEST_P(BackendConformance, AfterAbortEveryCallSaysWhyItIsOver) {
  in_every_world([&](ProcessGroup& group) {
    group.barrier();
    world_->meet(group.rank());  // an abort would end a barrier that other ranks have not finished
    group.abort("enough");
    for (int i = 0; i < 2; ++i) {
      EXPECT_DIST_ERROR(group.barrier(), DistError::Kind::kStopped, HasSubstr("enough"));
    }
    world_->meet(group.rank());
  });
}

TEST_P(BackendConformance, ARankThatStaysAwayIsATimeoutAndTheEndOfTheGroup) {
  in_every_world_of_several([&](ProcessGroup& group) {
    if (group.rank() == 0) {
      const Work late =
          group.all_reduce(put(torch::ones({4})), {.timeout = milliseconds(100), .async = true});
      EXPECT_DIST_ERROR(late.wait(seconds(30)), DistError::Kind::kTimeout, HasSubstr("all_reduce"));
      EXPECT_DIST_ERROR(group.barrier(), DistError::Kind::kStopped, HasSubstr("all_reduce"));
    }
    world_->meet(group.rank());
  });
}

TEST_P(BackendConformance, DestroyingAGroupEndsWhatIsInFlight) {
  in_every_world_of_several([&](std::unique_ptr<ProcessGroup>& group) {
    const int rank = group->rank();
    group->barrier();    // the first call of nccl waits for all ranks
    world_->meet(rank);  // all ranks have left the barrier
    if (rank == 0) {
      std::vector<Work> works;
      for (int i = 0; i < 5; ++i) {
        works.push_back(group->all_reduce(put(torch::ones({4})), {.async = true}));
      }
      group.reset();
      for (const Work& work : works) {
        EXPECT_TRUE(work.is_completed());
        EXPECT_DIST_ERROR(work.wait(), DistError::Kind::kStopped, _);
      }
    }
    world_->meet(rank);
  });
}

TEST_P(ObjectConformance, ObjectsTravelWithEveryBit) {
  in_every_world([&](ProcessGroup& group) {
    const nlohmann::json mine{
        {"rank", group.rank()},
        {"exact", 0.1 + group.rank()},
        {"infinite", std::numeric_limits<double>::infinity()},
        {"large", std::numeric_limits<std::uint64_t>::max()},
        {"bytes", "not \xff UTF-8"},
        {"binary", nlohmann::json::binary({1, 2, 3}, 42)},
        {"filler", std::string(static_cast<std::size_t>(group.rank()) * 1000, 'x')}};
    const std::vector<nlohmann::json> all = group.all_gather_object(mine);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(group.size()));
    EXPECT_EQ(all[static_cast<std::size_t>(group.rank())], mine);
    for (int r = 0; r < group.size(); ++r) {
      const nlohmann::json& value = all[static_cast<std::size_t>(r)];
      EXPECT_EQ(value["rank"], r);
      EXPECT_EQ(value["exact"].get<double>(), 0.1 + r);
      EXPECT_EQ(value["filler"].get<std::string>().size(), static_cast<std::size_t>(r) * 1000);
    }
    const int root = group.size() - 1;
    const nlohmann::json none;
    EXPECT_EQ(group.broadcast_object(group.rank() == root ? mine : none, root)["rank"], root);
    EXPECT_TRUE(group.broadcast_object(none).is_null());

    const std::vector<nlohmann::json> gathered = group.gather_object(mine, root);
    ASSERT_EQ(gathered.size(), group.rank() == root ? all.size() : 0U);
    EXPECT_TRUE(gathered.empty() || gathered == all);
    EXPECT_EQ(group.scatter_object(gathered, root), mine);
  });
}

TEST_P(ObjectConformance, BytesOfAnySizeTravel) {
  in_every_world([&](ProcessGroup& group) {
    // Rank 0 has much more than the others, so the exchange must not pad all to the largest
    // size. The sizes include 0.
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1'000'000}}) {
      const auto of = [&](int rank) {
        return std::string(rank == 0 ? size : size / 1000, static_cast<char>('a' + rank));
      };
      std::vector<std::string> expected;
      for (int r = 0; r < group.size(); ++r) expected.push_back(of(r));
      EXPECT_EQ(group.all_gather_bytes(of(group.rank())), expected);
      EXPECT_EQ(group.broadcast_bytes(of(group.rank())), expected[0]);
      const std::vector<std::string> at_root = group.gather_bytes(of(group.rank()));
      EXPECT_EQ(at_root, group.rank() == 0 ? expected : std::vector<std::string>{});
      EXPECT_EQ(group.scatter_bytes(at_root), of(group.rank()));
    }
  });
}

TEST_P(ObjectConformance, WhatTorchSavesTravels) {
  in_every_world([&](ProcessGroup& group) {
    const Tensor mine = put(torch::full({2, 3}, group.rank(), torch::kBFloat16));
    const std::vector<Tensor> all = all_gather_object(group, mine);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(group.size()));
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)].device(), world_->device);
      EXPECT_TRUE(torch::equal(get(all[static_cast<std::size_t>(r)]),
                               torch::full({2, 3}, r, torch::kBFloat16)));
    }
    const int root = group.size() - 1;
    const std::vector<Tensor> two{mine, torch::arange(group.rank() + 1)};
    EXPECT_EQ(broadcast_object(group, two, root)[1].numel(), root + 1);
    const std::vector<Tensor> gathered = gather_object(group, mine, root);
    EXPECT_EQ(gathered.size(), group.rank() == root ? all.size() : 0U);
    EXPECT_TRUE(torch::equal(get(scatter_object(group, gathered, root)), get(mine)));

    // A module receives the root's parameters.
    torch::nn::Linear linear(3, 2);
    broadcast_object(group, linear, root);
    const Tensor weight = put(linear->weight.detach().clone());
    group.broadcast(weight, {.root = root});
    EXPECT_TRUE(torch::equal(get(weight), linear->weight));

    c10::Dict<std::string, std::int64_t> dictionary;
    dictionary.insert("rank", group.rank());
    const auto got = broadcast_object(group, c10::IValue(dictionary), root);
    EXPECT_EQ(got.toGenericDict().at("rank").toInt(), root);
  });
}

}  // namespace
}  // namespace ddprun
