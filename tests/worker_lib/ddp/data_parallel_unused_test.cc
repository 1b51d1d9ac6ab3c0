// Tests passes that do not reach every parameter exactly once: unused parameters, static
// graphs, passes within passes. Also tests what a forward may return.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include "ddprun/data_parallel.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;

// BranchesImpl: three parallel layers. A forward uses those that are named.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    std::uint64_t seed = 200;
    for (const char* name : {"a", "b", "c"}) {
      torch::nn::Linear layer(3, 3);
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& p : layer->parameters()) p.copy_(data(seed++, p.sizes().vec()));
      layers.emplace(name, register_module(name, layer));
    }
  }
  using Output = std::map<std::string, std::vector<torch::Tensor>>;
  Output forward(const torch::Tensor& x, const std::string& used) {
    Output output;
    for (const char name : used) output["out"].push_back(layers.at(std::string(1, name))(x));
    return output;
  }
  std::map<std::string, torch::nn::Linear> layers;
};
TORCH_MODULE(Branches);
using BranchesModel = DistributedDataParallel<Branches>;

torch::Tensor sum_of(const BranchesImpl::Output& output) {
  torch::Tensor sum = torch::zeros({});
  for (const auto& [name, tensors] : output)
    for (const torch::Tensor& tensor : tensors) sum = sum + tensor.square().sum();
  return sum;
}

torch::Tensor branch_input(int rank, int step = 0) { return data(300 + rank + 10 * step, {2, 3}); }

// Returns the gradient of each parameter, and zeros where there is none.
Tensors local_branches(int rank, const std::string& used, int step = 0) {
  Branches net;
  if (!used.empty()) sum_of(net->forward(branch_input(rank, step), used)).backward();
  Tensors result;
  for (const torch::Tensor& p : net->parameters())
    result.push_back(p.grad().defined() ? p.grad() : torch::zeros_like(p));
  return result;
}

DataParallelOptions small_buckets(bool find_unused, bool static_graph = false) {
  return {.first_bucket_bytes = 40,
          .bucket_bytes = 40,
          .find_unused_parameters = find_unused,
          .static_graph = static_graph};
}

void step(BranchesModel& model, const ProcessGroup& group, const std::string& used, int number) {
  sum_of(model(branch_input(group.rank(), number), used)).backward();
}

TEST(UnusedParameters, OfOneRankGetTheAverageOfTheOthers) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(/*find_unused=*/true));
    const std::vector<std::pair<std::string, std::string>> uses{
        {"ab", "ac"}, {"c", "ab"}, {"abc", "b"}, {"abc", "abc"}};
    for (int number = 0; number < static_cast<int>(uses.size()); ++number) {
      const auto& [by_zero, by_one] = uses[static_cast<std::size_t>(number)];
      net->zero_grad();
      step(model, group, group.rank() == 0 ? by_zero : by_one, number);
      expect_same(gradients_of(*net), averaged({local_branches(0, by_zero, number),
                                                local_branches(1, by_one, number)}));
    }
  });
}

TEST(UnusedParameters, OfAllRanksKeepTheGradientsThatTheyHave) {
  for (const bool as_view : {true, false})
    ThreadWorld(2).run([&](ProcessGroup& group) {
      Branches net;
      DataParallelOptions options = small_buckets(/*find_unused=*/true);
      options.gradient_as_bucket_view = as_view;
      BranchesModel model(net, group, options);
      torch::Tensor& weight = net->layers.at("b")->weight;
      for (int number = 0; number < 3; ++number) {
        step(model, group, "ac", number);
        EXPECT_FALSE(weight.grad().defined());
      }
      // The gradient lies first in its place and then elsewhere. It differs on each rank.
      step(model, group, "b", 3);
      weight.mutable_grad().fill_(10 + group.rank());
      step(model, group, "a", 4);
      EXPECT_TRUE(same_bits(weight.grad(), torch::full_like(weight, 10 + group.rank())));
      weight.mutable_grad() = torch::full_like(weight, 20 + group.rank());
      step(model, group, "a", 5);
      EXPECT_TRUE(same_bits(weight.grad(), torch::full_like(weight, 20 + group.rank())));
    });
}

