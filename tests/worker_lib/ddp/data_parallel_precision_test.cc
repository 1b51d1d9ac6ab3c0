// Tests mixed precision: parameters of 16 bits, autocast, scaled losses. The code of the
// section in docs/concepts/ddp.md is a part of this file.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "ddprun/data_parallel.h"
#include "ddprun/sync_batch_norm.h"
#include "tests/support/read_file.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing_support::ThreadWorld;
using Model = DistributedDataParallel<torch::nn::Sequential>;

// The class that docs/concepts/ddp.md shows.
class Autocast {
 public:
  explicit Autocast(torch::DeviceType device, torch::ScalarType dtype = torch::kBFloat16)
      : device_(device),
        was_on_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool was_on_;
  torch::ScalarType dtype_before_;
};

struct LossScale {
  double scale = 65536;
  int good_steps = 0;

  // Whether the step was taken: gradients are averages, so all ranks do the same.
  bool step(torch::optim::Optimizer& optimizer) {
    torch::NoGradGuard no_grad;
    bool is_finite = true;
    for (auto& group : optimizer.param_groups())
      for (auto& p : group.params())
        if (p.grad().defined())
          is_finite &= p.mutable_grad().mul_(1 / scale).isfinite().all().item<bool>();
    if (!is_finite) {
      scale /= 2;
      good_steps = 0;
      return false;
    }
    optimizer.step();
    if (++good_steps % 2000 == 0) scale *= 2;
    return true;
  }
};

// Returns the lines of code between a heading and the next one.
std::vector<std::string> code_below(const std::string& heading, const std::string& page) {
  std::istringstream lines(page.substr(page.find("\n" + heading + "\n") + heading.size() + 2));
  std::vector<std::string> code;
  bool is_code = false;
  for (std::string line; std::getline(lines, line) && (is_code || !line.starts_with("#"));) {
    if (line.starts_with("```")) {
      is_code = !is_code;
    } else if (is_code && line.find_first_not_of(' ') != std::string::npos) {
      code.push_back(line.substr(line.find_first_not_of(' ')));
    }
  }
  return code;
}

TEST(MixedPrecision, TheCodeOfTheDocsIsThisFiles) {
  const std::string root = DDPRUN_SOURCE_DIR;
  const std::string source =
      testing_support::read_file(root + "/tests/worker_lib/ddp/data_parallel_precision_test.cc");
  const auto code =
      code_below("## Mixed precision", testing_support::read_file(root + "/docs/concepts/ddp.md"));
  EXPECT_GT(code.size(), 30u);
  std::size_t position = 0;
  for (const std::string& line : code) {
    const std::size_t found = source.find(line + "\n", position);
    ASSERT_NE(found, std::string::npos) << line;
    position = found + line.size();
  }
}

// --- parameters of 16 bits

Tensors float_averages(const std::vector<Tensors>& by_rank) {
  std::vector<Tensors> exact;
  for (const Tensors& of_rank : by_rank) {
    exact.emplace_back();
    for (const torch::Tensor& one : of_rank) exact.back().push_back(one.to(torch::kFloat32));
  }
  Tensors result;
  for (std::size_t i = 0; i < exact[0].size(); ++i)
    result.push_back(averaged(exact)[i].to(by_rank[0][i].scalar_type()));
  return result;
}

class ShortParameters : public testing::TestWithParam<std::tuple<torch::ScalarType, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(MixedPrecision, ShortParameters,
                         testing::Combine(testing::Values(torch::kBFloat16, torch::kFloat16),
                                          testing::Values(2, 3), testing::Bool()));

