// Tests which backward passes are synchronised, and what happens to passes that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "ddprun/data_parallel.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;
using testing_support::dist_error_of;
using Model = DistributedDataParallel<torch::nn::Sequential>;

Tensors operator+(const Tensors& a, const Tensors& b) {
  Tensors sum;
  for (std::size_t i = 0; i < a.size(); ++i) sum.push_back(a[i] + b[i]);
  return sum;
}

std::vector<Tensors> operator+(const std::vector<Tensors>& a, const std::vector<Tensors>& b) {
  std::vector<Tensors> sum;
  for (std::size_t r = 0; r < a.size(); ++r) sum.push_back(a[r] + b[r]);
  return sum;
}

torch::Tensor loss(Model& model, const ProcessGroup& group, int step = 0) {
  return loss_of(model(input_of(group.rank(), step)), group.rank(), step);
}

// Runs `passes` on two ranks. Then their gradients must equal `expected` bit for bit. The
// gradients of one more, ordinary step must be right, too.
void expect_gradients(const std::function<void(Model&, ProcessGroup&)>& passes,
                      const Tensors& expected) {
  const Tensors next = averaged(local_gradients(2, 7));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    passes(model, group);
    expect_same(gradients_of(*net), expected);
    net->zero_grad();
    loss(model, group, 7).backward();
    expect_same(gradients_of(*net), next);
  });
}

const Tensors& average_of_step(int step) {
  static const std::vector<Tensors> steps{averaged(local_gradients(2, 0)),
                                          averaged(local_gradients(2, 1))};
  return steps[static_cast<std::size_t>(step)];
}

// Returns what autograd accumulates in two steps: the later gradient is added to the earlier
// one, and the sum is divided.
Tensors average_of_both_steps() { return averaged(local_gradients(2, 0) + local_gradients(2, 1)); }

// Returns the result of synchronising a gradient that is added to an average: (average + local)
// / 2, summed over both ranks.
Tensors average_on_top(const Tensors& base, int step) {
  const auto local = local_gradients(2, step);
  return averaged({base + local[0], base + local[1]});
}

// --- no_sync and accumulation

TEST(DataParallelPasses, InNoSyncGradientsStayLocal) {
  const auto local = local_gradients(2, 0);
  ThreadWorld world(2);
  world.run([&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group);
    const auto quiet = model.no_sync();
    loss(model, group, 0).backward();
    expect_same(gradients_of(*net), local[static_cast<std::size_t>(group.rank())]);
  });
  EXPECT_TRUE(sizes_of(world, "all_reduce").empty());
}

TEST(DataParallelPasses, TheFirstPassAfterNoSyncAveragesTheWholeSum) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        {
          const auto quiet = model.no_sync();
          const auto nested = model.no_sync();
          loss(model, group, 0).backward();
        }
        loss(model, group, 1).backward();
      },
      average_of_both_steps());
}

TEST(DataParallelPasses, AccumulationWorksInPlaceAsWell) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        loss(model, group, 3).backward();  // now the gradients lie in the buckets
        model->zero_grad(/*set_to_none=*/false);
        {
          const auto quiet = model.no_sync();
          loss(model, group, 0).backward();
        }
        loss(model, group, 1).backward();
      },
      average_of_both_steps());
}

TEST(DataParallelPasses, TheForwardDecidesWhetherAPassIsSynchronised) {
  const auto local = local_gradients(2, 0);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group);
    torch::Tensor inside;
    {
      const auto quiet = model.no_sync();
      inside = loss(model, group, 0);
    }
    inside.backward();
    expect_same(gradients_of(*net), local[static_cast<std::size_t>(group.rank())]);
  });
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor outside = loss(model, group, 0);
        const auto quiet = model.no_sync();
        outside.backward();
      },
      average_of_step(0));
}

TEST(DataParallelPasses, AQuietForwardDoesNotMakeAnEarlierOnesPassLocal) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor loud = loss(model, group, 0);
        {
          const auto quiet = model.no_sync();
          loss(model, group, 1);
        }
        loud.backward();
      },
      average_of_step(0));
}

// --- unusual orders of calls

TEST(DataParallelPasses, TwoPassesWithoutZeroingAddUp) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        loss(model, group, 0).backward();
        loss(model, group, 1).backward();
      },
      average_on_top(average_of_step(0), 1));
}

