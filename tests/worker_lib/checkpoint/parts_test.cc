// Tests TrainingState's named lists, as GANs, averaged weights and reinforcement learning use
// them. Also tests what save() and restore() say about a training run that cannot be resumed as
// it is.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/data.h>
#include <torch/nn/modules/batchnorm.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

#include "ddprun/checkpoint.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/map_store.h"
#include "tests/support/read_file.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"
#include "worker_lib/checkpoint/contents.h"
#include "worker_lib/checkpoint/core/state_text.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/context/save_request.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing_support::read_file;
using testing_support::TemporaryDirectory;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;

// Gan: two networks with an optimizer each, a schedule, and tensors of the program.
struct Gan {
  explicit Gan(int rank = 0, double lr = 0.01)
      : generator(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3)),
        discriminator(torch::nn::Linear(3, 1)),
        of_generator(generator->parameters(), torch::optim::AdamOptions(lr)),
        of_discriminator(discriminator->parameters(), torch::optim::SGDOptions(lr).momentum(0.9)),
        schedule(of_generator, StepLR{.step_size = 2, .gamma = 0.5}),
        queue(torch::full({4}, static_cast<double>(rank))) {
    state.models = {{"generator", generator.ptr().get()},
                    {"discriminator", discriminator.ptr().get()}};
    state.optimizers = {{"generator", &of_generator}, {"discriminator", &of_discriminator}};
    state.schedulers = {{"generator", &schedule}};
    state.tensors = {{"noise", noise}, {"queue", queue}};
    state.has_position = false;
  }

  void step() {
    of_generator.zero_grad();
    of_discriminator.zero_grad();
    discriminator->forward(generator->forward(torch::rand({4, 2}))).sum().backward();
    of_generator.step();
    of_discriminator.step();
    schedule.step();
    torch::NoGradGuard no_grad;
    queue.add_(1);
  }

  std::string digest() const {
    return digest_of(*generator) + digest_of(*discriminator) +
           std::to_string(queue.sum().item<double>()) + std::to_string(noise.sum().item<double>()) +
           std::to_string(schedule.last_lr()[0]);
  }

  torch::nn::Sequential generator, discriminator;
  torch::optim::Adam of_generator;
  torch::optim::SGD of_discriminator;
  LRScheduler schedule;
  torch::Tensor noise = torch::rand({2, 2}), queue;
  TrainingState state;
};

class CheckpointParts : public testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const CheckpointOptions options_{.directory = directory_.path()};
  const std::string file_ = directory_ / "step-000000000002.pt";

  void save(Gan& gan) {
    ThreadWorld(1).run(
        [&](ProcessGroup& group) { CheckpointManager(group, 0, options_).save(2, gan.state); });
  }
  Restored restore(Gan& gan) {
    Restored restored;
    ThreadWorld(1).run([&](ProcessGroup& group) {
      restored = CheckpointManager(group, 0, options_).restore(gan.state);
    });
    return restored;
  }
};

TEST_F(CheckpointParts, ATrainingOfSeveralNetworksGoesOnWithTheSameBits) {
  Gan first;
  first.step();
  first.step();
  save(first);
  first.step();
  Gan second(0, 0.5);
  EXPECT_EQ(restore(second).step, 2);
  second.step();
  EXPECT_EQ(second.digest(), first.digest());
}

TEST_F(CheckpointParts, TheManifestHasTheHashOfTheModels) {
  Gan gan;
  const auto expect_hash = [&] {
    save(gan);
    const auto announced = CheckpointDirectory(directory_.path()).read_manifest(2);
    ASSERT_TRUE(announced) << announced.error().message();
    EXPECT_EQ(announced->manifest.model, hash_of_models(gan.state));
  };
  expect_hash();
  gan.state.model = gan.state.models["generator"];
  gan.state.models.clear();
  expect_hash();
  gan.state.model = nullptr;
  expect_hash();
}

