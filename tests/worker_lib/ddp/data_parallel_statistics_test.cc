// Tests what statistics() returns for real passes. core/step_statistics_test tests the
// arithmetic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/modules/activation.h>

#include "ddprun/data_parallel.h"
#include "ddprun/sampler.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"
#include "worker_lib/ddp/step_recorder.h"
#include "worker_lib/flight/worker_reporter.h"
#include "worker_lib/group/work_state.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::ThreadWorld;
using Model = DistributedDataParallel<torch::nn::Sequential>;
using Kind = DistError::Kind;

void train(Model& model, const ProcessGroup& group, int step = 0) {
  model->zero_grad();
  loss_of(model(input_of(group.rank(), step)), group.rank(), step).backward();
}

// Waits at least this long on the clock that statistics use. Returns the time that has passed.
Duration spend(Duration at_least) {
  const TimePoint began = BootClock::now();
  while (BootClock::now() - began < at_least) {
  }
  return BootClock::now() - began;
}

constexpr Duration kLong = std::chrono::milliseconds(20);

// --- without times

TEST(DataParallelStatistics, SayWhatIsThereAlsoWithoutTheOption) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::Sequential net{torch::nn::Linear(5, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 2)};
    Model model(net, group, {.first_bucket_bytes = 8, .bucket_bytes = 1000});
    DataParallelStatistics before = model.statistics();
    EXPECT_EQ(before.rank, group.rank());
    EXPECT_EQ(before.world_size, 2);
    EXPECT_EQ(before.backend, "cpu");
    EXPECT_EQ(before.module, "torch::nn::SequentialImpl");
    EXPECT_THAT(before.parameters, ElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
    EXPECT_EQ(before.parameter_bytes, (80u + 16 + 32 + 2) * 4);
    EXPECT_THAT(before.dtypes, ElementsAre("Float"));
    EXPECT_FALSE(before.has_rebuilt_buckets);
    EXPECT_THAT(before.ready_order, IsEmpty());
    EXPECT_EQ(before.passes, 0);

    for (int step = 0; step < 3; ++step) train(model, group, step);
    const DataParallelStatistics after = model.statistics();
    EXPECT_EQ(after.passes, 3);
    EXPECT_TRUE(after.has_rebuilt_buckets);
    EXPECT_THAT(after.ready_order, ElementsAre(3, 2, 1, 0));
    EXPECT_THAT(after.unused, IsEmpty());
    ASSERT_EQ(after.buckets.size(), 2u);
    EXPECT_EQ(after.buckets[0].bytes, 8u);
    EXPECT_THAT(after.buckets[0].parameters, ElementsAre(3));
    EXPECT_EQ(after.buckets[1].bytes, (80u + 16 + 32) * 4);
    EXPECT_EQ(after.buckets[1].dtype, "Float");
    EXPECT_THAT(after.buckets[1].parameters, ElementsAre(2, 1, 0));

    EXPECT_FALSE(after.last);
    EXPECT_EQ(after.recent.steps, 0u);
    EXPECT_THAT(after.table(), HasSubstr("no times: the option 'statistics_every' is 0"));
  });
}

