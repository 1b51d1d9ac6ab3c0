// Tests where gradients lie, which kinds of gradients are possible, and what the rest of
// LibTorch does to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/utils/clip_grad.h>

#include "ddprun/data_parallel.h"
#include "tests/support/eventually.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing_support::ThreadWorld;
using torch::optim::Optimizer;

void backward(DistributedDataParallel<torch::nn::Sequential>& model, const ProcessGroup& group,
              int step = 0) {
  loss_of(model(input_of(group.rank(), step)), group.rank(), step).backward();
}

std::vector<const void*> places(torch::nn::Module& net) {
  std::vector<const void*> result;
  for (const torch::Tensor& p : net.parameters()) result.push_back(p.grad().const_data_ptr());
  return result;
}

TEST(DataParallelGradients, StayInTheirBucketsWhateverClearsThem) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group, {.first_bucket_bytes = 100, .bucket_bytes = 300});
    torch::optim::SGD optimizer(net->parameters(), 0.0);
    backward(model, group);  // after this pass the bucket layout is final
    const auto home = places(*net);
    const auto expect_home_after = [&](const std::function<void()>& clear) {
      clear();
      backward(model, group);
      EXPECT_EQ(places(*net), home);
      expect_same(gradients_of(*net), averaged(local_gradients(2, 0)));
    };
    expect_home_after([&] { optimizer.zero_grad(); });
    expect_home_after([&] { optimizer.zero_grad(/*set_to_none=*/false); });
    expect_home_after([&] { net->zero_grad(); });
    expect_home_after([&] { net->zero_grad(/*set_to_none=*/false); });
    expect_home_after([&] {
      for (torch::Tensor& p : net->parameters()) p.mutable_grad() = torch::zeros_like(p);
    });
  });
}

TEST(DataParallelGradients, OfOneBucketShareOneBlockOfMemory) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 2; ++step) backward(model, group);
    auto home = places(*net);
    std::ranges::sort(home);
    const auto* first = static_cast<const char*>(home.front());
    const auto* last = static_cast<const char*>(home.back());
    EXPECT_LT(last - first, 2048);  // 250 elements of 4 bytes, each slot aligned
  });
}

TEST(DataParallelGradients, OutliveTheWrapper) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    auto net = make_mlp();
    {
      DistributedDataParallel model(net, group);
      backward(model, group);
    }
    expect_same(gradients_of(*net), averaged(local_gradients(1)));
    net->zero_grad(false);
    loss_of(net->forward(input_of(0)), 0).backward();  // the hooks are gone
    expect_same(gradients_of(*net), averaged(local_gradients(1)));
  });
}

// DataParallelOptimizers: every optimizer, and gradient clipping, works on gradients that lie
// in buckets. The resulting bits equal those of the averaged gradients without
// DistributedDataParallel.
class DataParallelOptimizers : public testing::TestWithParam<int> {
 protected:
  static std::unique_ptr<Optimizer> make(const Tensors& parameters) {
    using namespace torch::optim;
    switch (GetParam()) {
      case 0:
        return std::make_unique<SGD>(parameters, SGDOptions(0.1).momentum(0.9).nesterov(true));
      case 1: return std::make_unique<Adam>(parameters, AdamOptions(0.01).weight_decay(0.1));
      case 2: return std::make_unique<AdamW>(parameters, AdamWOptions(0.01).amsgrad(true));
      case 3: return std::make_unique<RMSprop>(parameters, RMSpropOptions(0.01).centered(true));
      default: return std::make_unique<Adagrad>(parameters, AdagradOptions(0.01));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, DataParallelOptimizers, testing::Range(0, 5));

TEST_P(DataParallelOptimizers, TakeTheStepsThatTheAverageAsksFor) {
  constexpr int kSteps = 5;
  // One process computes the gradients of both ranks itself.
  auto alone = make_mlp();
  const auto own_optimizer = make(alone->parameters());
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensors> local;
    for (int rank = 0; rank < 2; ++rank) {
      alone->zero_grad();
      loss_of(alone->forward(input_of(rank, step)), rank, step).backward();
      local.push_back(gradients_of(*alone));
    }
    const Tensors average = averaged(local);
    for (std::size_t i = 0; i < average.size(); ++i)
      alone->parameters()[i].mutable_grad() = average[i];
    torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.5);
    own_optimizer->step();
  }
  const auto results = on_each_rank(2, [&](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group, {.first_bucket_bytes = 100, .bucket_bytes = 300});
    const auto optimizer = make(net->parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad(step % 2 == 0);
      backward(model, group, step);
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
      optimizer->step();
    }
    return net->parameters();
  });
  for (const Tensors& parameters : results) expect_same(parameters, alone->parameters());
}

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    const auto add = [this](const char* name, torch::ScalarType type) {
      register_parameter(name, torch::ones({3, 2}, type));
    };
    add("f32", torch::kFloat32);
    add("f64", torch::kFloat64);
    add("bf16", torch::kBFloat16);
    add("f16", torch::kFloat16);
    add("c64", torch::kComplexFloat);
    add("more_f32", torch::kFloat32);
    register_parameter("none", torch::ones({0, 2}));
  }
  torch::Tensor forward(double scale) {
    torch::Tensor sum = torch::zeros({}, torch::kFloat64);
    for (const auto& item : named_parameters()) {
      const torch::Tensor& p = item.value();
      const auto real = p.is_complex() ? torch::view_as_real(p * c10::complex<float>(1, 2)) : p;
      sum = sum + (real * scale).sum().to(torch::kFloat64);
    }
    return sum;
  }
};
TORCH_MODULE(Mixed);