TEST(DataParallelPasses, OnePassOverTwoForwardsIsSynchronised) {
  // Autograd adds the gradient of the later forward first.
  const auto later_first = averaged(local_gradients(2, 1) + local_gradients(2, 0));
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor a = loss(model, group, 0), b = loss(model, group, 1);
        (a + b).backward();
      },
      later_first);
}

// PyTorch leaves the second pass local without an error.
TEST(DataParallelPasses, TwoPassesOverTwoForwardsAreBothSynchronised) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor a = loss(model, group, 0), b = loss(model, group, 1);
        a.backward();
        b.backward();
      },
      average_on_top(average_of_step(0), 1));
}

// PyTorch leaves the second pass local without an error.
TEST(DataParallelPasses, ASecondPassOverARetainedGraphIsSynchronised) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor a = loss(model, group, 0);
        a.backward({}, /*retain_graph=*/true);
        a.backward();
      },
      average_on_top(average_of_step(0), 0));
}

TEST(DataParallelPasses, ANoGradForwardInBetweenDisturbsNothing) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor a = loss(model, group, 0);
        {
          torch::NoGradGuard no_grad;
          loss(model, group, 1);
        }
        a.backward();
      },
      average_of_step(0));
}

TEST(DataParallelPasses, AForwardWithoutABackwardPassDisturbsNothing) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        loss(model, group, 1);
        loss(model, group, 0).backward();
      },
      average_of_step(0));
}

// PyTorch leaves this pass local without an error.
TEST(DataParallelPasses, APassOverTheModulesOwnForwardIsSynchronised) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        loss_of(model->forward(input_of(group.rank())), group.rank()).backward();
      },
      average_of_step(0));
}

TEST(DataParallelPasses, GradientsThatWereReplacedAreTakenOver) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const auto local = local_gradients(2, 0)[static_cast<std::size_t>(group.rank())];
        const auto parameters = model->parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i)
          parameters[i].mutable_grad() = local[i].clone();
        loss(model, group, 1).backward();
      },
      average_of_both_steps());
}

TEST(DataParallelPasses, ALayerThatIsUsedTwiceIsReducedOnce) {
  const auto results = on_each_rank(2, [](ProcessGroup& group) {
    torch::nn::Linear net(3, 3);
    {
      torch::NoGradGuard no_grad;
      for (torch::Tensor& p : net->parameters()) p.copy_(data(5, p.sizes().vec()));
    }
    DistributedDataParallel model(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1});
    const auto twice = [&](const torch::Tensor& x) { return model(torch::tanh(model(x))); };
    for (int pass = 0; pass < 2; ++pass) {
      net->zero_grad();
      twice(data(static_cast<std::uint64_t>(group.rank()), {2, 3})).sum().backward();
    }
    return gradients_of(*net);
  });
  std::vector<Tensors> local;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    torch::nn::Linear net(3, 3);
    {
      torch::NoGradGuard no_grad;
      for (torch::Tensor& p : net->parameters()) p.copy_(data(5, p.sizes().vec()));
    }
    net(torch::tanh(net(data(rank, {2, 3})))).sum().backward();
    local.push_back(gradients_of(*net));
  }
  for (const Tensors& of_rank : results) expect_same(of_rank, averaged(local));
}

// --- passes that cannot be synchronised

// Runs `pass` on both ranks. It must fail with these words, and the step after it must be
// right.
void expect_failure(const std::function<void(Model&, ProcessGroup&)>& pass,
                    const std::vector<testing::Matcher<std::string>>& words) {
  ThreadWorld world(2);
  world.run([&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    for (const int step : {0, 1}) {  // before and after the buckets are laid out anew
      try {
        pass(model, group);
        ADD_FAILURE() << "nothing was thrown on rank " << group.rank();
      } catch (const std::exception& thrown) {
        EXPECT_THAT(thrown.what(), words[static_cast<std::size_t>(group.rank())]);
      }
      net->zero_grad();
      loss(model, group, step).backward();
      expect_same(gradients_of(*net), average_of_step(step));
    }
  });
}

void expect_failure(const std::function<void(Model&, ProcessGroup&)>& pass,
                    const testing::Matcher<std::string>& words) {
  expect_failure(pass, std::vector{words, words});
}

torch::nn::LinearImpl& linear(Model& model, std::size_t layer) {
  return *(*model)[layer]->as<torch::nn::Linear>();
}

// Returns a loss that depends only on the first layer.
torch::Tensor early_loss(Model& model, const ProcessGroup& group) {
  model(input_of(group.rank()));
  return linear(model, 0).forward(input_of(group.rank())).sum();
}