TEST_P(ShortParameters, AreAveragedInF32AndRoundedOnce) {
  const auto [dtype, size, is_view] = GetParam();
  const auto backward = [dtype = dtype](auto&& model, int rank, int step) {
    const torch::Tensor output = model(input_of(rank, step).to(dtype));
    EXPECT_EQ(output.scalar_type(), dtype);
    loss_of(output, rank, step).backward();
  };
  std::vector<Tensors> expected;
  for (int step = 0; step < 3; ++step) {
    std::vector<Tensors> local;
    for (int rank = 0; rank < size; ++rank) {
      auto net = make_mlp();
      net->to(dtype);
      backward([&](const torch::Tensor& x) { return net->forward(x); }, rank, step);
      local.push_back(gradients_of(*net));
    }
    expected.push_back(float_averages(local));
  }
  ThreadWorld(size).run([&](ProcessGroup& group) {
    auto net = make_mlp();
    net->to(std::get<0>(GetParam()));
    Model model(net, group,
                {.first_bucket_bytes = 50,
                 .bucket_bytes = 150,
                 .gradient_as_bucket_view = std::get<2>(GetParam())});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      backward(model, group.rank(), step);
      expect_same(gradients_of(*net), expected[static_cast<std::size_t>(step)]);
    }
  });
}

// SandwichImpl: f32 layers around a bf16 layer.
struct SandwichImpl : torch::nn::Module {
  SandwichImpl() {
    register_module("below", below);
    register_module("middle", middle);
    register_module("above", above);
    torch::NoGradGuard no_grad;
    std::uint64_t seed = 300;
    for (torch::Tensor& p : parameters()) p.copy_(data(seed++, p.sizes().vec()));
    middle->to(torch::kBFloat16);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return above(middle(below(x).to(torch::kBFloat16)).to(torch::kFloat32));
  }
  torch::nn::Linear below{5, 8}, middle{8, 8}, above{8, 2};
};
TORCH_MODULE(Sandwich);

TEST(MixedPrecision, BucketsAreOfOneDtype) {
  std::vector<Tensors> local;
  for (int rank = 0; rank < 2; ++rank) {
    Sandwich net;
    loss_of(net(input_of(rank)), rank).backward();
    local.push_back(gradients_of(*net));
  }
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Sandwich net;
    DistributedDataParallel model(net, group);
    for (int pass = 0; pass < 2; ++pass) {
      net->zero_grad();
      loss_of(model(input_of(group.rank())), group.rank()).backward();
      expect_same(gradients_of(*net), float_averages(local));
    }
    const DataParallelStatistics statistics = model.statistics();
    EXPECT_THAT(statistics.dtypes, ElementsAre("Float", "BFloat16"));
    ASSERT_EQ(statistics.buckets.size(), 2u);
    EXPECT_EQ(statistics.buckets[0].dtype, "BFloat16");
    EXPECT_THAT(statistics.buckets[0].parameters, testing::UnorderedElementsAre(2, 3));
    EXPECT_EQ(statistics.buckets[1].dtype, "Float");
    EXPECT_THAT(statistics.buckets[1].parameters, testing::UnorderedElementsAre(0, 1, 4, 5));
  });
}

// --- autocast

template <class Forward>
void autocast_backward(Forward&& forward, int rank, int step, bool is_backward_inside) {
  torch::Tensor loss;
  const auto compute = [&] {
    const torch::Tensor output = forward(input_of(rank, step));
    EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
    loss = loss_of(output.to(torch::kFloat32), rank, step);
  };
  {
    const Autocast autocast(torch::kCPU);
    compute();
    if (is_backward_inside) loss.backward();
  }
  if (!is_backward_inside) loss.backward();
}

struct AutocastCase {
  const char* name;
  bool is_backward_inside;
  DataParallelOptions options;
};

class AutocastModels : public testing::TestWithParam<AutocastCase> {};
INSTANTIATE_TEST_SUITE_P(
    MixedPrecision, AutocastModels,
    testing::Values(AutocastCase{"Plain", false, {}}, AutocastCase{"Inside", true, {}},
                    AutocastCase{"Copies", false, {.gradient_as_bucket_view = false}},
                    AutocastCase{"Unused", true, {.find_unused_parameters = true}},
                    AutocastCase{"Static", false, {.static_graph = true}}),
    [](const auto& of) { return of.param.name; });