// PyTorch 2.11 gives these strings for this net.
TEST(DataParallelStatistics, HavePyTorchsNames) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::Sequential net{torch::nn::Linear(5, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 2)};
    Model model(net, group, {.statistics_every = 1});
    EXPECT_FALSE(logging_data(model.statistics()).contains("backward_comm_time"));
    for (int step = 0; step < 3; ++step) train(model, group, step);
    const DataParallelStatistics statistics = model.statistics();
    const nlohmann::json data = logging_data(statistics);
    EXPECT_EQ(data["bucket_sizes"], "520");
    EXPECT_EQ(data["rebuilt_bucket_sizes"], "520");
    EXPECT_EQ(data["rebuilt_per_bucket_param_indices"], "3 2 1 0");
    EXPECT_EQ(data["prev_iteration_grad_ready_order_indices"], "3, 2, 1, 0");
    EXPECT_EQ(data["bucket_cap_bytes"], 26214400);
    EXPECT_EQ(data["num_parameter_tensors"], 4);
    EXPECT_EQ(data["total_parameter_size_bytes"], 520);
    EXPECT_EQ(data["has_rebuilt_buckets"], 1);
    EXPECT_EQ(data["num_buckets_reduced"], 1);
    EXPECT_EQ(data["backward_compute_time"], statistics.last->compute.count());
    EXPECT_EQ(data["avg_backward_comm_time"], statistics.recent.communication.mean.count());
    EXPECT_EQ(data["backward_compute_comm_overlap_time"], statistics.last->overlap.count());
    EXPECT_EQ(data["forward_compute_time"], statistics.last->forward.count());
  });
}

TEST(DataParallelStatistics, NameWhatNoGradientCameFor) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.find_unused_parameters = true, .statistics_every = 1});
    for (int step = 0; step < 2; ++step) {
      model(input_of(group.rank()));
      (*model)[0]->as<torch::nn::Linear>()->forward(input_of(group.rank())).sum().backward();
    }
    const DataParallelStatistics statistics = model.statistics();
    EXPECT_THAT(statistics.unused, ElementsAre(2, 3, 4, 5));
    EXPECT_EQ(statistics.unused_bytes, (128u + 8 + 16 + 2) * 4);
    EXPECT_EQ(statistics.last->pass, 2);
  });
}

// --- times of whole steps

void expect_plausible(const StepTimes& step) {
  const Duration none = {};
  EXPECT_GE(step.exchange, none);
  EXPECT_LE(step.exchange, step.forward);
  EXPECT_GT(step.compute, none);
  EXPECT_LE(step.compute + step.exposed, step.backward);
  EXPECT_EQ(step.overlap + step.exposed, step.communication);
  EXPECT_GE(step.overlap, none);
  EXPECT_GT(step.exposed, none);  // the last bucket waits for the end of the pass
  Duration sent_before = {};
  for (const BucketTimes& bucket : step.buckets) {
    EXPECT_GT(bucket.gradients, 0u);
    EXPECT_GE(bucket.ready, none);
    EXPECT_LE(bucket.ready, bucket.sent);
    EXPECT_LE(bucket.sent, bucket.done);
    EXPECT_LE(bucket.done, step.backward);
    EXPECT_GE(bucket.sent, sent_before);
    sent_before = bucket.sent;
  }
}

struct Way {
  const char* name;
  DataParallelOptions options;
  std::shared_ptr<CommHook> (*hook)() = nullptr;
};

class WaysToReduce : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(DataParallelStatistics, WaysToReduce,
                         testing::Values(Way{"Plain", {}},
                                         Way{"Copies", {.gradient_as_bucket_view = false}},
                                         Way{"Unused", {.find_unused_parameters = true}},
                                         Way{"Static", {.static_graph = true}},
                                         Way{"Hook",
                                             {},
                                             []() -> std::shared_ptr<CommHook> {
                                               return std::make_shared<Bf16Compress>();
                                             }},
                                         Way{"PowerSgd",
                                             {},
                                             []() -> std::shared_ptr<CommHook> {
                                               return std::make_shared<PowerSgd>(
                                                   PowerSgdOptions{.start_iteration = 2});
                                             }}),
                         [](const auto& of) { return of.param.name; });

