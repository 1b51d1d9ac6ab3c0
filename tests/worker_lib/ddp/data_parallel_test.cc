#include "ddprun/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;
// --- construction

TEST(DataParallelConstruction, ParametersAndBuffersBecomeRankZeros) {
  const auto results = on_each_rank(2, [](ProcessGroup& group) {
    torch::nn::Sequential net{torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)};
    net->parameters()[1].set_requires_grad(false);  // frozen parameters, too
    {
      torch::NoGradGuard no_grad;
      for (torch::Tensor& p : net->parameters()) p.fill_(group.rank() + 1);
      for (torch::Tensor& b : net->buffers()) b.fill_(group.rank() + 3);
    }
    DistributedDataParallel model(net, group);
    Tensors state = model->parameters();
    for (const torch::Tensor& buffer : model->buffers()) state.push_back(buffer);
    return state;
  });
  for (const Tensors& state : results) {
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE((state[i] == 1).all().item<bool>()) << i;
    for (std::size_t i = 4; i < 7; ++i) EXPECT_TRUE((state[i] == 3).all().item<bool>()) << i;
  }
}

// Expects that every rank throws the same words.
template <class Make>
void expect_refused(Make make, const std::string& words, DataParallelOptions options = {}) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    EXPECT_DIST_ERROR(DistributedDataParallel(make(group.rank()), group, options),
                      Kind::kInvalidArgument, HasSubstr(words));
  });
}

TEST(DataParallelConstruction, EveryRankNamesTheFirstDifferingParameter) {
  expect_refused(
      [](int rank) { return torch::nn::Linear(3, 4 + rank); },
      "rank 0 has parameter 'weight' Float of shape [4, 3] strides [3, 1] on cpu requires grad "
      "where "
      "rank 1 has parameter 'weight' Float of shape [5, 3] strides [3, 1] on cpu requires grad");
}

TEST(DataParallelConstruction, DifferencesThatPyTorchMissesAreNoticed) {
  expect_refused(
      [](int rank) {
        torch::nn::Linear net(2, 2);
        if (rank == 1) net->to(torch::kFloat64);
        return net;
      },
      "rank 1 has parameter 'weight' Double");
  expect_refused(
      [](int rank) {
        torch::nn::Linear net(2, 2);
        net->bias.set_requires_grad(rank == 1);
        return net;
      },
      "rank 0 has parameter 'bias' Float of shape [2] strides [1] on cpu requires no grad");
  expect_refused(
      [](int rank) {
        auto net = std::make_shared<torch::nn::SequentialImpl>();
        net->push_back(rank == 0 ? "a" : "b", torch::nn::Linear(2, 2));
        net->push_back(rank == 0 ? "b" : "a", torch::nn::Linear(2, 2));
        return net;
      },
      "rank 0 has parameter 'a.weight'");
  expect_refused(
      [](int rank) {
        torch::nn::Linear net(torch::nn::LinearOptions(2, 2).bias(rank == 0));
        return net;
      },
      "rank 0 has parameter 'bias'");
  expect_refused(
      [](int rank) {
        return torch::nn::BatchNorm1d(
            torch::nn::BatchNormOptions(2).track_running_stats(rank == 0));
      },
      "rank 0 has buffer 'running_mean' Float of shape [2] where rank 1 has only 0 buffers");
  // If one rank has more parameters, the others are not compared with its buffers.
  expect_refused(
      [](int rank) {
        torch::nn::Sequential net{torch::nn::Linear(2, 2)};
        if (rank == 1) net->push_back(torch::nn::Linear(2, 2));
        return net;
      },
      "rank 0 has only 2 parameters where rank 1 has parameter '1.weight'");
}

TEST(DataParallelConstruction, DifferentOptionsAreNoticed) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::Linear net(2, 2);
    const DataParallelOptions options{.bucket_bytes = 100u + static_cast<unsigned>(group.rank())};
    EXPECT_DIST_ERROR(DistributedDataParallel(net, group, options), Kind::kInvalidArgument,
                      HasSubstr("rank 0 has option 'bucket_bytes' 100 where rank 1 has option "
                                "'bucket_bytes' 101"));
  });
}

struct ElsewhereImpl : torch::nn::Module {
  ElsewhereImpl() { weight = register_parameter("weight", torch::ones({2}, torch::kMeta)); }
  torch::Tensor forward() { return weight; }
  torch::Tensor weight;
};

TEST(DataParallelConstruction, AModuleThatCannotBeTrainedIsRefused) {
  expect_refused(
      [](int) {
        torch::nn::Linear net(2, 2);
        for (torch::Tensor& p : net->parameters()) p.set_requires_grad(false);
        return net;
      },
      "no parameter of the module requires a gradient");
  expect_refused([](int) { return std::make_shared<ElsewhereImpl>(); },
                 "parameter 'weight' is on meta, the group works on cpu");
  expect_refused([](int) { return std::shared_ptr<torch::nn::LinearImpl>(); },
                 "there is no module");
  expect_refused([](int) { return torch::nn::Linear(nullptr); }, "there is no module");
  const auto linear = [](int) { return torch::nn::Linear(2, 2); };
  expect_refused(linear, "a bucket of 0 bytes", {.bucket_bytes = 0});
  expect_refused(linear, "'find_unused_parameters' and 'static_graph' exclude each other",
                 {.find_unused_parameters = true, .static_graph = true});
  expect_refused(linear, "'ignored_names' has 'wait', which is neither",
                 {.ignored_names = {"bias", "wait"}});
}

