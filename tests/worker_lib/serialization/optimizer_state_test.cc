#include "worker_lib/serialization/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/adadelta.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using Kind = DistError::Kind;

// FixedTraining: a net, an optimizer for it, and steps with fixed gradients. The second layer's
// bias never gets a gradient. Each layer is a parameter group.
struct FixedTraining {
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  explicit FixedTraining(const Make& make)
      : optimizer(make(
            {Groups::value_type(net[0]->parameters()), Groups::value_type(net[1]->parameters())})) {
    torch::NoGradGuard no_grad;
    for (torch::Tensor& p : net->parameters())
      p.copy_(torch::linspace(-1, 1, p.numel()).view(p.sizes()));
  }

  void steps(int first, int last) {
    for (int step = first; step < last; ++step) {
      auto parameters = net->parameters();
      for (std::size_t i = 0; i + 1 < parameters.size(); ++i)
        parameters[i].mutable_grad() = torch::sin(
            torch::arange(parameters[i].numel()).view(parameters[i].sizes()) * (step + 1.3));
      optimizer->step();
    }
  }

  torch::nn::Sequential net{torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

template <class Optimizer, class Options>
FixedTraining::Make maker(Options options) {
  return [=](const FixedTraining::Groups& groups) {
    return std::make_unique<Optimizer>(groups, options);
  };
}

struct Case {
  std::string name;
  FixedTraining::Make make;
  FixedTraining::Make make_other;  // with other options, which the saved options must replace
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class OptimizerStateTest : public testing::TestWithParam<Case> {};

TEST_P(OptimizerStateTest, AResumedOptimizerEndsWithTheSameBits) {
  FixedTraining undisturbed(GetParam().make);
  undisturbed.steps(0, 10);
  FixedTraining before(GetParam().make);
  before.steps(0, 4);
  FixedTraining after(GetParam().make_other);
  load_module_state(*after.net, through_a_file(module_state(*before.net)), "f.pt");
  load_optimizer_state(*after.optimizer, through_a_file(optimizer_state(*before.optimizer)),
                       "f.pt");
  after.steps(4, 10);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(torch::equal(after.net->parameters()[i], undisturbed.net->parameters()[i])) << i;
}

TEST_P(OptimizerStateTest, StateOfAnOptimizerThatDidNothingYetComesBack) {
  FixedTraining before(GetParam().make), after(GetParam().make_other), undisturbed(GetParam().make);
  load_optimizer_state(*after.optimizer, through_a_file(optimizer_state(*before.optimizer)),
                       "f.pt");
  after.steps(0, 3);
  undisturbed.steps(0, 3);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(torch::equal(after.net->parameters()[i], undisturbed.net->parameters()[i])) << i;
}

using namespace torch::optim;
INSTANTIATE_TEST_SUITE_P(
    All, OptimizerStateTest,
    testing::Values(
        Case{"SGD", maker<SGD>(SGDOptions(0.1)), maker<SGD>(SGDOptions(0.3).momentum(0.9))},
        Case{"SGDMomentum",
             maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01)),
             maker<SGD>(SGDOptions(0.3))},
        Case{"SGDDampening", maker<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2)),
             maker<SGD>(SGDOptions(0.3).momentum(0.1))},
        Case{"Adam", maker<Adam>(AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1)),
             maker<Adam>(AdamOptions(0.3).amsgrad(true))},
        Case{"AdamAmsgrad", maker<Adam>(AdamOptions(0.01).amsgrad(true)),
             maker<Adam>(AdamOptions(0.3))},
        Case{"AdamW", maker<AdamW>(AdamWOptions(0.01)), maker<AdamW>(AdamWOptions(0.3))},
        Case{"RMSprop", maker<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true)),
             maker<RMSprop>(RMSpropOptions(0.3))},
        Case{"RMSpropPlain", maker<RMSprop>(RMSpropOptions(0.01).alpha(0.9)),
             maker<RMSprop>(RMSpropOptions(0.3).centered(true))},
        Case{"Adagrad",
             maker<Adagrad>(AdagradOptions(0.1).lr_decay(0.01).initial_accumulator_value(0.2)),
             maker<Adagrad>(AdagradOptions(0.3))},
        Case{"Adadelta", maker<Adadelta>(AdadeltaOptions(0.7).rho(0.8).eps(1e-5).weight_decay(0.1)),
             maker<Adadelta>(AdadeltaOptions(0.3).maximize(true))}),
    [](const auto& instance) { return instance.param.name; });

// LBFGS has no parameter groups and needs a closure.
struct LbfgsTraining {
  explicit LbfgsTraining(const LBFGSOptions& options)
      : optimizer({parameters[0], parameters[1]}, options) {}

  void steps(int count) {
    for (int step = 0; step < count; ++step)
      optimizer.step([&] {
        optimizer.zero_grad();
        torch::Tensor loss = (parameters[0] - parameters[1].sum()).pow(4).sum() +
                             (parameters[1] - 1).square().sum() * 0.3;
        loss.backward();
        return loss;
      });
  }

  std::vector<torch::Tensor> parameters = {torch::linspace(-1, 2, 6).view({2, 3}).requires_grad_(),
                                           torch::linspace(1, 3, 4).requires_grad_()};
  LBFGS optimizer;
};