// PyTorch's example: 10 on one rank and 10 + 2 on the other make 11.
TEST(UnusedParameters, ContributeTheGradientThatTheyHave) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(/*find_unused=*/true));
    torch::Tensor& bias = net->layers.at("b")->bias;
    for (const bool in_place : {false, true}) {
      if (in_place)
        bias.mutable_grad().fill_(10);
      else
        bias.mutable_grad() = torch::full({3}, 10.0f);
      const auto output = model(branch_input(0), group.rank() == 0 ? "a" : "ab");
      torch::Tensor loss = output.at("out")[0].sum();
      if (group.rank() == 1) loss = loss + output.at("out")[1].sum();  // adds 2 to each element
      loss.backward();
      EXPECT_TRUE(same_bits(bias.grad(), torch::full({3}, 11.0f)));
    }
  });
}

TEST(UnusedParameters, MayHaveAnOutputThatIsNotInTheLoss) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(/*find_unused=*/true));
    for (int number = 0; number < 2; ++number) {
      net->zero_grad();
      const auto output = model(branch_input(group.rank()), "abc");
      output.at("out")[1].square().sum().backward();
      EXPECT_FALSE(net->layers.at("a")->weight.grad().defined());
      EXPECT_TRUE(same_bits(net->layers.at("b")->weight.grad(),
                            averaged({local_branches(0, "b"), local_branches(1, "b")})[2]));
    }
  });
}

TEST(UnusedParameters, ArePossiblePerPassWhenSeveralForwardsCameBefore) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(/*find_unused=*/true));
    for (int number = 0; number < 2; ++number) {
      net->zero_grad();
      const torch::Tensor first = sum_of(model(branch_input(group.rank()), "a"));
      const torch::Tensor second = sum_of(model(branch_input(group.rank()), "bc"));
      second.backward();
      first.backward();
      expect_same(gradients_of(*net),
                  averaged({local_branches(0, "abc"), local_branches(1, "abc")}));
    }
  });
}

TEST(UnusedParameters, HoldUpNoBucket) {
  ThreadWorld world(2);
  std::atomic<int> waited = 0;
  world.run([&](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(/*find_unused=*/true));
    step(model, group, "abc", 0);  // now the order is known: c comes first
    group.barrier();
    const std::size_t before = sizes_of(world, "all_reduce").size();
    torch::Tensor leaf = branch_input(group.rank()).requires_grad_();
    const torch::Tensor hidden = leaf * 2;
    const auto output = model(hidden, "ab");
    hidden.register_hook([&](const torch::Tensor&) {
      waited += testing_support::eventually(
          [&] { return sizes_of(world, "all_reduce").size() > before; });
    });
    sum_of(output).backward();
    group.barrier();
  });
  EXPECT_EQ(waited, 2);
}

TEST(UnusedParameters, ThatAreUsedBesideTheForwardCountUntilTheirBucketHasGone) {
  ThreadWorld world(2);
  const auto errors = world.errors([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(/*find_unused=*/true));
    step(model, group, "abc", 0);
    // No output of forward leads to c. Its bucket is the first one, and its gradient comes
    // last.
    const torch::Tensor other_branch =
        net->layers.at("c")(branch_input(group.rank())).square().sum();
    (other_branch + sum_of(model(branch_input(group.rank()), "ab"))).backward();
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error,
                testing::AnyOf(HasSubstr("'c.bias' got its gradient after its bucket was sent"),
                               HasSubstr("'c.weight' got its gradient after its bucket was sent"),
                               HasSubstr("an exception left it on rank")));
}

TEST(UnusedParameters, InNoSyncChangeNothing) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(/*find_unused=*/true));
    for (int number = 0; number < 2; ++number) {
      net->zero_grad();
      {
        const NoSync quiet = model.no_sync();
        step(model, group, "a", 0);
        EXPECT_FALSE(net->layers.at("b")->bias.grad().defined());
      }
      step(model, group, "bc", 0);
      expect_same(gradients_of(*net),
                  averaged({local_branches(0, "abc"), local_branches(1, "abc")}));
    }
  });
}

// --- static graphs

TEST(StaticGraph, RemembersWhatTheFirstPassReached) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(false, /*static_graph=*/true));
    for (int number = 0; number < 3; ++number) {
      net->zero_grad();
      step(model, group, group.rank() == 0 ? "ab" : "a", number);
      const auto expected =
          averaged({local_branches(0, "ab", number), local_branches(1, "a", number)});
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_TRUE(same_bits(net->parameters()[i].grad(), expected[i])) << number << " " << i;
      EXPECT_FALSE(net->layers.at("c")->weight.grad().defined());
    }
  });
}