TEST(DataParallelGradients, OfSeveralDtypesAreAveragedEachInItsOwn) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Mixed net;
    DistributedDataParallel model(net, group);
    for (int pass = 0; pass < 2; ++pass) {
      net->zero_grad();
      model(group.rank() == 0 ? 1.0 : 4.0).backward();
      for (const auto& item : net->named_parameters()) {
        const torch::Tensor& gradient = item.value().grad();
        EXPECT_EQ(gradient.dtype(), item.value().dtype()) << item.key();
        // (a+bi)(1+2i) has the parts a-2b and b+2a, whose sum is 3a-b.
        const auto expected =
            gradient.is_complex()
                ? torch::full({3, 2}, c10::complex<float>(7.5, -2.5), torch::kComplexFloat)
                : torch::full_like(gradient, 2.5);
        EXPECT_TRUE(torch::equal(gradient, expected)) << item.key();
      }
    }
  });
}

TEST(DataParallelGradients, KeepTheStridesOfTheirParameters) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::Conv2d net(3, 4, 3);
    net->weight.set_data(net->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    DistributedDataParallel model(net, group);
    for (int pass = 0; pass < 2; ++pass) {
      net->zero_grad();
      model(data(static_cast<std::uint64_t>(group.rank()), {2, 3, 5, 5})).sum().backward();
      EXPECT_EQ(net->weight.grad().strides(), net->weight.strides());
    }
    torch::nn::Conv2d alone(3, 4, 3);
    std::vector<Tensors> local;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      alone->zero_grad();
      // The gradient does not depend on the weights.
      alone(data(rank, {2, 3, 5, 5})).sum().backward();
      local.push_back({alone->weight.grad().clone()});
    }
    EXPECT_TRUE(torch::allclose(net->weight.grad(), averaged(local)[0], 1e-5, 1e-5));
  });
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    a = register_module("a", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
    register_parameter("again", a->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) { return a(a(x)); }
  torch::nn::Linear a{nullptr};
};
TORCH_MODULE(Tied);

TEST(DataParallelGradients, OfASharedParameterAreReducedOnce) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    Tied net;
    EXPECT_EQ(net->parameters().size(), 2u);
    DistributedDataParallel model(net, group);
    model(torch::ones({1, 2})).sum().backward();
  });
  // 4 elements in a slot of 16, and two words from each rank.
  EXPECT_THAT(sizes_of(world, "all_reduce"), testing::ElementsAre(20 * 4));
}

// --- what the rest of the program does to gradients

TEST(DataParallelGradients, AreRightWithTheOptionThatHasNoEffect) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group, {.compute_gradients_in_buckets = true});
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      backward(model, group, step);
      expect_same(gradients_of(*net), averaged(local_gradients(2, step)));
    }
  });
}