TEST_F(CheckpointParts, EachRankGetsWhatItHadOfItsOwn) {
  std::string had[2], got[2];
  const auto own_of = [](const Gan& gan) {
    return std::to_string(gan.queue[0].item<double>()) + " " +
           std::to_string(gan.generator->buffers()[0].sum().item<double>());
  };
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Gan gan(group.rank());
    for (torch::Tensor& buffer : gan.generator->buffers())
      if (buffer.is_floating_point()) buffer.fill_(group.rank() + 5);
    manager.save(3, gan.state);
    had[group.rank()] = own_of(gan);
  });
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Gan gan(7);
    EXPECT_EQ(manager.restore(gan.state).step, 3);
    got[group.rank()] = own_of(gan);
  });
  EXPECT_EQ(got[0], had[0]);
  EXPECT_EQ(got[1], had[1]);
  EXPECT_NE(got[0], got[1]);
}

// Returns the names and the tensors of a state that has views, and one tensor of each kind of
// memory that they are views of.
std::map<std::string, torch::Tensor> with_views(double first) {
  const torch::Tensor complex =
      torch::complex(torch::arange(first, first + 6), torch::arange(first + 6, first + 12))
          .view({2, 3});
  const torch::Tensor conjugate = complex.clone().conj();
  const torch::Tensor negative = torch::_neg_view(torch::arange(first, first + 4));
  EXPECT_TRUE(conjugate.is_conj() && torch::imag(conjugate).is_neg() && negative.is_neg());
  return {{"complex", complex},
          {"conjugate", conjugate},
          {"turned", complex.clone().conj().t()},
          {"imaginary", torch::imag(complex.clone().conj())},
          {"negative", negative}};
}

// Neither kind of view has a form in a file that Python and this library read.
TEST_F(CheckpointParts, ConjugateAndNegativeViewsAreSavedAsTheirValues) {
  for (const bool asynchronous : {false, true}) {
    const CheckpointOptions options{.directory = directory_ / (asynchronous ? "a" : "s"),
                                    .asynchronous = asynchronous};
    const auto saved = with_views(1);
    ThreadWorld(1).run([&](ProcessGroup& group) {
      TrainingState state{.tensors = saved, .has_position = false};
      CheckpointManager(group, 0, options).save(2, state);
    });
    const std::string file = options.directory + "/step-000000000002.pt";
    const std::string bytes = read_file(file);
    const c10::IValue tensors = entry_of(read_pickle(bytes, file), "tensors");
    for (const auto& [name, tensor] : saved)
      EXPECT_TRUE(torch::equal(entry_of(tensors, name).toTensor(), tensor)) << name;
    ThreadWorld(1).run([&](ProcessGroup& group) {
      TrainingState state{.tensors = with_views(100), .has_position = false};
      const torch::Tensor conjugate = state.tensors["conjugate"];
      EXPECT_EQ(CheckpointManager(group, 0, options).restore(state).step, 2);
      for (const auto& [name, tensor] : saved)
        EXPECT_TRUE(torch::equal(state.tensors[name], tensor)) << name;
      EXPECT_TRUE(conjugate.is_conj() && state.tensors["conjugate"].is_same(conjugate));
    });
    // Tensors that are no views get the same bytes.
    ThreadWorld(1).run([&](ProcessGroup& group) {
      TrainingState state{.has_position = false};
      for (const auto& [name, tensor] : with_views(100))
        state.tensors[name] = tensor.resolve_conj().resolve_neg().clone();
      EXPECT_EQ(CheckpointManager(group, 0, options).restore(state).step, 2);
      for (const auto& [name, tensor] : saved)
        EXPECT_TRUE(torch::equal(state.tensors[name], tensor)) << name;
    });
  }
}

void expect_same_contents(const std::string& one, const std::string& other) {
  const auto a = read_state_archive(one, RecordCrcs::kCheck);
  const auto b = read_state_archive(other, RecordCrcs::kCheck);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(to_lines(a->tree, 0), to_lines(b->tree, 0));
  ASSERT_EQ(a->tree.tensors.size(), b->tree.tensors.size());
  for (std::size_t i = 0; i < a->tree.tensors.size(); ++i)
    EXPECT_EQ(a->tree.tensors[i].storage.contents, b->tree.tensors[i].storage.contents);
}