TEST_P(WaysToReduce, EveryStepIsRecordedAndAddsUp) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    DataParallelOptions options = GetParam().options;
    options.first_bucket_bytes = 100;
    options.bucket_bytes = 300;
    options.statistics_every = 1;
    Model model(net, group, options);
    if (GetParam().hook) model.register_comm_hook(GetParam().hook());
    for (int step = 0; step < 4; ++step) {
      train(model, group, step);
      const DataParallelStatistics statistics = model.statistics();
      ASSERT_TRUE(statistics.last);
      EXPECT_EQ(statistics.last->pass, step + 1);
      expect_plausible(*statistics.last);
      const auto& buckets = step == 0 ? statistics.first_buckets : statistics.buckets;
      ASSERT_EQ(statistics.last->buckets.size(), buckets.size());
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        EXPECT_EQ(statistics.last->buckets[i].bytes, buckets[i].bytes);
        EXPECT_EQ(statistics.last->buckets[i].gradients, buckets[i].parameters.size());
      }
    }
    const DataParallelStatistics statistics = model.statistics();
    EXPECT_EQ(statistics.recent.steps, 3u);  // the first step had other buckets
    EXPECT_LE(statistics.recent.backward.min, statistics.last->backward);
    EXPECT_GE(statistics.recent.backward.max, statistics.last->backward);
    EXPECT_GT(statistics.buckets.size(), 1u);
  });
}

TEST(DataParallelStatistics, TheTimeOfASlowLayerIsComputingThatHidesCommunication) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1, .statistics_every = 1});
    for (int step = 0; step < 3; ++step) {
      const auto spent = std::make_shared<Duration>();
      torch::Tensor input = input_of(group.rank(), step).requires_grad_();
      input.register_hook([spent](const torch::Tensor&) { *spent = spend(kLong); });
      model->zero_grad();
      loss_of(model(input), group.rank(), step).backward();
      const StepTimes last = *model.statistics().last;
      EXPECT_GE(last.compute, *spent);
      EXPECT_GE(*spent, kLong);
      EXPECT_GT(last.overlap, Duration());
      // The bucket was sent before the layer began, so the layer's time is not part of its own.
      EXPECT_LE(last.buckets[0].sent, last.compute - *spent);
      EXPECT_GE(last.buckets.back().sent, last.compute);
    }
  });
}

TEST(DataParallelStatistics, OfABucketThatWaitsForThoseBeforeItSayWhenItWasReady) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1, .statistics_every = 1});
    train(model, group);
    model->zero_grad();
    const torch::Tensor loss = loss_of(model(input_of(group.rank())), group.rank());
    auto& middle = *(*model)[2]->as<torch::nn::Linear>();
    middle.weight.register_hook([](const torch::Tensor&) { spend(kLong); });
    loss.backward();
    const StepTimes last = *model.statistics().last;
    // The order of the buckets: 4.bias, 4.weight, 2.bias, 2.weight, 0.bias, 0.weight.
    EXPECT_GE(last.buckets[3].ready - last.buckets[1].ready, kLong);
    EXPECT_GE(last.buckets[4].sent, last.buckets[3].sent);
  });
}

// SlowImpl: a module whose forward takes the given time.
struct SlowImpl : torch::nn::Module {
  SlowImpl() { weight = register_parameter("weight", torch::ones({2})); }
  torch::Tensor forward(Duration at_least) {
    spent += spend(std::chrono::abs(at_least));
    if (at_least < Duration()) throw std::invalid_argument("no such time");
    return weight * 2;
  }
  torch::Tensor weight;
  Duration spent = {};
};
TORCH_MODULE(Slow);

TEST(DataParallelStatistics, ForwardsSinceTheLastPassAreAddedUp) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Slow net;
    DistributedDataParallel model(net, group, {.statistics_every = 1});
    const torch::Tensor a = model(kLong), b = model(kLong);
    (a + b).sum().backward();
    const StepTimes last = *model.statistics().last;
    EXPECT_GE(last.forward, net->spent);
    EXPECT_GE(net->spent, 2 * kLong);
    EXPECT_LE(last.exchange, last.forward - net->spent);
  });
}