TEST(StaticGraph, APassThatDiffersIsAnErrorOnEveryRankInThatPass) {
  for (const auto& [used, own, other] :
       {std::tuple{"ab", "got no gradient for 'c.", "got no gradient for 'c."},
        std::tuple{"abc", "", ""}}) {
    ThreadWorld world(2);
    const auto errors = world.errors([&, use = std::string(used)](ProcessGroup& group) {
      Branches net;
      BranchesModel model(net, group, small_buckets(false, /*static_graph=*/true));
      for (int number = 0; number < 2; ++number) step(model, group, "abc", number);
      step(model, group, group.rank() == 0 ? use : "abc", 2);
      step(model, group, "abc", 3);
    });
    EXPECT_THAT(errors[0], HasSubstr(own));
    EXPECT_THAT(errors[1], HasSubstr(other));
    if (*own) {
      EXPECT_THAT(errors[0], HasSubstr("(0 of the 1 of the first pass)"));
    }
  }
}

TEST(StaticGraph, AParameterThatWasUnusedAtFirstMayNotComeLater) {
  ThreadWorld world(2);
  const auto errors = world.errors([&](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(false, /*static_graph=*/true));
    for (int number = 0; number < 2; ++number) step(model, group, "ab", number);
    try {
      step(model, group, group.rank() == 0 ? "abc" : "ab", 2);
    } catch (const DistError&) {
      group.barrier();  // rank 0 stays until rank 1 has learned of the failure
      throw;
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("and did not in the first pass: the graph is not static"));
  EXPECT_THAT(errors[1], HasSubstr("an exception left it on rank 0"));
}

// --- passes within passes

// Checkpoint: re-entrant checkpointing. Computes `layer(x)` without a graph, and again in the
// backward pass.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Layer = std::function<torch::Tensor(torch::Tensor)>;
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const Layer* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return (*layer)(x);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode on(true);
    const auto& layer = *reinterpret_cast<const Layer*>(context->saved_data["layer"].toInt());
    layer(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

// CheckpointedImpl: `times` passes through one inner layer, each of them checkpointed.
struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl() {
    std::uint64_t seed = 400;
    const torch::NoGradGuard no_grad;
    for (torch::nn::Linear* layer : {&first, &inner, &last})
      for (torch::Tensor& p : (*layer)->parameters()) p.copy_(data(seed++, p.sizes().vec()));
    register_module("first", first);
    register_module("inner", inner);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x, int times, bool checkpoint = true) {
    torch::Tensor hidden = first(x);
    for (int i = 0; i < times; ++i)
      hidden = checkpoint ? Checkpoint::apply(hidden, &layer) : layer(hidden);
    return last(hidden);
  }
  torch::nn::Linear first{3, 3}, inner{3, 3}, last{3, 3};
  Checkpoint::Layer layer = [this](const torch::Tensor& x) { return torch::tanh(inner(x)); };
};
TORCH_MODULE(Checkpointed);
using CheckpointedModel = DistributedDataParallel<Checkpointed>;

Tensors local_checkpointed(int rank, int times, int number) {
  Checkpointed net;
  net->forward(branch_input(rank, number), times, true).square().sum().backward();
  return gradients_of(*net);
}

// Runs passes with `times` inner passes each. The gradients of every pass must be the average.
void expect_checkpointed(int times, bool static_graph) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Checkpointed net;
    CheckpointedModel model(net, group, small_buckets(false, static_graph));
    for (int number = 0; number < 3; ++number) {
      net->zero_grad(/*set_to_none=*/number == 1);
      model(branch_input(group.rank(), number), times).square().sum().backward();
      expect_same(gradients_of(*net), averaged({local_checkpointed(0, times, number),
                                                local_checkpointed(1, times, number)}));
    }
  });
}

// PyTorch's DDP needs static_graph for this, or it throws.
TEST(PassesWithinPasses, OfLayersThatAreUsedOnceAreSynchronised) {
  expect_checkpointed(1, /*static_graph=*/false);
}