TEST(LbfgsState, AResumedOptimizerEndsWithTheSameBits) {
  for (const auto& options :
       {LBFGSOptions(0.1).max_iter(3), LBFGSOptions(0.1).max_iter(1).history_size(3),
        LBFGSOptions(0.5).max_iter(4).max_eval(9).line_search_fn("strong_wolfe")})
    for (const int before_saving : {0, 1, 5}) {
      LbfgsTraining undisturbed(options), before(options), after(LBFGSOptions(0.3).max_iter(7));
      undisturbed.steps(before_saving + 4);
      before.steps(before_saving);
      load_optimizer_state(after.optimizer, through_a_file(optimizer_state(before.optimizer)),
                           "f.pt");
      torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 2; ++i) after.parameters[i].copy_(before.parameters[i]);
      const torch::AutoGradMode with_gradients(true);
      after.steps(4);
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(torch::equal(after.parameters[i], undisturbed.parameters[i]))
            << i << " after " << before_saving;
      EXPECT_FALSE(torch::equal(after.parameters[0], before.parameters[0]));
    }
}

// PyTorch in Python keeps H_diag as a number after the first iteration, and sometimes t as a
// tensor. It also writes "al".
TEST(LbfgsState, PythonsMixOfNumbersAndTensorsIsRead) {
  const auto options = LBFGSOptions(0.1).max_iter(1);
  LbfgsTraining saved(options), read(options);
  saved.steps(1);
  const c10::IValue state = through_a_file(optimizer_state(saved.optimizer));
  auto first = state.toGenericDict().at("state").toGenericDict().at(0).toGenericDict();
  EXPECT_TRUE(first.at("n_iter").isInt());
  EXPECT_FALSE(first.contains("al"));
  first.insert_or_assign("H_diag", 1);
  first.insert_or_assign("t", torch::tensor(first.at("t").toDouble(), torch::kFloat64));
  auto al = make_list();
  al.push_back(c10::IValue());
  first.insert("al", al);
  load_optimizer_state(read.optimizer, state, "f.pt");
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < 2; ++i) read.parameters[i].copy_(saved.parameters[i]);
  const torch::AutoGradMode with_gradients(true);
  saved.steps(3);
  read.steps(3);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(torch::equal(read.parameters[i], saved.parameters[i])) << i;
}

TEST(LbfgsState, HistoriesThatDoNotFitAreRefused) {
  LbfgsTraining saved(LBFGSOptions(0.1).max_iter(3)), other(LBFGSOptions(0.1));
  saved.steps(3);
  const auto expect_refused = [&](const char* key, const c10::IValue& value, const char* words) {
    const c10::IValue state = through_a_file(optimizer_state(saved.optimizer));
    state.toGenericDict().at("state").toGenericDict().at(0).toGenericDict().insert_or_assign(key,
                                                                                             value);
    EXPECT_DIST_ERROR(load_optimizer_state(other.optimizer, state, "f.pt"), Kind::kInvalidArgument,
                      HasSubstr(words));
  };
  expect_refused("ro", make_list(), "and 0 entries, of a history of 100");
  expect_refused("d", torch::ones({9}), "'d' is not a vector over all parameters");
  expect_refused("H_diag", torch::ones({1}), "'H_diag' is not a number");
  c10::IValue state = through_a_file(optimizer_state(saved.optimizer));
  state.toGenericDict()
      .at("param_groups")
      .toList()
      .get(0)
      .toGenericDict()
      .insert_or_assign("history_size", 2);
  EXPECT_DIST_ERROR(load_optimizer_state(other.optimizer, state, "f.pt"), Kind::kInvalidArgument,
                    HasSubstr("of a history of 2"));
}

TEST(OptimizerState, AnOptimizerThatCannotBeSavedIsRefusedByName) {
  struct Own : Optimizer {
    using Optimizer::Optimizer;
    torch::Tensor step(LossClosure) override { return {}; }
  };
  const Own optimizer({torch::ones(2)}, std::make_unique<SGDOptions>(0.1));
  EXPECT_DIST_ERROR(optimizer_state(optimizer), Kind::kUnsupported,
                    testing::AllOf(HasSubstr("Own"), HasSubstr("Adadelta and LBFGS can be read")));
}

TEST(OptimizerState, OtherGroupsOrParametersAreRefused) {
  torch::nn::Linear small(2, 2), large(3, 2);
  SGD saved(small->parameters(), SGDOptions(0.1).momentum(0.9));
  torch::nn::Linear(small)->forward(torch::ones({1, 2})).sum().backward();
  saved.step();
  const c10::IValue state = optimizer_state(saved);
  SGD fewer({small->weight}, SGDOptions(0.1));
  SGD more_groups({torch::optim::OptimizerParamGroup({small->weight}),
                   torch::optim::OptimizerParamGroup({small->bias})},
                  SGDOptions(0.1));
  SGD other_shapes(large->parameters(), SGDOptions(0.1));
  EXPECT_DIST_ERROR(load_optimizer_state(fewer, state, "f.pt"), Kind::kInvalidArgument,
                    HasSubstr("group 0 has 2 parameters, this optimizer's has 1"));
  EXPECT_DIST_ERROR(load_optimizer_state(more_groups, state, "f.pt"), Kind::kInvalidArgument,
                    HasSubstr("1 parameter groups, this optimizer has 2"));
  EXPECT_DIST_ERROR(load_optimizer_state(other_shapes, state, "f.pt"), Kind::kInvalidArgument,
                    HasSubstr("'momentum_buffer' does not have the shape"));
}

}  // namespace
}  // namespace ddprun