TEST(DataParallelStatistics, ForwardsThatThrewOrHadNoGradModeAreNotCounted) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Slow net;
    DistributedDataParallel model(net, group, {.statistics_every = 1});
    for (int step = 0; step < 2; ++step) {
      {
        const torch::NoGradGuard no_grad;
        model(2 * kLong);
      }
      EXPECT_THROW(model(-kLong), std::invalid_argument);
      const TimePoint began = BootClock::now();
      const torch::Tensor output = model(Duration());
      const Duration took = BootClock::now() - began;
      output.sum().backward();
      EXPECT_LE(model.statistics().last->forward, took);
    }
  });
}

TEST(DataParallelStatistics, PassesInNoSyncAreNoSteps) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Slow net;
    DistributedDataParallel model(net, group, {.statistics_every = 1});
    for (int step = 0; step < 2; ++step) {
      {
        const auto quiet = model.no_sync();
        model(2 * kLong).sum().backward();
      }
      const TimePoint began = BootClock::now();
      const torch::Tensor output = model(Duration());
      const Duration took = BootClock::now() - began;
      output.sum().backward();
      const DataParallelStatistics statistics = model.statistics();
      EXPECT_EQ(statistics.last->pass, step + 1);
      EXPECT_LE(statistics.last->forward, took);
    }
  });
}

TEST(DataParallelStatistics, MayBeTakenNowAndThen) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.statistics_every = 3});
    std::vector<std::int64_t> recorded;
    for (int step = 0; step < 10; ++step) {
      train(model, group, step);
      const auto last = model.statistics().last;
      recorded.push_back(last ? last->pass : 0);
    }
    EXPECT_THAT(recorded, ElementsAre(0, 0, 3, 3, 3, 6, 6, 6, 9, 9));
    EXPECT_EQ(model.statistics().recent.steps, 3u);
    EXPECT_GT(model.statistics().recent.forward.min, Duration());
  });
}

TEST(DataParallelStatistics, OneRankMayTakeThemAlone) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.statistics_every = group.rank()});
    for (int step = 0; step < 2; ++step) train(model, group, step);
    EXPECT_EQ(model.statistics().recent.steps, group.rank() == 0 ? 0u : 1u);
  });
}

TEST(DataParallelStatistics, LeaveOutPassesThatFailed) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.statistics_every = 1});
    for (const int failing_step : {0, 3}) {
      for (int step = failing_step; step < failing_step + 3; ++step) {
        model->zero_grad();
        torch::Tensor loss = loss_of(model(input_of(group.rank(), step)), group.rank(), step);
        const std::int64_t passes = model.statistics().passes;
        if (step == failing_step) {
          if (group.rank() == 1)
            loss = (*model)[0]->as<torch::nn::Linear>()->forward(input_of(1)).sum();
          EXPECT_THROW(loss.backward(), DistError);
          const auto last = model.statistics().last;
          EXPECT_LE(last ? last->pass : 0, passes);
        } else {
          loss.backward();
          EXPECT_EQ(model.statistics().last->pass, passes + 1);
          expect_plausible(*model.statistics().last);
        }
      }
    }
    EXPECT_EQ(model.statistics().passes, 6);
  });
}

TEST(DataParallelStatistics, OfARankWithoutInputsAreThoseOfItsOwnPasses) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.statistics_every = 1});
    model.join([&] {
      for (int step = 0; step < 2 + 2 * group.rank(); ++step) train(model, group, step);
    });
    EXPECT_EQ(model.statistics().last->pass, group.rank() == 0 ? 2 : 4);
    train(model, group);
    EXPECT_EQ(model.statistics().last->pass, 5);
    expect_plausible(*model.statistics().last);
  });
}

TEST(DataParallelStatistics, ANegativeNumberOfStepsIsRefused) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    EXPECT_DIST_ERROR(Model(make_mlp(), group, {.statistics_every = -1}), Kind::kInvalidArgument,
                      HasSubstr("the option 'statistics_every' is -1 (expected a number of steps, "
                                "or 0 for no statistics)"));
  });
}

// --- when a reduction ended