TEST(DataParallelPasses, AnUnusedParameterOnOneRankIsNamedOnAllInTheSamePass) {
  expect_failure(
      [](Model& model, ProcessGroup& group) {
        (group.rank() == 1 ? early_loss(model, group) : loss(model, group)).backward();
      },
      AllOf(StartsWith("backward pass of DistributedDataParallel: rank 1 got no gradient for "
                       "'2.weight', '2.bias', '4.weight', '4.bias'"),
            Not(HasSubstr("rank 0")), Not(HasSubstr("within another"))));
}

TEST(DataParallelPasses, AnUnusedParameterOnAllRanksIsNamedForEach) {
  expect_failure([](Model& model, ProcessGroup& group) { early_loss(model, group).backward(); },
                 AllOf(HasSubstr("rank 0 got no gradient for '2.weight'"),
                       HasSubstr("; rank 1 got no gradient for '2.weight'")));
}

TEST(DataParallelPasses, AParameterThatWasFrozenLaterIsNamedAsSuch) {
  expect_failure(
      [](Model& model, ProcessGroup& group) {
        torch::Tensor weight = model->named_parameters()["2.weight"];
        weight.set_requires_grad(false);
        const torch::Tensor of_step = loss(model, group);
        struct Thaw {
          torch::Tensor frozen;
          ~Thaw() { frozen.set_requires_grad(true); }
        } const thaw{weight};
        of_step.backward();
      },
      HasSubstr("rank 0 got no gradient for '2.weight' (frozen); rank 1 got"));
}

TEST(DataParallelPasses, AnExceptionInOneRanksPassReachesAll) {
  expect_failure(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor hidden = linear(model, 0).forward(input_of(group.rank()));
        if (group.rank() == 1)
          hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("user code"); });
        linear(model, 4).forward(torch::tanh(linear(model, 2).forward(hidden))).sum().backward();
      },
      {HasSubstr("an exception left it on rank 1"), HasSubstr("user code")});
}

// The pass is given up before it has reached a parameter.
TEST(DataParallelPasses, AnExceptionBeforeTheFirstGradientReachesAll) {
  expect_failure(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor output = model(input_of(group.rank()));
        if (group.rank() == 1)
          output.register_hook([](const torch::Tensor&) { throw std::runtime_error("user code"); });
        loss_of(output, group.rank()).backward();
      },
      {HasSubstr("an exception left it on rank 1"), HasSubstr("user code")});
}

// torch::autograd::grad is no synchronised pass, so other ranks do not learn of its exception.
TEST(DataParallelPasses, AnExceptionInAutogradGradStaysOnItsRank) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor input = input_of(group.rank(), 0).requires_grad_();
        const torch::Tensor output = model(input);
        if (group.rank() == 1) {
          const torch::Tensor other = output * 1;
          other.register_hook([](const torch::Tensor&) {});
          input.register_hook([](const torch::Tensor&) { throw std::runtime_error("user code"); });
          EXPECT_THROW(torch::autograd::grad({output.sum()}, {input}, {}, /*retain_graph=*/true),
                       std::runtime_error);
        }
        const torch::Tensor again = model(input_of(group.rank(), 0));
        loss_of(again, group.rank(), 0).backward();
      },
      average_of_step(0));
}

// LibTorch then gives the parameter a new gradient accumulator, without the reducer's hook.
TEST(DataParallelPasses, ParametersWhoseDtypeChangedSinceConstructionAreNamed) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    loss(model, group).backward();
    net->zero_grad();
    net->to(torch::kFloat64);
    const torch::Tensor output = model(input_of(group.rank()).to(torch::kFloat64));
    EXPECT_THAT(
        dist_error_of([&] { output.sum().backward(); }).what(),
        HasSubstr("rank 1 got no gradient for '0.weight' (its dtype or device changed after "
                  "construction), '0.bias'"));
  });
}

// Such a pass reaches no parameter, like a pass for the gradients of the input only.
TEST(DataParallelPasses, APassOverAModuleThatIsFrozenForAWhileIsNone) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        for (torch::Tensor& p : model->parameters()) p.set_requires_grad(false);
        const torch::Tensor input = input_of(group.rank(), 0).requires_grad_();
        if (group.rank() == 0) loss_of(model(input), 0, 0).backward();
        if (group.rank() == 1) model(input);
        for (torch::Tensor& p : model->parameters()) p.set_requires_grad(true);
        loss(model, group, 0).backward();
      },
      average_of_step(0));
}