TEST_P(AutocastModels, HaveGradientsOfTheParametersDtypeWhichAreTheAverage) {
  const bool is_inside = GetParam().is_backward_inside;
  std::vector<Tensors> expected;
  for (int step = 0; step < 3; ++step) {
    std::vector<Tensors> local;
    for (int rank = 0; rank < 2; ++rank) {
      auto net = make_mlp();
      autocast_backward([&](const torch::Tensor& x) { return net->forward(x); }, rank, step,
                        is_inside);
      local.push_back(gradients_of(*net));
    }
    expected.push_back(averaged(local));
  }
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto net = make_mlp();
    DataParallelOptions options = GetParam().options;
    options.first_bucket_bytes = 100;
    options.bucket_bytes = 300;
    Model model(net, group, options);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      autocast_backward(model, group.rank(), step, is_inside);
      for (const torch::Tensor& gradient : gradients_of(*net))
        EXPECT_EQ(gradient.scalar_type(), torch::kFloat32);
      expect_same(gradients_of(*net), expected[static_cast<std::size_t>(step)]);
    }
  });
}

// The statistics stay f32. The output has the dtype of the input.
TEST(MixedPrecision, BuffersAndSyncBatchNormWorkUnderAutocast) {
  const auto results = on_each_rank(2, [](ProcessGroup& group) {
    torch::manual_seed(1);
    torch::nn::Sequential net{torch::nn::Linear(5, 4), SyncBatchNorm1d(4, group),
                              torch::nn::Linear(4, 2)};
    Model model(net, group);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      autocast_backward(model, group.rank(), step, /*is_backward_inside=*/false);
    }
    Tensors state = gradients_of(*net);
    for (const torch::Tensor& buffer : net->buffers()) state.push_back(buffer);
    for (const torch::Tensor& tensor : state) EXPECT_TRUE(tensor.isfinite().all().item<bool>());
    return state;
  });
  expect_same(results[0], results[1]);
}

// --- scaled losses

// Runs a step as in docs/concepts/ddp.md. `poison` multiplies this rank's loss.
bool scaled_step(Model& model, torch::optim::Optimizer& optimizer, LossScale& scaler, int rank,
                 int step, double poison) {
  const torch::Tensor input = input_of(rank, step);
  const auto loss_of_output = [&](const torch::Tensor& output) {
    return loss_of(output, rank, step) * poison;
  };
  optimizer.zero_grad();
  torch::Tensor loss;
  {
    const Autocast autocast(torch::kCPU);
    loss = loss_of_output(model(input).to(torch::kFloat32));
  }
  (loss * scaler.scale).backward();
  return scaler.step(optimizer);
}

TEST(MixedPrecision, AStepThatOverflowedOnOneRankIsSkippedOnAll) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto results = on_each_rank(2, [&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.first_bucket_bytes = 100, .bucket_bytes = 300});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    LossScale scaler{.scale = 1024};
    std::vector<bool> taken;
    for (int step = 0; step < 6; ++step) {
      const bool overflows = (step == 2 && group.rank() == 1) || (step == 4 && group.rank() == 0);
      const Tensors before = net->parameters();
      std::vector<torch::Tensor> copies;
      for (const torch::Tensor& p : before) copies.push_back(p.detach().clone());
      taken.push_back(
          scaled_step(model, optimizer, scaler, group.rank(), step, overflows ? inf : 1));
      if (!taken.back()) expect_same(net->parameters(), copies);
    }
    EXPECT_THAT(taken, ElementsAre(true, true, false, true, false, true));
    EXPECT_EQ(scaler.scale, 256);
    Tensors state;
    for (const torch::Tensor& p : net->parameters()) state.push_back(p.detach().clone());
    return state;
  });
  expect_same(results[0], results[1]);
}

// The scale is a power of two, so it does not change the bits of the result.
TEST(MixedPrecision, TheScaleLeavesNoTrace) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Tensors ends[2];
    for (const double scale : {1.0, 1024.0}) {
      auto net = make_mlp();
      Model model(net, group);
      torch::optim::SGD optimizer(net->parameters(), 0.01);
      LossScale scaler{.scale = scale};
      for (int step = 0; step < 3; ++step)
        EXPECT_TRUE(scaled_step(model, optimizer, scaler, group.rank(), step, 1));
      for (const torch::Tensor& p : net->parameters())
        ends[scale > 1].push_back(p.detach().clone());
    }
    expect_same(ends[0], ends[1]);
  });
}

}  // namespace
}  // namespace ddprun