// PyTorch's DDP reports no error. If all gradients come in the first inner pass, it leaves the
// contribution of the second one local.
TEST(PassesWithinPasses, OfALayerThatIsUsedSeveralTimesAreSynchronisedInAStaticGraph) {
  expect_checkpointed(2, /*static_graph=*/true);
  expect_checkpointed(3, /*static_graph=*/true);
}

TEST(PassesWithinPasses, OfALayerThatIsUsedSeveralTimesAreRefusedElsewhere) {
  ThreadWorld world(2);
  const auto errors = world.errors([&](ProcessGroup& group) {
    Checkpointed net;
    CheckpointedModel model(net, group, small_buckets(false));
    model(branch_input(group.rank()), 2).square().sum().backward();
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("got its gradient twice in one pass"),
                             HasSubstr("With the option 'static_graph'")));
}

TEST(PassesWithinPasses, OfGradientsOfTheOutputsDisturbNothing) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Branches net;
    BranchesModel model(net, group, small_buckets(false));
    for (int number = 0; number < 2; ++number) {
      net->zero_grad();
      const torch::Tensor x = branch_input(group.rank()).requires_grad_();
      const torch::Tensor loss = sum_of(model(x, "abc"));
      torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);  // reaches no parameter
      loss.backward();
      expect_same(gradients_of(*net),
                  averaged({local_branches(0, "abc"), local_branches(1, "abc")}));
    }
  });
}

// --- sparse gradients

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    const torch::NoGradGuard no_grad;
    words->weight.copy_(data(500, {10, 3}));
    out->weight.copy_(data(501, {2, 3}));
    out->bias.copy_(data(502, {2}));
    register_module("words", words);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& indices) { return out(words(indices)); }
  torch::nn::Embedding words{torch::nn::EmbeddingOptions(10, 3).sparse(true)};
  torch::nn::Linear out{3, 2};
};
TORCH_MODULE(Words);

torch::Tensor indices_of(int rank, int number) {
  return torch::tensor({rank + number, 2 * rank, 2 * rank, 7});
}

Tensors local_words(int rank, int number) {
  Words net;
  net->forward(indices_of(rank, number)).square().sum().backward();
  Tensors result;
  for (const torch::Tensor& p : net->parameters()) result.push_back(p.grad().to_dense());
  return result;
}

TEST(SparseGradients, AreAveragedOverEveryRowThatAnyRankTouched) {
  for (const int world : {1, 2, 3})
    for (const bool static_graph : {false, true}) {
      const auto results = on_each_rank(world, [&](ProcessGroup& group) {
        Words net;
        DistributedDataParallel model(net, group, small_buckets(false, static_graph));
        torch::Tensor last;
        for (int number = 0; number < 3; ++number) {
          net->zero_grad();
          model(indices_of(group.rank(), number)).square().sum().backward();
          std::vector<Tensors> local;
          for (int rank = 0; rank < world; ++rank) local.push_back(local_words(rank, number));
          const Tensors expected = averaged(local);
          last = net->words->weight.grad();
          EXPECT_EQ(last.layout(), torch::kSparse);
          EXPECT_TRUE(torch::allclose(last.to_dense(), expected[0], 1e-6, 0));
          EXPECT_TRUE(same_bits(net->out->weight.grad(), expected[1]));
        }
        return Tensors{last.to_dense()};
      });
      for (const Tensors& of_rank : results) expect_same(of_rank, results[0]);
    }
}

TEST(SparseGradients, AloneNeedNoBucket) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::EmbeddingBag net(
        torch::nn::EmbeddingBagOptions(10, 3).sparse(true).mode(torch::kSum));
    DistributedDataParallel model(net, group);
    for (int number = 0; number < 2; ++number) {
      net->zero_grad();
      model(torch::tensor({1 + group.rank(), 5}), torch::tensor({0})).sum().backward();
      const torch::Tensor rows = torch::tensor({0., .5, .5, 0., 0., 1., 0., 0., 0., 0.});
      EXPECT_TRUE(torch::equal(net->weight.grad().to_dense(),
                               rows.to(torch::kFloat32).unsqueeze(1).expand({10, 3})));
    }
  });
}