struct SquareImpl : torch::nn::Module {
  SquareImpl() { w = register_parameter("w", torch::ones({64, 64})); }
  torch::Tensor forward(const torch::Tensor& x) { return x.mm(w); }
  torch::Tensor w;
};
TORCH_MODULE(Square);

// A gradient of the input may have the size of a parameter's gradient. It belongs to the
// program, so it must not change in the passes in which this rank answers the collectives of
// the others.
TEST(DataParallelGradients, OfOtherTensorsSurviveTheEndOfAJoin) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Square net;
    DistributedDataParallel model(net, group);
    const int inputs = group.rank() == 0 ? 6 : 3;
    torch::Tensor kept;
    model.join([&] {
      for (int i = 0; i < inputs; ++i) {
        net->zero_grad();
        const bool is_last = group.rank() == 1 && i == inputs - 1;
        torch::Tensor x = torch::ones({64, 64});
        if (is_last) x.requires_grad_(true);
        const torch::Tensor loss = model(x).sum();
        loss.backward({}, /*retain_graph=*/is_last, false, std::vector<torch::Tensor>{net->w});
        net->zero_grad();
        if (is_last) kept = torch::autograd::grad({loss}, {x})[0];
      }
    });
    if (group.rank() == 1) {
      EXPECT_TRUE(torch::equal(kept, torch::full({64, 64}, 64.f)));
    }
  });
}

TEST(DataParallelGradients, ThatAHookKeepsStayLocal) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group);
    Tensors kept;
    net->parameters()[2].register_hook(
        [&](const torch::Tensor& gradient) { kept.push_back(gradient); });
    for (int step = 0; step < 5; ++step) {
      net->zero_grad();
      backward(model, group, step);
      expect_same(gradients_of(*net), averaged(local_gradients(2, step)));
    }
    for (int step = 0; step < 5; ++step) {
      const auto local = local_gradients(2, step)[static_cast<std::size_t>(group.rank())];
      EXPECT_TRUE(same_bits(kept[static_cast<std::size_t>(step)], local[2])) << step;
    }
  });
}

// Look: an identity. Its backward pass calls `look` with the gradient.
struct Look : torch::autograd::Function<Look> {
  using Action = std::function<void(const torch::Tensor&)>;
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const Action* look) {
    context->saved_data["look"] = reinterpret_cast<std::int64_t>(look);
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    (*reinterpret_cast<const Action*>(context->saved_data["look"].toInt()))(gradients[0]);
    return {gradients[0], torch::Tensor()};
  }
};

// EmbeddedImpl: adds a position embedding to one sequence. The embedding's gradient is a view
// of the gradient that goes on to the layer below.
struct EmbeddedImpl : torch::nn::Module {
  EmbeddedImpl() {
    register_module("below", below);
    positions = register_parameter("positions", torch::ones({1, 6, 4}));
  }
  torch::Tensor forward(const torch::Tensor& x, const Look::Action* look) {
    const torch::Tensor hidden = Look::apply(below(x), look);
    return (hidden + positions.squeeze(0)) * 2;
  }
  torch::nn::Linear below{4, 4};
  torch::Tensor positions;
};
TORCH_MODULE(Embedded);

TEST(DataParallelGradients, ThatAreViewsOfWhatOtherLayersNeedAreNotReducedUnderThem) {
  ThreadWorld world(2);
  world.run([&](ProcessGroup& group) {
    Embedded net;
    DistributedDataParallel model(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1});
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      const torch::Tensor factors = data(static_cast<std::uint64_t>(group.rank()), {6, 4});
      const std::size_t before = sizes_of(world, "all_reduce").size();
      // From the second pass on, the bucket of `positions` is sent first. Its reduction must
      // complete here.
      const Look::Action look = [&](const torch::Tensor& gradient) {
        const bool is_through = step == 0 || testing_support::eventually([&] {
                                  return sizes_of(world, "all_reduce").size() > before;
                                });
        EXPECT_TRUE(is_through);
        EXPECT_TRUE(same_bits(gradient, factors * 2)) << step;
      };
      (model(torch::ones({6, 4}), &look) * factors).sum().backward();
      EXPECT_TRUE(same_bits(net->positions.grad().squeeze(0), data(0, {6, 4}) + data(1, {6, 4})));
      group.barrier();
    }
  });
}

}  // namespace
}  // namespace ddprun