StepTimes recorded(const std::function<void(StepRecorder&)>& during_pass) {
  StepRecorder recorder(1);
  recorder.pass_begins(1);
  recorder.is_synchronised(1, [] { return std::vector<BucketTimes>(1); });
  recorder.sent(0);
  during_pass(recorder);
  recorder.reduced();
  recorder.pass_ends();
  return *recorder.statistics().last();
}

TEST(StepRecorder, KnowsWhenAReductionEndedBeforeAnybodyWaitedForIt) {
  Duration computing = {};
  const StepTimes step = recorded([&](StepRecorder& recorder) {
    const auto reduction = std::make_shared<detail::HostWork>();
    recorder.watch(0, Work(reduction));
    reduction->complete({});
    computing = spend(kLong);
    recorder.computed();
  });
  EXPECT_LE(step.buckets[0].done, step.compute - computing);
  EXPECT_EQ(step.overlap, step.communication);
  EXPECT_EQ(step.exposed, Duration());
}

// The thread that ends a reduction first wakes the waiting threads. Only then does it record
// the time.
TEST(StepRecorder, TakesTheEndOfTheWaitWhereNobodyHasSaidWhenAReductionEnded) {
  const auto reduction = std::make_shared<detail::HostWork>();
  Duration waiting = {};
  const StepTimes step = recorded([&](StepRecorder& recorder) {
    recorder.watch(0, Work(reduction));
    recorder.computed();
    waiting = spend(kLong);
  });
  reduction->complete({});  // too late to count
  EXPECT_GE(step.buckets[0].done, step.compute + waiting);
  EXPECT_GE(step.exposed, waiting);
}

// --- shares in the worker's page

class StepSharesOnPage : public testing::Test {
 protected:
  StepSharesOnPage() { notes_->reporter = WorkerReporter::open(WorkerEnv()); }

  std::optional<StepShares> shares() const {
    return read_step_shares(
        MappedPages::map(notes_->reporter->place(), MappedPages::Access::kRead).value()[0]);
  }

  static void forward(StepRecorder& recorder, std::int64_t next_pass, Duration exchange = {}) {
    recorder.forward_begins(next_pass);
    if (exchange > Duration()) spend(exchange);
    recorder.module_begins();
    spend(kLong);
    recorder.forward_ends();
  }
  static void backward(StepRecorder& recorder, std::int64_t pass, Duration communication = {}) {
    recorder.pass_begins(pass);
    recorder.is_synchronised(pass, [] { return std::vector<BucketTimes>(1); });
    spend(kLong);
    recorder.sent(0);
    recorder.computed();
    if (communication > Duration()) spend(communication);
    recorder.reduced();
    recorder.pass_ends();
  }

  // Returns the percentage of at least kLong in a step that took no longer than since `began`.
  static double least(TimePoint began) {
    return 100.0 * static_cast<double>(kLong.count()) /
               static_cast<double>((BootClock::now() - began).count()) -
           0.01;
  }
  static double sum(const StepShares& shares) {
    return shares.data.value_or(0) + shares.forward + shares.backward + shares.communication +
           shares.checkpoint;
  }

  const std::shared_ptr<detail::GroupNotes> notes_ = std::make_shared<detail::GroupNotes>();
};

TEST_F(StepSharesOnPage, AreThoseOfTheTimeSinceThePassBefore) {
  StepRecorder recorder(1, notes_);
  EXPECT_TRUE(notes_->times_loading);
  const TimePoint began = BootClock::now();
  backward(recorder, 1);
  EXPECT_FALSE(shares()) << "it is not known when the first step began";
  spend(2 * kLong);  // the optimizer, a loader and a checkpoint
  notes_->loading_ns += kLong.count();
  notes_->reporter->report_checkpoint(kLong);
  forward(recorder, 2, kLong);
  backward(recorder, 2, kLong);
  const double enough = least(began);
  ASSERT_TRUE(shares());
  EXPECT_GE(shares()->data, enough);
  EXPECT_GE(shares()->checkpoint, enough);
  EXPECT_GE(shares()->forward, enough);
  EXPECT_GE(shares()->backward, enough);
  EXPECT_GE(shares()->communication, 2 * enough) << "before the forward and after the pass";
  EXPECT_LE(sum(*shares()), 100.1);
}