// A later save uses the dicts of the one before. The model and the optimizer's state grow, shrink
// and change here.
TEST_F(CheckpointParts, LaterSavesHaveTheContentsOfAFirstOne) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.1));
  const TrainingState state{.model = net.get(), .optimizer = &optimizer, .has_position = false};
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, {.directory = directory_ / "all", .keep_last = 9});
    for (int step = 0; step < 12; ++step) {
      if (step == 2) net->push_back(torch::nn::Linear(1, 1));
      if (step == 4)
        optimizer.add_param_group(torch::optim::OptimizerParamGroup(
            net[2]->parameters(), std::make_unique<torch::optim::AdamOptions>(0.2)));
      if (step == 7)
        for (const torch::Tensor& parameter : net[2]->parameters())
          optimizer.state().erase(parameter.unsafeGetTensorImpl());
      if (step == 8 || step == 9) {
        auto& options = optimizer.param_groups()[0].options();
        static_cast<torch::optim::AdamOptions&>(options).amsgrad(step == 8);
        optimizer.state().clear();
      }
      if (step == 10) net->register_buffer("extra", torch::rand({2}));
      if (step == 11) net->named_buffers()["extra"].set_data(torch::rand({5}, torch::kFloat64));
      const auto used = static_cast<std::size_t>(step < 1 ? 1 : 2);
      net->zero_grad();
      torch::Tensor x = torch::rand({4, 2});
      for (std::size_t i = 0; i < used; ++i) x = net[i]->as<torch::nn::Linear>()->forward(x);
      if (step == 5 || step == 6) x = net[2]->as<torch::nn::Linear>()->forward(x);
      x.sum().backward();
      optimizer.step();
      const std::string digits = std::to_string(step);
      const std::string name =
          concat("/step-", std::string(12 - digits.size(), '0'), digits, ".pt");
      const std::string alone = directory_ / concat("step ", step);
      manager.save(step, state);
      manager.wait();
      CheckpointManager(group, 0, {.directory = alone}).save(step, state);
      const std::string later = read_file(directory_ / "all" + name);
      const std::string first = read_file(alone + name);
      expect_same_contents(later, first);
      EXPECT_TRUE(later == first) << "step " << step << ": other bytes";
    }
  });
}

// Returns what a world of one rank gathers for a save of step 2.
CheckpointFacts facts_of_one_rank() {
  PickleDict of_rank = make_string_dict();
  of_rank.insert("cpu", state_of(at::detail::getDefaultCPUGenerator()));
  return {.step = 2, .generators = {of_rank}};
}

// The bytes of a pickle depend on whether a dict has several owners, such as the thread that saves.
TEST_F(CheckpointParts, TheWriterIsTheOnlyOwnerOfTheContents) {
  torch::nn::Linear net(2, 3);
  const TrainingState state{.model = net.get(), .has_position = false};
  const c10::IValue contents = contents_of(state, facts_of_one_rank());
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager(group, 0, {.directory = directory_.path(), .asynchronous = false})
        .save(2, state);
  });
  const std::string file = read_file(file_);
  expect_same_contents(file, std::string(text_of(pickled(contents))));
  EXPECT_TRUE(file == text_of(pickled(contents))) << "other bytes";
}

// MemoryLimit: limits how many bytes more this process can get. REQUIRES: no other one lives.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_DATA, &old_), 0);
    std::ifstream status("/proc/self/status");
    rlimit limit = old_;
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmData:")) limit.rlim_cur = std::stoull(line.substr(7)) * 1024 + bytes;
    EXPECT_NE(limit.rlim_cur, old_.rlim_cur);
    EXPECT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_DATA, &old_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit old_ = {};
};

