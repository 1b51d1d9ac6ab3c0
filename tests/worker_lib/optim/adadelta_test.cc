#include "ddprun/adadelta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using torch::Tensor;
using Kind = DistError::Kind;

TEST(Adadelta, OptionsOutsideOfTheirRangesAreRefused) {
  const Tensors parameters = {torch::ones(2).requires_grad_()};
  EXPECT_DIST_ERROR(Adadelta(parameters, AdadeltaOptions(-1)), Kind::kInvalidArgument,
                    HasSubstr("Adadelta: 'lr' is -1.000000, it must be 0 or more"));
  EXPECT_DIST_ERROR(Adadelta(parameters, AdadeltaOptions().rho(1.5)), Kind::kInvalidArgument,
                    HasSubstr("'rho' is 1.5"));
  EXPECT_DIST_ERROR(Adadelta(parameters, AdadeltaOptions().eps(-1)), Kind::kInvalidArgument,
                    HasSubstr("'eps'"));
  EXPECT_DIST_ERROR(Adadelta(parameters, AdadeltaOptions().weight_decay(std::nan(""))),
                    Kind::kInvalidArgument, HasSubstr("'weight_decay' is nan"));
}

TEST(Adadelta, SparseGradientsAreRefused) {
  torch::nn::Embedding layer(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  Adadelta optimizer(layer->parameters());
  layer->forward(torch::tensor({1})).sum().backward();
  EXPECT_DIST_ERROR(optimizer.step(), Kind::kUnsupported, HasSubstr("sparse(false)"));
}

// Returns the same numbers as gradient() in tests/data/adadelta_vectors.py.
Tensor gradient(int step, int index, const Tensor& like) {
  const Tensor whole = (torch::arange(like.numel()) * 7 + step * 13 + index * 5) % 11 - 5;
  return (whole / 8).view(like.sizes()).to(like.scalar_type());
}

AdadeltaOptions options_of(const json& saved) {
  return AdadeltaOptions(saved.value("lr", 1.0))
      .rho(saved.value("rho", 0.9))
      .eps(saved.value("eps", 1e-6))
      .weight_decay(saved.value("weight_decay", 0.0))
      .maximize(saved.value("maximize", false));
}

Tensors make_parameters(torch::Dtype dtype) {
  Tensors result;
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{3, 7}, {5}})
    result.push_back((torch::arange(c10::multiply_integers(sizes), dtype) / 4 - 1)
                         .view(sizes)
                         .clone()
                         .requires_grad_());
  return result;
}

void do_step(torch::optim::Optimizer& optimizer, Tensors& parameters, int step) {
  parameters[0].mutable_grad() = gradient(step, 0, parameters[0]);
  parameters[1].mutable_grad() = step % 3 == 0 ? Tensor() : gradient(step, 1, parameters[1]);
  optimizer.step();
}

// The test has a tolerance. PyTorch's square roots differ between processors in the last bits,
// and each step makes the difference larger. optimizers_test.py tests that our bits equal
// PyTorch's on one machine.
TEST(Adadelta, HasPyTorchsWeightsAfterEveryStep) {
  std::ifstream file(DDPRUN_SOURCE_DIR "/tests/data/adadelta-vectors.json");
  const json vectors = json::parse(file);
  ASSERT_EQ(vectors.at("cases").size(), 6u);
  for (const json& one : vectors.at("cases")) {
    const auto dtype = one.at("dtype") == "float32" ? torch::kFloat32 : torch::kFloat64;
    Tensors parameters = make_parameters(dtype);
    Adadelta optimizer(parameters, options_of(one.at("options")));
    for (int step = 0; step < 12; ++step) {
      do_step(optimizer, parameters, step);
      for (std::size_t i = 0; i < 2; ++i) {
        const auto expected = one.at("steps")[static_cast<std::size_t>(step)][i];
        EXPECT_TRUE(
            torch::allclose(parameters[i],
                            torch::tensor(expected.get<std::vector<double>>(), torch::kFloat64)
                                .view(parameters[i].sizes())
                                .to(dtype),
                            /*rtol=*/dtype == torch::kFloat32 ? 1e-5 : 1e-14, /*atol=*/0))
            << one.at("name") << " " << dtype << " step " << step << " parameter " << i;
      }
    }
  }
}

// Complex numbers count as pairs of reals.
TEST(Adadelta, ComplexParametersMoveLikeTheirParts) {
  Tensor complex = torch::view_as_complex(data(1, {3, 2})).clone().requires_grad_();
  Tensor real = data(1, {3, 2}).requires_grad_();
  Adadelta of_complex({complex}), of_real({real});
  for (std::uint64_t step = 0; step < 3; ++step) {
    complex.mutable_grad() = torch::view_as_complex(data(step + 5, {3, 2}));
    real.mutable_grad() = data(step + 5, {3, 2});
    of_complex.step();
    of_real.step();
  }
  EXPECT_TRUE(same_bits(torch::view_as_real(complex.detach()), real));
}

TEST(Adadelta, AClosureComputesTheLossWithGradients) {
  Tensor parameter = torch::full({2}, 3.0).requires_grad_();
  Adadelta optimizer({parameter});
  const torch::NoGradGuard no_grad;
  const Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    Tensor value = parameter.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<double>(), 18);
  EXPECT_TRUE((parameter < 3).all().item<bool>());
}

TEST(Adadelta, GroupsHaveTheirOwnOptions) {
  Tensor fixed = torch::ones(2).requires_grad_(), moving = torch::ones(2).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups = {Tensors{fixed}, Tensors{moving}};
  groups[0].set_options(std::make_unique<AdadeltaOptions>(0));
  Adadelta optimizer(groups);
  fixed.mutable_grad() = moving.mutable_grad() = torch::ones(2);
  optimizer.step();
  EXPECT_TRUE((fixed == 1).all().item<bool>());
  EXPECT_TRUE((moving < 1).all().item<bool>());
  optimizer.param_groups()[0].options().set_lr(1);
  optimizer.step();
  EXPECT_TRUE((fixed < 1).all().item<bool>());
}

TEST(Adadelta, SavedByLibTorchItGoesOnWithTheSameBits) {
  const auto options = AdadeltaOptions(0.7).rho(0.8).weight_decay(0.01);
  Tensors undisturbed = make_parameters(torch::kFloat32), resumed;
  Adadelta before(undisturbed, options);
  for (int step = 0; step < 4; ++step) do_step(before, undisturbed, step);
  for (const Tensor& p : undisturbed) resumed.push_back(p.detach().clone().requires_grad_());
  std::stringstream file;
  torch::save(before, file);
  Adadelta after(resumed);
  torch::load(after, file);
  for (int step = 4; step < 8; ++step) {
    do_step(before, undisturbed, step);
    do_step(after, resumed, step);
  }
  expect_same(resumed, undisturbed);
}

}  // namespace
}  // namespace ddprun