TEST_F(StepSharesOnPage, AStepHasPassesThatAccumulate) {
  StepRecorder recorder(1, notes_);
  const TimePoint began = BootClock::now();
  backward(recorder, 1);
  for (int i = 0; i < 3; ++i) {
    forward(recorder, 2);
    recorder.pass_begins(2);
    recorder.is_not_recorded();
    spend(kLong);
    recorder.computed();
  }
  forward(recorder, 2);
  backward(recorder, 2);
  const double enough = least(began);
  ASSERT_TRUE(shares());
  EXPECT_GE(shares()->forward, 4 * enough);
  EXPECT_GE(shares()->backward, 4 * enough);
  EXPECT_LE(sum(*shares()), 100.1);
  EXPECT_FALSE(shares()->data) << "no loader has told of a wait";
}

TEST_F(StepSharesOnPage, AreThoseOfTheStepsThatAreRecorded) {
  StepRecorder recorder(3, notes_);
  for (std::int64_t pass = 1; pass <= 2; ++pass) {
    backward(recorder, pass);
    EXPECT_FALSE(shares()) << pass;
  }
  backward(recorder, 3);
  const std::optional<StepShares> third = shares();
  ASSERT_TRUE(third);
  notes_->loading_ns += 1'000'000'000;
  for (std::int64_t pass = 4; pass <= 5; ++pass) {
    backward(recorder, pass);
    EXPECT_EQ(shares(), third) << pass;
  }
}

TEST_F(StepSharesOnPage, AStepThatFollowsAFailedPassHasNone) {
  StepRecorder recorder(1, notes_);
  backward(recorder, 1);
  recorder.pass_begins(2);
  recorder.is_synchronised(2, [] { return std::vector<BucketTimes>(1); });
  backward(recorder, 3);
  EXPECT_FALSE(shares());
  backward(recorder, 4);
  EXPECT_TRUE(shares());
}

TEST_F(StepSharesOnPage, WithoutTheOptionThereAreNone) {
  StepRecorder recorder(0, notes_);
  for (std::int64_t pass = 1; pass <= 3; ++pass) backward(recorder, pass);
  EXPECT_FALSE(shares());
  EXPECT_FALSE(notes_->times_loading);
}

// SlowNumbers: a dataset whose examples take kLong each.
class SlowNumbers : public torch::data::datasets::Dataset<SlowNumbers, std::size_t> {
 public:
  std::size_t get(std::size_t index) override {
    spend(kLong);
    return index;
  }
  std::optional<std::size_t> size() const override { return 4; }
};

TEST(LoaderOfASampler, TellsTheGroupHowLongTheLoopWaitedIfItIsAsked) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    DistributedSampler sampler(4, group);
    for (const std::size_t workers : {0u, 1u}) {
      const auto loader = torch::data::make_data_loader(
          SlowNumbers(), sampler, torch::data::DataLoaderOptions(2).workers(workers));
      const auto one_pass = [&] {
        group.notes()->loading_ns = 0;
        std::size_t samples = 0;
        for (const auto& batch : *loader) samples += batch.size();
        EXPECT_EQ(samples, 4u);
        return Duration(group.notes()->loading_ns);
      };
      group.notes()->times_loading = false;
      EXPECT_EQ(one_pass(), Duration());
      group.notes()->times_loading = true;
      const TimePoint began = BootClock::now();
      const Duration waited = one_pass();
      if (workers == 0) {
        EXPECT_GE(waited, 4 * kLong);
      } else {  // a worker may load while the loop's thread does not run
        EXPECT_GT(waited, Duration());
      }
      EXPECT_LE(waited, BootClock::now() - began);
    }
  });
}

}  // namespace
}  // namespace ddprun