TEST(SparseGradients, OfAnUnusedLayerAreTheOthers) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Words net;
    DistributedDataParallel model(net, group, small_buckets(/*find_unused=*/true));
    for (int number = 0; number < 2; ++number) {
      net->zero_grad();
      const torch::Tensor output = model(indices_of(group.rank(), number));
      const torch::Tensor loss = group.rank() == 0 ? output.square().sum() : net->out->bias.sum();
      loss.backward();
      EXPECT_TRUE(torch::allclose(net->words->weight.grad().to_dense(),
                                  local_words(0, number)[0] / 2, 1e-6, 0));
    }
    net->zero_grad();
    model(indices_of(0, 0));
    net->out->bias.sum().backward();
    EXPECT_FALSE(net->words->weight.grad().defined());
  });
}

TEST(SparseGradients, ThatNoLayerAnnouncedAreRefusedOnEveryRank) {
  struct Own : torch::nn::Module {
    Own() { weight = register_parameter("weight", torch::ones({4, 2})); }
    torch::Tensor forward(const torch::Tensor& i) {
      return torch::embedding(weight, i, -1, false, /*sparse=*/true);
    }
    torch::Tensor weight;
  };
  ThreadWorld(2).run([](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Own>(), group);
    const torch::Tensor output = model(torch::tensor({1})).sum();
    EXPECT_DIST_ERROR(output.backward(), Kind::kUnsupported,
                      HasSubstr("'weight' has a sparse gradient; sparse ones are those of"));
  });
}

// --- ignored names

TEST(IgnoredNames, AreEachRanksOwn) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::BatchNorm1d net(2);
    {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(1 + group.rank());
      net->bias.fill_(1 + group.rank());
      net->running_mean.fill_(1 + group.rank());
      net->running_var.fill_(1 + group.rank());
    }
    DistributedDataParallel model(net, group, {.ignored_names = {"weight", "running_mean"}});
    EXPECT_EQ(net->weight[0].item<int>(), 1 + group.rank());
    EXPECT_EQ(net->bias[0].item<int>(), 1);
    EXPECT_EQ(net->running_mean[0].item<int>(), 1 + group.rank());
    EXPECT_EQ(net->running_var[0].item<int>(), 1);
    net->eval();
    for (int number = 0; number < 2; ++number) {
      net->zero_grad();
      (model(torch::ones({2, 2})) * (1 + group.rank())).sum().backward();
      EXPECT_EQ(net->bias.grad()[0].item<float>(), 3);  // the average of 2 and 4
      EXPECT_EQ(net->weight.grad()[0].item<float>() == 0, group.rank() == 0);
    }
  });
}

// --- what a forward may return

struct Parts {
  torch::Tensor a, b;
};
template <class Visit>
void visit_parts(const Parts& parts, Visit visit) {
  visit(parts.a);
  visit(parts.b);
}

TEST(OutputTensors, AreFoundInEveryNesting) {
  const auto values = [](const auto& output) {
    std::vector<int> result;
    for (const torch::Tensor& tensor : tensors_in(output)) result.push_back(tensor.item<int>());
    return result;
  };
  const auto t = [](int value) { return torch::tensor(value); };
  EXPECT_THAT(values(t(1)), ElementsAre(1));
  EXPECT_THAT(values(torch::Tensor()), ElementsAre());
  EXPECT_THAT(values(std::vector{t(1), t(2)}), ElementsAre(1, 2));
  EXPECT_THAT(values(std::tuple{t(1), 5, std::string("x"), std::pair{t(2), 0.5}}),
              ElementsAre(1, 2));
  EXPECT_THAT(values(std::map<std::string, std::array<torch::Tensor, 2>>{{"k", {t(1), t(2)}}}),
              ElementsAre(1, 2));
  EXPECT_THAT(values(std::optional<torch::Tensor>()), ElementsAre());
  EXPECT_THAT(values(std::optional(std::vector{t(3)})), ElementsAre(3));
  EXPECT_THAT(values(std::make_shared<torch::Tensor>(t(4))), ElementsAre(4));
  torch::OrderedDict<std::string, torch::Tensor> dict;
  dict.insert("x", t(5));
  EXPECT_THAT(values(dict), ElementsAre(5));
  EXPECT_THAT(values(c10::IValue(c10::ivalue::Tuple::create({t(6), std::vector{t(7)}}))),
              ElementsAre(6, 7));
  EXPECT_THAT(values(std::vector{Parts{t(8), t(9)}}), ElementsAre(8, 9));
  EXPECT_THAT(values(3), ElementsAre());
  EXPECT_THAT(values("text"), ElementsAre());
}

}  // namespace
}  // namespace ddprun