// The numbers of parameters are texts in this file, whose hashes differ. As integers they would
// have one place in LibTorch's hash table, which would take all memory.
TEST_F(CheckpointParts, StatesOfNoParameterOfANamedOptimizerAreIgnored) {
  constexpr std::uint64_t kInverse = 0xF1DE83E19937733D;  // of the table's factor, modulo 2^64
  Gan saved, restored(0, 0.5);
  saved.step();
  PickleDict top = contents_of(saved.state, facts_of_one_rank());
  const PickleDict optimizers = top.at("optimizers").toGenericDict();
  PickleDict optimizer = optimizers.at("discriminator").toGenericDict(),
             states = make_string_dict();
  for (const auto& entry : optimizer.at("state").toGenericDict())
    states.insert(std::to_string(entry.key().toInt()), entry.value());
  const std::size_t parameters = states.size();
  for (std::uint64_t i = 1; states.size() < parameters + 60; ++i)
    if (const auto number = static_cast<std::int64_t>(i * kInverse); number > 0)
      states.insert(std::to_string(number), states.at("0"));
  optimizer.insert_or_assign("state", states);
  ThreadWorld(1).run([&](ProcessGroup& group) {
    std::vector<std::string> remarks;
    const MemoryLimit limit(rlim_t{512} << 20);
    fill(restored.state, {top, "f.pt"}, group, ExtraNames::kRefuse, remarks);
  });
  EXPECT_EQ(restored.digest(), saved.digest());
  EXPECT_EQ(restored.of_discriminator.state().size(), parameters);
}

TEST_F(CheckpointParts, PythonFindsThemByName) {
  Gan gan;
  gan.step();
  save(gan);
  const std::string bytes = read_file(file_);
  const c10::IValue top = read_pickle(bytes, file_);
  const auto keys_of = [&](const char* key) {
    std::vector<std::string> keys;
    for (const auto& entry : entry_of(top, key).toGenericDict())
      keys.push_back(entry.key().toStringRef());
    std::sort(keys.begin(), keys.end());
    return keys;
  };
  EXPECT_THAT(keys_of("models"), ElementsAre("discriminator", "generator"));
  EXPECT_THAT(keys_of("optimizers"), ElementsAre("discriminator", "generator"));
  EXPECT_THAT(keys_of("lr_schedulers"), ElementsAre("generator"));
  EXPECT_THAT(keys_of("tensors"), ElementsAre("noise", "queue"));
  EXPECT_EQ(entry_of(entry_of(top, "optimizer_classes"), "discriminator").toStringRef(), "SGD");
  EXPECT_FALSE(has_entry(top, "model"));
  const c10::IValue model = entry_of(entry_of(top, "models"), "generator");
  EXPECT_TRUE(torch::equal(entry_of(model, "0.weight").toTensor(), gan.generator->parameters()[0]));
}

TEST_F(CheckpointParts, AStateWithoutThemHasNoNewKeys) {
  torch::nn::Linear net(2, 2);
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager(group, 0, options_).save(2, {.model = net.get(), .has_position = false});
  });
  const std::string bytes = read_file(file_);
  const c10::IValue top = read_pickle(bytes, file_);
  for (const char* key : {"models", "optimizers", "optimizer_classes", "lr_schedulers",
                          "lr_scheduler_classes", "tensors", "batch_size"})
    EXPECT_FALSE(has_entry(top, key)) << key;
}

TEST_F(CheckpointParts, NamesThatDoNotAgreeAreAClearError) {
  Gan saved;
  saved.step();
  save(saved);
  const auto refused = [&](const std::function<void(Gan&)>& change, const auto& text) {
    Gan gan;
    change(gan);
    ThreadWorld(1).run([&](ProcessGroup& group) {
      CheckpointManager manager(group, 0, options_);
      EXPECT_DIST_ERROR(manager.restore(gan.state), Kind::kInvalidArgument, text);
    });
  };
  refused([](Gan& gan) { gan.state.models["ema"] = gan.generator.ptr().get(); },
          AllOf(HasSubstr(file_), HasSubstr("of 'models' it has no 'ema'")));
  refused([](Gan& gan) { gan.state.models.erase("generator"); },
          AllOf(HasSubstr("of 'models' this training has no 'generator'"), HasSubstr("read_only")));
  refused(
      [](Gan& gan) {
        gan.state.tensors = {{"other", torch::rand(3)}};
      },
      HasSubstr("of 'tensors' it has no 'other', and this training has no 'noise' 'queue'"));
  refused([](Gan& gan) { gan.state.tensors["queue"] = torch::rand(3); },
          AllOf(HasSubstr("tensor 'queue'"), HasSubstr("[4]"), HasSubstr("[3]")));
  refused([](Gan& gan) { gan.state.optimizers["generator"] = &gan.of_discriminator; },
          AllOf(HasSubstr("Adam"), HasSubstr("SGD")));
  refused([](Gan& gan) { gan.state.models["generator"] = gan.discriminator.ptr().get(); },
          HasSubstr("model 'generator'"));
}