// --- calling it

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  std::tuple<torch::Tensor, int> forward(const torch::Tensor& x, int times, bool negate = false) {
    return {(negate ? -1 : 1) * a(x) * b(x) * times, times};
  }
  torch::nn::Linear a{2, 2}, b{2, 2};
};
TORCH_MODULE(TwoHeads);

TEST(DataParallel, IsCalledLikeTheModuleWhateverItsSignature) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    TwoHeads net;
    DistributedDataParallel model(net, group);
    const torch::Tensor x = torch::ones({1, 2});
    const auto [output, times] = model(x, 3);
    EXPECT_EQ(times, 3);
    EXPECT_TRUE(torch::equal(output, std::get<0>(net->forward(x, 3))));
    EXPECT_TRUE(torch::equal(std::get<0>(model.forward(x, 3, true)), -output));
    EXPECT_EQ(model->named_parameters().keys(), net->named_parameters().keys());
    EXPECT_EQ(&model->a->weight, &net->a->weight);
    EXPECT_EQ(model.module().get(), net.get());

    DistributedDataParallel shared(std::make_shared<TwoHeadsImpl>(), group);
    EXPECT_EQ(std::get<1>(shared(x, 4)), 4);
  });
}

// ManyWaysImpl: forwards with many kinds of results, each with the gradient `factor`.
struct ManyWaysImpl : torch::nn::Module {
  ManyWaysImpl() { weight = register_parameter("weight", torch::ones({2})); }
  void forward(torch::Tensor& result, double factor) { result = weight * factor; }
  torch::Tensor& forward(std::unique_ptr<double> factor) {
    kept = weight * *factor;
    return kept;
  }
  std::unique_ptr<torch::Tensor> forward(double factor, const char*) const {
    return std::make_unique<torch::Tensor>(weight * factor);
  }
  std::map<std::string, std::vector<torch::Tensor>> forward(std::vector<double> factors) const {
    return {{"outputs", {weight * factors.at(0)}}};
  }
  torch::Tensor weight, kept;
};
TORCH_MODULE(ManyWays);

TEST(DataParallel, PassesArgumentsAndResultsOnAsTheyAre) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    ManyWays net;
    DistributedDataParallel model(net, group);
    const double factor = group.rank() + 1;
    const auto expect_average = [&](const torch::Tensor& output) {
      net->zero_grad();
      output.sum().backward();
      EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2}, 1.5)));
    };
    torch::Tensor result;
    model(result, factor);
    static_assert(std::is_void_v<decltype(model(result, factor))>);
    expect_average(result);
    torch::Tensor& kept = model(std::make_unique<double>(factor));
    EXPECT_EQ(&kept, &net->kept);
    expect_average(kept);
    expect_average(*model(factor, "by pointer"));
    expect_average(model.forward(std::vector<double>{factor}).at("outputs").at(0));
  });
}

// --- averages

class DataParallelWorlds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, DataParallelWorlds, testing::Values(1, 2, 3));

// The bits depend neither on bucket sizes nor on whether a gradient was copied into its bucket
// or added up there.
TEST_P(DataParallelWorlds, GradientsAreTheAverageInEveryLayoutAndOnBothPaths) {
  const int size = GetParam();
  const Tensors expected = averaged(local_gradients(size));
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{300}, std::size_t{1} << 20})
    for (const bool set_to_none : {true, false}) {
      const auto results = on_each_rank(size, [&](ProcessGroup& group) {
        auto net = make_mlp();
        DistributedDataParallel model(net, group,
                                      {.first_bucket_bytes = bytes, .bucket_bytes = 2 * bytes});
        Tensors last;
        for (int pass = 0; pass < 3; ++pass) {
          net->zero_grad(set_to_none);
          loss_of(model(input_of(group.rank())), group.rank()).backward();
          last = gradients_of(*net);
          expect_same(last, expected);
        }
        return last;
      });
      for (const Tensors& of_rank : results) expect_same(of_rank, results[0]);
    }
}

TEST(DataParallel, BucketsFollowTheOrderInWhichGradientsBecameReady) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group, {.first_bucket_bytes = 8, .bucket_bytes = 1000});
    for (int pass = 0; pass < 2; ++pass)
      loss_of(model(input_of(group.rank())), group.rank()).backward();
  });
  // The elements are float32. The weights have 80, 128 and 16, the biases 16, 8 and 2. Each
  // slot is rounded up to 16. In the backward pass the bias of the last layer is ready first,
  // then its weight, and so on. The first bucket holds 2 of them. The last bucket also carries
  // two words of each rank.
  EXPECT_THAT(sizes_of(world, "all_reduce"), ElementsAre(64, (16 + 16 + 128 + 16 + 80 + 4) * 4, 64,
                                                         (16 + 16 + 128 + 16 + 80 + 4) * 4));
}

TEST(DataParallel, ReductionsBeginWhileTheBackwardPassGoesOn) {
  ThreadWorld world(2);
  std::atomic<int> waited = 0;
  world.run([&](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1});
    for (int pass = 0; pass < 2; ++pass) {
      // The gradient of the first layer's input comes late. By then the reduction of the last
      // layer's bucket must complete, although no rank's pass can end before this hook returns.
      torch::Tensor leaf = input_of(group.rank()).requires_grad_();
      const std::size_t before = sizes_of(world, "all_reduce").size();
      torch::Tensor output = model(leaf);
      leaf.register_hook([&](const torch::Tensor&) {
        waited += testing_support::eventually(
            [&] { return sizes_of(world, "all_reduce").size() > before; });
      });
      loss_of(output, group.rank()).backward();
      group.barrier();
    }
  });
  EXPECT_EQ(waited, 4);
}

}  // namespace
}  // namespace ddprun