TEST(DataParallelPasses, AForwardThatThrowsDecidesNothing) {
  const auto local = local_gradients(2, 0);
  ThreadWorld world(2);
  world.run([&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group);
    EXPECT_THROW(model(torch::ones({4, 6})), c10::Error);  // the module takes 5 features
    const auto quiet = model.no_sync();
    loss(model, group, 0).backward();
    expect_same(gradients_of(*net), local[static_cast<std::size_t>(group.rank())]);
  });
  EXPECT_TRUE(sizes_of(world, "all_reduce").empty());
}

// --- several models

TEST(DataParallelPasses, OverTwoModelsOfOneGroupAreBothSynchronised) {
  const Tensors expected = averaged(local_gradients(2, 0));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto first = make_mlp(), second = make_mlp();
    Model a(first, group, kSmall), b(second, group, kSmall);
    for (int pass = 0; pass < 3; ++pass) {
      first->zero_grad();
      second->zero_grad();
      (loss(a, group) + loss(b, group)).backward();
      expect_same(gradients_of(*first), expected);
      expect_same(gradients_of(*second), expected);
    }
  });
}

// Each model would average gradients while the other one writes to them.
TEST(DataParallelPasses, OverParametersOfTwoModelsAreRefused) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    {
      Model again(net, group, kSmall);
      const torch::Tensor of_step = loss(again, group);
      EXPECT_THAT(dist_error_of([&] { of_step.backward(); }).what(),
                  HasSubstr("'0.weight' belongs to another DistributedDataParallel, too"));
    }
    net->zero_grad();
    loss(model, group).backward();
    expect_same(gradients_of(*net), average_of_step(0));
    model = Model(net, group, kSmall);  // for a moment there are two models
    net->zero_grad();
    loss(model, group).backward();
    expect_same(gradients_of(*net), average_of_step(0));
  });
}

TEST(DataParallelPasses, AModelThatIsDestroyedInItsPassLeavesNothingBehind) {
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  ThreadWorld(1).run([](ProcessGroup& group) {
    auto net = make_mlp();
    const Weak weight(net->parameters()[0].getIntrusivePtr());
    std::optional<Model> model(std::in_place, net, group);
    for (int pass = 0; pass < 2; ++pass) {
      net->zero_grad();
      torch::Tensor of_step = loss(*model, group);
      if (pass == 1)
        net->parameters()[4].register_hook([&](const torch::Tensor&) { model.reset(); });
      of_step.backward();
    }
    net = nullptr;
    EXPECT_TRUE(weight.expired());
  });
}

TEST(DataParallelPasses, CreateGraphIsRefused) {
  expect_failure(
      [](Model& model, ProcessGroup& group) {
        const torch::Tensor of_step = loss(model, group);
        of_step.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      },
      HasSubstr("create_graph is not supported"));
}

TEST(DataParallelPasses, ARefusalOnOneRankReachesAll) {
  expect_failure(
      [](Model& model, ProcessGroup& group) {
        loss(model, group)
            .backward({}, /*retain_graph=*/true,
                      /*create_graph=*/group.rank() == 0);
      },
      {HasSubstr("create_graph is not supported"), HasSubstr("an exception left it on rank 0")});
}

// Reentrant: runs `inner` in the middle of the backward pass, as re-entrant checkpointing does.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               std::function<void()>* inner) {
    context->saved_data["inner"] = reinterpret_cast<std::int64_t>(inner);
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    (*reinterpret_cast<std::function<void()>*>(context->saved_data["inner"].toInt()))();
    return {gradients[0], torch::Tensor()};
  }
};

TEST(DataParallelPasses, APassWithinAnotherThatReachesSomeParametersIsRefused) {
  expect_failure(
      [](Model& model, ProcessGroup&) {
        std::function<void()> inner = [&] {
          torch::AutoGradMode on(true);
          linear(model, 2).forward(data(1, {1, 16})).sum().backward();
        };
        const torch::Tensor x = data(3, {1}).requires_grad_();
        Reentrant::apply(x, &inner).sum().backward();
      },
      AllOf(HasSubstr("rank 0 got no gradient for '0.weight'"),
            HasSubstr("It is a backward pass within another one")));
}

TEST(DataParallelPasses, AGradientThatComesTwiceInOnePassIsRefused) {
  expect_failure(
      [](Model& model, ProcessGroup& group) {
        std::function<void()> inner = [&] {
          torch::AutoGradMode on(true);
          linear(model, 4).forward(data(1, {1, 8})).sum().backward();
        };
        // The gradients of the last layer come first; then the inner pass adds to them.
        const torch::Tensor hidden =
            linear(model, 2).forward(torch::tanh(linear(model, 0).forward(input_of(group.rank()))));
        linear(model, 4).forward(Reentrant::apply(hidden, &inner)).sum().backward();
      },
      HasSubstr("got its gradient twice in one pass"));
}