TEST_F(CheckpointParts, NamesAreComparedBeforeAnythingIsFilled) {
  Gan saved;
  saved.step();
  save(saved);
  const std::function<void(Gan&)> changes[] = {
      [](Gan& gan) { gan.state.tensors["other"] = torch::rand(3); },
      [](Gan& gan) { gan.state.tensors.erase("noise"); },
      [](Gan& gan) { gan.state.schedulers["discriminator"] = &gan.schedule; },
      [](Gan& gan) { gan.state.optimizers["discriminator"] = &gan.of_generator; }};
  for (const auto& change : changes) {
    Gan gan(3);
    change(gan);
    const std::string before = gan.digest();
    ThreadWorld(1).run([&](ProcessGroup& group) {
      CheckpointManager manager(group, 0, options_);
      EXPECT_THROW(manager.restore(gan.state), DistError);
    });
    EXPECT_EQ(gan.digest(), before);
  }
}

TEST_F(CheckpointParts, AReaderMayAskForSomeOfTheNames) {
  Gan saved;
  saved.step();
  save(saved);
  Gan gan(3);
  TrainingState state{.models = {{"generator", gan.generator.ptr().get()}}};
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, {.directory = directory_.path(), .read_only = true});
    EXPECT_THAT(manager.restore(state).remarks,
                ElementsAre(AllOf(
                    HasSubstr("models 'discriminator'"), HasSubstr("tensors 'noise' 'queue'"),
                    HasSubstr("optimizers 'discriminator' 'generator'"),
                    HasSubstr("lr_schedulers 'generator'"), HasSubstr("which are not restored"))));
    state.models["ema"] = gan.generator.ptr().get();
    EXPECT_DIST_ERROR(manager.restore(state), Kind::kInvalidArgument,
                      HasSubstr("of 'models' it has no 'ema'"));
  });
  EXPECT_EQ(digest_of(*gan.generator), digest_of(*saved.generator));
}

TEST_F(CheckpointParts, NamesThatCannotBeMeantAreRefused) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    TrainingState state{.has_position = false};
    state.models = {{"", nullptr}};
    EXPECT_DIST_ERROR(manager.save(1, state), Kind::kInvalidArgument, HasSubstr("name is empty"));
    state.models = {{"a", nullptr}};
    EXPECT_DIST_ERROR(manager.save(1, state), Kind::kInvalidArgument, HasSubstr("'a' is null"));
    state.models = {};
    state.tensors = {{"a/b", torch::rand(2)}};
    EXPECT_DIST_ERROR(manager.save(1, state), Kind::kInvalidArgument, HasSubstr("holds a '/'"));
    state.tensors = {{"a", torch::Tensor()}};
    EXPECT_DIST_ERROR(manager.save(1, state), Kind::kInvalidArgument, HasSubstr("is undefined"));
  });
}

TEST_F(CheckpointParts, AnUndefinedTensorTakesTheShapeThatWasSaved) {
  Gan first;
  save(first);
  Gan second;
  second.state.tensors["queue"] = torch::Tensor();
  restore(second);
  EXPECT_TRUE(torch::equal(second.state.tensors["queue"], first.queue));
}

// --- what cannot be resumed as it is ---

// Warnings: collects LibTorch's warnings from threads that hold a guard for it.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard lock(mutex_);
    text_ += warning.msg() + "\n";
  }
  std::string take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(text_, {});
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

class PositionWarnings : public CheckpointParts {
 protected:
  // Returns the warnings of a world of two.
  static std::string warnings_of(const std::function<void(ProcessGroup&)>& body) {
    Warnings warnings;
    ThreadWorld(2).run([&](ProcessGroup& group) {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
      body(group);
    });
    return warnings.take();
  }
};