// Every inner pass delivers all gradients, so each is a synchronised pass of its own. PyTorch
// leaves all but the first local, without an error.
TEST(DataParallelPasses, APassWithinAnotherThatReachesAllParametersIsSynchronised) {
  expect_gradients(
      [](Model& model, ProcessGroup& group) {
        std::function<void()> inner = [&] {
          torch::AutoGradMode on(true);
          loss(model, group, 0).backward();
        };
        std::function<void()> second = [&] {
          torch::AutoGradMode on(true);
          loss(model, group, 1).backward();
        };
        const torch::Tensor x = data(3, {1}).requires_grad_();
        Reentrant::apply(Reentrant::apply(x, &second), &inner).sum().backward();
      },
      average_on_top(average_of_step(0), 1));
}

TEST(DataParallelPasses, ALostRankIsNamedByTheOthers) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    const torch::Tensor of_step = loss(model, group);
    if (group.rank() == 2) return;  // this destroys its group
    const DistError lost = dist_error_of([&] { of_step.backward(); });
    EXPECT_EQ(lost.kind(), Kind::kPeerLost);
    EXPECT_EQ(lost.peer_rank(), 2);
  });
}

// --- buffers

class Buffers : public testing::Test {
 protected:
  // Runs the forwards and returns for each of them whether it began with a broadcast: 'B' or
  // '-'.
  std::string broadcasts(const std::string& forwards, DataParallelOptions options = {}) {
    ThreadWorld world(2);
    std::string result;
    world.run([&](ProcessGroup& group) {
      torch::nn::BatchNorm1d net(3);
      net->options.momentum(0);  // so that the forward itself does not change the mean
      DistributedDataParallel model(net, group, options);
      for (const char kind : forwards) {
        net->running_mean.fill_(group.rank());
        net->train(kind != 'e');
        std::optional<torch::NoGradGuard> no_grad;
        std::optional<NoSync> quiet;
        if (kind == 'n' || kind == 'e') no_grad.emplace();
        if (kind == 'q') quiet.emplace(model.no_sync());
        model(data(static_cast<std::uint64_t>(group.rank()), {4, 3}));
        if (group.rank() == 1) result += net->running_mean[0].item<float>() == 0 ? 'B' : '-';
      }
    });
    return result;
  }
};

// s: synchronised forward; n: in no_grad; e: in no_grad and eval mode; q: in no_sync.
TEST_F(Buffers, AreBroadcastWhenTheForwardBeforeWasASynchronisingOne) {
  EXPECT_EQ(broadcasts("sss"), "BBB");
  EXPECT_EQ(broadcasts("snnss"), "BB--B");
  EXPECT_EQ(broadcasts("nss"), "B-B");
  EXPECT_EQ(broadcasts("qqss"), "B--B");
  EXPECT_EQ(broadcasts("sees"), "BB--");
}

TEST_F(Buffers, StayLocalWhenThatIsAskedFor) {
  EXPECT_EQ(broadcasts("sss", {.broadcast_buffers = false}), "---");
}

TEST_F(Buffers, OfAllDtypesAndThoseAssignedLaterAreBroadcast) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      a = register_buffer("a", torch::zeros({3}, torch::kBool));
      b = register_buffer("b", torch::zeros({}, torch::kInt64));
      c = register_buffer("c", torch::zeros({0, 4}));
      d = register_buffer("d", torch::zeros({2, 3}, torch::kBFloat16).t());
      weight = register_parameter("weight", torch::ones({2}));
    }
    torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
    torch::Tensor a, b, c, d, weight;
  };
  ThreadWorld(2).run([](ProcessGroup& group) {
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel model(net, group);
    net->a.fill_(group.rank() == 0);
    net->b.fill_(7 - group.rank());
    net->d.copy_(torch::arange(6).view({3, 2}) + group.rank());
    model(torch::ones({2}));
    EXPECT_TRUE(net->a.all().item<bool>());
    EXPECT_EQ(net->b.item<int>(), 7);
    EXPECT_TRUE(torch::equal(net->d, torch::arange(6, torch::kBFloat16).view({3, 2})));
  });
}

}  // namespace
}  // namespace ddprun