TEST_F(PositionWarnings, AnEpochThatIsNotTheSamplersIsSaidAtSaveAndAtRestore) {
  const auto contradiction =
      AllOf(HasSubstr("epoch is 0"), HasSubstr("in epoch 2"), HasSubstr("trains epochs twice"));
  EXPECT_THAT(warnings_of([&](ProcessGroup& group) {
                DistributedSampler sampler(100, group);
                TrainingState state{.sampler = &sampler};
                CheckpointManager manager(group, 0, options_);
                manager.restore(state);
                for (const int epoch : {0, 1, 2}) {
                  sampler.set_epoch(epoch);
                  sampler.next(10);
                  manager.save(epoch + 1, state);
                }
              }),
              AllOf(HasSubstr("epoch is 0, but its sampler is in epoch 1")));
  EXPECT_THAT(warnings_of([&](ProcessGroup& group) {
                DistributedSampler sampler(100, group);
                TrainingState state{.sampler = &sampler};
                CheckpointManager manager(group, 0, options_);
                EXPECT_THAT(manager.restore(state).remarks, ElementsAre(contradiction));
              }),
              contradiction);
}

MATCHER_P(IsSaidOnce, words, "") {
  const std::size_t at = arg.find(words);
  return at != std::string::npos && arg.find(words, at + 1) == std::string::npos;
}

TEST_F(PositionWarnings, AMissingSamplerAndOneThatDoesNotMoveAreSaidOnce) {
  EXPECT_THAT(warnings_of([&](ProcessGroup& group) {
                TrainingState state;
                CheckpointManager manager(group, 0, options_);
                for (const int step : {1, 2, 3}) manager.save(step, state);
              }),
              IsSaidOnce("TrainingState::sampler is null: the position in the epoch's data"));
  EXPECT_THAT(warnings_of([&](ProcessGroup& group) {
                DistributedSampler sampler(100, group);
                TrainingState state{.sampler = &sampler};
                CheckpointManager manager(group, 0, {.directory = directory_ / "unused"});
                manager.restore(state);
                for (const int step : {1, 2}) manager.save(step, state);
              }),
              IsSaidOnce("has not moved since step 0"));
  EXPECT_THAT(warnings_of([&](ProcessGroup& group) {
                DistributedSampler sampler(100, group);
                TrainingState state{.sampler = &sampler};
                CheckpointManager manager(group, 0, {.directory = directory_ / "used"});
                manager.restore(state);
                sampler.next(10);
                manager.save(1, state);
              }),
              Not(HasSubstr("sampler")));
}

TEST_F(PositionWarnings, RanksThatAreApartAreRefusedByNameOnEveryRank) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    DistributedSampler sampler(100, group);
    TrainingState state{.sampler = &sampler};
    const std::string both = "rank " + std::to_string(1 - group.rank());
    state.epoch = group.rank();
    EXPECT_DIST_ERROR(
        manager.save(1, state), Kind::kInvalidArgument,
        AllOf(HasSubstr(both + " is in epoch"), HasSubstr("epoch 0"), HasSubstr("epoch 1")));
    state.epoch = 0;
    sampler.set_epoch(group.rank());
    EXPECT_DIST_ERROR(manager.save(1, state), Kind::kInvalidArgument,
                      HasSubstr(both + " has a sampler in epoch"));
    sampler.set_epoch(1);
    sampler.reset();
    if (group.rank() == 1) sampler.next(10);
    EXPECT_DIST_ERROR(manager.save(1, state), Kind::kInvalidArgument,
                      AllOf(HasSubstr(both + " has a sampler at position"), HasSubstr("position 0"),
                            HasSubstr("position 20")));
    if (group.rank() == 0) sampler.next(10);
    state.epoch = 1;
    EXPECT_TRUE(manager.save(1, state));
    if (group.rank() == 1) state.sampler = nullptr;
    EXPECT_DIST_ERROR(manager.save(2, state), Kind::kInvalidArgument, HasSubstr("has no sampler"));
  });
}

TEST_F(PositionWarnings, AnotherBatchSizeIsRemarkedOn) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    TrainingState state{.has_position = false, .batch_size = 50};
    manager.save(2, state);
    EXPECT_THAT(manager.restore(state).remarks, IsEmpty());
    state.batch_size = 25;
    EXPECT_THAT(manager.restore(state).remarks,
                ElementsAre(AllOf(HasSubstr("batches of 50 samples"), HasSubstr("these have 25"))));
    state.batch_size = 0;
    EXPECT_THAT(manager.restore(state).remarks, IsEmpty());
  });
}

// Numbers: a dataset whose i-th example is i.
class Numbers : public torch::data::datasets::Dataset<Numbers, int> {
 public:
  int get(std::size_t index) override { return static_cast<int>(index); }
  std::optional<std::size_t> size() const override { return 64; }
};

TEST_F(PositionWarnings, AnotherBatchSizeOfTheLoaderIsRemarkedOn) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    const auto remarks_with = [&](std::size_t batch) {
      DistributedSampler sampler(64, group);
      TrainingState state{.sampler = &sampler};
      const auto loader = torch::data::make_data_loader(Numbers(), sampler, batch);
      const std::vector<std::string> remarks = manager.restore(state).remarks;
      if (batch == 8) manager.save(2, state);
      return remarks;
    };
    EXPECT_THAT(remarks_with(8), IsEmpty());
    EXPECT_THAT(remarks_with(8), IsEmpty());
    EXPECT_THAT(remarks_with(4),
                ElementsAre(AllOf(HasSubstr("batches of 16 samples over all ranks"),
                                  HasSubstr("these have 8"))));
  });
}

// The request stays set in this process after the test. Only contexts that may be asked to save
// look at it.
TEST_F(PositionWarnings, ATrainingThatGoesOnWhenToldToLeaveIsWarnedOnceAndSavesNoMore) {
  ASSERT_EQ(setenv("DDPRUN_CHECKPOINT_SIGNAL", std::to_string(SIGUSR2).c_str(), 1), 0);
  Context context = init_with({.device = torch::kCPU,
                               .rank = 0,
                               .world_size = 1,
                               .store = std::make_shared<testing_support::MapStore>()},
                              nullptr);
  unsetenv("DDPRUN_CHECKPOINT_SIGNAL");
  CheckpointManager manager(context, options_);
  const TrainingState state{.has_position = false};
  // --gtest_repeat: the request of an earlier run is set.
  const bool was_requested = save_was_requested();
  EXPECT_TRUE(was_requested || !manager.maybe_save(1, state).leave);
  ASSERT_EQ(raise(SIGUSR2), 0);
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const auto is_told_at = [&](std::int64_t step) {
    const MaybeSaved done = manager.maybe_save(step, state);
    EXPECT_TRUE(done.leave);
    EXPECT_EQ(done.saved, step == 2);
    return warnings.take();
  };
  EXPECT_THAT(is_told_at(2), Not(HasSubstr("leave")));
  EXPECT_THAT(is_told_at(3), AllOf(HasSubstr("`leave`"), HasSubstr("return 0")));
  EXPECT_THAT(is_told_at(4), Not(HasSubstr("leave")));
  EXPECT_FALSE(fs::exists(directory_ / "step-000000000003.json"));
}

// --- what is not read ---

TEST_F(CheckpointParts, WhatIsBeyondTheReadersBoundsIsPassedOverAndStays) {
  const std::string beyond = directory_ / "step-000000000900.json";
  const std::string its_data = directory_ / "step-000000000900.pt";
  const std::string fifo = directory_ / "step-000000000901.json";
  ThreadWorld(2).run([&](ProcessGroup& group) {
    TrainingState state{.has_position = false};
    CheckpointOptions options = options_;
    options.keep_last = 1;
    {
      CheckpointManager manager(group, 0, options);
      manager.save(2, state);
    }
    group.barrier();
    if (group.rank() == 0) {
      std::ofstream(beyond) << std::string(1 << 20, '[');
      std::ofstream(its_data) << "data";
      ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    }
    group.barrier();
    CheckpointManager manager(group, 1, options);
    const Restored restored = manager.restore(state);
    EXPECT_EQ(restored.step, 2);
    EXPECT_THAT(restored.skipped,
                ElementsAre(AllOf(HasSubstr("step 901"), HasSubstr("FIFO")),
                            AllOf(HasSubstr("step 900"), HasSubstr("nested deeper"))));
    for (const int step : {3, 4, 5}) {
      manager.save(step, state);
      manager.wait();
    }
    group.barrier();
  });
  EXPECT_TRUE(fs::exists(beyond));
  EXPECT_TRUE(fs::exists(its_data));
  EXPECT_FALSE(fs::exists(fifo));
  EXPECT_TRUE(fs::exists(directory_ / "step-000000000005.json")) << "the last one is kept";
  EXPECT_FALSE(fs::exists(directory_ / "step-000000000004.json"));
}

// A disk that is not waited for, for tests that write hundreds of files.
struct UnsyncedDisk : FileCalls {
  int fsync(int) override { return 0; }
};

// Each entry of the file in turn gets another type. The error is one line, never an assertion
// of LibTorch.
TEST_F(CheckpointParts, EntriesOfTheWrongTypeAreNamed) {
  UnsyncedDisk disk;
  const ScopedFileCalls calls(disk);
  DistributedSampler sampler(100, DistributedSamplerOptions{});
  torch::nn::Linear net(2, 2);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.1));
  net->forward(torch::rand({1, 2})).sum().backward();
  adam.step();
  Gan gan;
  gan.step();
  gan.state.model = net.get();
  gan.state.optimizer = &adam;
  gan.state.scheduler = &gan.schedule;
  gan.state.sampler = &sampler;
  gan.state.gradients = true;
  gan.state.data = "d";
  gan.state.batch_size = 3;
  save(gan);
  const std::string bytes = read_file(file_);
  const c10::IValue top = read_pickle(bytes, file_);
  int tried = 0;
  const auto restore_with = [&](const std::function<void(PickleDict&)>& change,
                                const std::string& where) {
    PickleDict changed = read_pickle(bytes, file_).toGenericDict();
    change(changed);
    const TemporaryDirectory other;
    ThreadWorld(1).run([&](ProcessGroup& group) {
      CheckpointDirectory directory(other.path());
      ASSERT_TRUE(directory.announce({.step = 2}, [&](AtomicFile& file) {
        write_pickle(changed, [&](const void* data, std::size_t size) { file.write(data, size); });
      }));
      ++tried;
      try {
        CheckpointManager(group, 0, {.directory = other.path()}).restore(gan.state);
      } catch (const DistError& error) {
        EXPECT_THAT(error.what(), Not(HasSubstr("INTERNAL ASSERT"))) << where;
        EXPECT_THAT(error.what(), Not(HasSubstr("\n"))) << where;
        EXPECT_THAT(error.what(), Not(HasSubstr("json.exception"))) << where;
      }
      gan.state.gradients = true;
    });
  };
  const std::vector<c10::IValue> wrong{c10::IValue(),    c10::IValue("text"), c10::IValue(7),
                                       make_list(),      make_int_dict(),     torch::rand({2}),
                                       c10::IValue(true)};
  const std::function<void(const c10::IValue&, std::vector<std::string>)> walk =
      [&](const c10::IValue& dict, std::vector<std::string> path) {
        if (!dict.isGenericDict() || path.size() > 3) return;
        for (const auto& entry : dict.toGenericDict()) {
          if (!entry.key().isString()) continue;
          std::vector<std::string> its_path = path;
          its_path.push_back(entry.key().toStringRef());
          std::string where;
          for (const std::string& part : its_path) where += "/" + part;
          for (const c10::IValue& value : wrong)
            restore_with(
                [&](PickleDict& changed) {
                  c10::IValue at = changed;
                  for (std::size_t i = 0; i + 1 < its_path.size(); ++i)
                    at = entry_of(at, its_path[i]);
                  at.toGenericDict().insert_or_assign(its_path.back(), value);
                },
                where + " as a " + value.tagKind());
          walk(entry.value(), its_path);
        }
      };
  walk(top, {});
  EXPECT_GT(tried, 100);
}

}  // namespace
}  // namespace ddprun
