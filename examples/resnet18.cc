// ResNet-18 on images of MNIST's format, with batch norm over the batches of all workers. It also
// measures what DistributedDataParallel gains over averaging gradients by hand:
//
//   ddprun --standalone --nproc-per-node=2 resnet18
//   ddprun --standalone --nproc-per-node=2 resnet18 --data=fashion-mnist --width=64 --epochs=30
//   ddprun --standalone --nproc-per-node=2 resnet18 --compare
//
// --compare trains three nets from the same weights on the same batches: one with
// DistributedDataParallel, two with the classes of averaging_by_hand.h. Their losses have the same
// bits. After --record PyTorch's own DistributedDataParallel can take the same steps:
//
//   ddprun --standalone --nproc-per-node=2 resnet18 --compare --batch-norm=plain --record=run1
//   ddprun --standalone --nproc-per-node=2 examples/resnet18.py --compare-with=run1
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <filesystem>
#include <fstream>

#include "examples/averaging_by_hand.h"
#include "examples/command_line.h"
#include "examples/epoch_report.h"
#include "examples/resnet.h"
#include "examples/step_clock.h"

namespace {

constexpr double kMomentum = 0.9, kWeightDecay = 5e-4;
constexpr double kGamma = 0.85;  // factor of the learning rate from epoch to epoch
const std::vector<std::string> kAveragings{"ddp", "after", "hooks"};

struct Options : examples::TrainingOptions {
  Options() : TrainingOptions{.epochs = 12, .lr = 0.05} {}
  std::int64_t width = 16;
  std::string batch_norm = "sync";
  std::string averaging = "ddp";
  std::string checkpoint_dir;
  std::string metrics;
  bool compare = false;
  std::string record;
  bool breakdown = false;
  std::int64_t steps = 30;
  std::int64_t warmup = 5;

  void add_to(examples::CommandLine& line);
};

void Options::add_to(examples::CommandLine& line) {
  TrainingOptions::add_to(line);
  line.add_option("--width", width, "channels of the first of the four stages; 64 is ResNet-18")
      .positive();
  line.add_option("--batch-norm", batch_norm,
                  "sync: over the batches of all workers; plain: over each worker's own")
      .one_of({"sync", "plain"});
  auto averaging_option = line.add_option("--averaging", averaging,
                                          "of gradients: ddp: DistributedDataParallel; after the "
                                          "backward pass, or in hooks, by hand")
                              .one_of(kAveragings);
  auto checkpoints = line.add_option(
      "--checkpoint-dir", checkpoint_dir,
      "directory to save checkpoints to, one for each epoch, and to resume from; empty: none");
  auto metrics_option = line.add_option(
      "--metrics", metrics, "file to which a line of JSON is added for each epoch; empty: none");
  auto compare_flag =
      line.add_flag("--compare", compare, "take --steps steps with each averaging instead")
          .excludes(averaging_option)
          .excludes(checkpoints)
          .excludes(metrics_option);
  line.add_option("--record", record,
                  "folder for what examples/resnet18.py --compare-with needs; empty: none")
      .needs(compare_flag);
  line.add_flag("--breakdown", breakdown,
                "take --steps steps instead; the last line has their times as JSON")
      .excludes(compare_flag)
      .excludes(checkpoints)
      .excludes(metrics_option);
  auto steps_option =
      line.add_option("--steps", steps, "steps of --compare and --breakdown").positive();
  auto warmup_option =
      line.add_option("--warmup", warmup, "steps before these, which are not timed").not_negative();
  line.set_check([this, steps_option, warmup_option] {
    if (batch_size < 2)
      throw examples::CommandLine::Refused("--batch-size", "batch norm needs at least 2 images");
    if ((steps_option.is_given() || warmup_option.is_given()) && !compare && !breakdown)
      throw examples::CommandLine::Refused("--steps, --warmup",
                                           "they are of --compare and --breakdown");
  });
}

// Batches: this rank's batches, epoch after epoch, with some images moved a little. All batches are
// full, because batch norm has no variance for a last batch of a single image.
class Batches {
 public:
  Batches(const examples::Digits& digits, const Options& options, const ddprun::ProcessGroup& group)
      : sampler_(*digits.size(), group,
                 {.batch_size = static_cast<std::size_t>(options.batch_size),
                  .drop_last_batch = true,
                  .of_samples = {.seed = options.seed}}),
        loader_(torch::data::make_data_loader(digits, sampler_, options.batch_size)),
        device_(group.device()) {
    if (per_epoch() == 0)
      throw std::runtime_error("--batch-size=" + std::to_string(options.batch_size) +
                               ": each worker has only " + std::to_string(sampler_.size()) +
                               " images");
    begin_epoch(0);
  }

  ddprun::DistributedSampler& sampler() { return sampler_; }
  std::int64_t per_epoch() const { return static_cast<std::int64_t>(sampler_.batches()); }

  void begin_epoch(std::int64_t epoch) {
    epoch_ = epoch;
    given_ = 0;
    sampler_.set_epoch(epoch);
    position_.emplace(loader_->begin());
  }

  torch::data::Example<> next() {
    if (given_ == per_epoch()) begin_epoch(epoch_ + 1);
    if (given_++ > 0) ++*position_;
    const torch::data::Example<>& batch = **position_;
    return {examples::jittered(batch.data).to(device_), batch.target.to(device_)};
  }

 private:
  ddprun::DistributedBatchSampler sampler_;
  std::unique_ptr<
      torch::data::StatelessDataLoader<examples::Digits, ddprun::DistributedBatchSampler>>
      loader_;
  std::optional<torch::data::Iterator<torch::data::Example<>>> position_;
  torch::Device device_;
  std::int64_t epoch_ = 0, given_ = 0;
};

// Learner: a net, the averaging of its gradients over the ranks, and its optimizer.
class Learner {
 public:
  // averaging: one of kAveragings. statistics: the group of the batch norms.
  Learner(const Options& options, const std::string& averaging, const examples::Digits& digits,
          ddprun::ProcessGroup& group, ddprun::ProcessGroup& statistics)
      : net_(examples::ResNetOptions{.image_channels = digits.images().size(1),
                                     .width = options.width,
                                     .classes = digits.labels().max().item<std::int64_t>() + 1},
             statistics),
        optimizer_(
            net_->parameters(),
            torch::optim::SGDOptions(options.lr).momentum(kMomentum).weight_decay(kWeightDecay)) {
    net_->to(group.device());
    if (averaging == "ddp") ddp_.emplace(net_, group);
    if (averaging == "after") after_.emplace(*net_, group);
    if (averaging == "hooks") hooks_.emplace(*net_, group);
  }

  torch::Tensor loss_of(const torch::data::Example<>& batch) {
    return torch::cross_entropy_loss(ddp_ ? (*ddp_)(batch.data) : net_(batch.data), batch.target);
  }
  void backward(const torch::Tensor& loss) {
    loss.backward();
    if (after_) after_->average();
    if (hooks_) hooks_->wait();
  }
  void change_weights() {
    optimizer_.step();
    optimizer_.zero_grad();
  }

  // Takes a complete step. Returns the loss of this rank's batch.
  double step(const torch::data::Example<>& batch) {
    const torch::Tensor loss = loss_of(batch);
    backward(loss);
    change_weights();
    return loss.item<double>();
  }

  examples::ResNet18& net() { return net_; }
  torch::optim::SGD& optimizer() { return optimizer_; }
  // Returns null if DistributedDataParallel does not do the averaging.
  ddprun::DistributedDataParallel<examples::ResNet18>* ddp() { return ddp_ ? &*ddp_ : nullptr; }

 private:
  std::optional<examples::AverageAfterwards> after_;
  std::optional<examples::AverageInHooks> hooks_;  // outlives the net
  examples::ResNet18 net_;
  std::optional<ddprun::DistributedDataParallel<examples::ResNet18>> ddp_;
  torch::optim::SGD optimizer_;
};

// Setting: what training, comparison and breakdown have in common.
struct Setting {
  Setting(const Options& given, ddprun::Context& context)
      : options(given),
        ctx(context),
        train(given.data, "train"),
        statistics(ctx.group().split(given.batch_norm == "sync" ? 0 : ctx.rank(), 0,
                                     {.name = "batch norm"})),
        batches(train, given, ctx.group()) {}

  // Returns a learner, with the same weights each time. Random numbers that are drawn afterwards
  // (for moved images) differ by rank.
  std::unique_ptr<Learner> learner(const std::string& averaging) {
    torch::manual_seed(options.seed);
    auto made = std::make_unique<Learner>(options, averaging, train, ctx.group(), *statistics);
    ctx.manual_seed(options.seed);
    return made;
  }

  const Options& options;
  ddprun::Context& ctx;
  examples::Digits train;
  std::unique_ptr<ddprun::ProcessGroup> statistics;
  Batches batches;
};

class Training {
 public:
  Training(const Options& options, ddprun::Context& ctx)
      : options_(options),
        ctx_(ctx),
        setting_(options, ctx),
        test_(options.data, "t10k"),
        learner_(setting_.learner(options.averaging)),
        schedule_(learner_->optimizer(), ddprun::StepLR{.step_size = 1, .gamma = kGamma}),
        state_{.model = learner_->net().get(),
               .optimizer = &learner_->optimizer(),
               .scheduler = &schedule_,
               .sampler = &setting_.batches.sampler()} {
    if (options.checkpoint_dir.empty()) return;
    checkpoints_.emplace(
        ctx, ddprun::CheckpointOptions{.directory = options.checkpoint_dir, .keep_best = 1});
    const ddprun::Restored restored = checkpoints_->restore(state_);
    step_ = restored.step;
    if (restored && ctx.rank() == 0)
      std::printf("resumed after epoch %lld from %s\n", static_cast<long long>(state_.epoch),
                  restored.file.c_str());
  }

  void run() {
    examples::EpochReport report(options_.metrics, ctx_.rank() == 0, ctx_.world_size());
    Batches& batches = setting_.batches;
    while (state_.epoch < options_.epochs) {
      batches.begin_epoch(state_.epoch);
      report.begin_epoch(state_.epoch + 1, batches.per_epoch());
      ddprun::MetricAccumulator metrics;
      for (std::int64_t number = 0; number < batches.per_epoch(); ++number) {
        const double loss = learner_->step(batches.next());
        ctx_.report_progress(++step_);
        metrics.add_mean("loss", loss, static_cast<double>(options_.batch_size));
        report.step(loss, options_.batch_size);
      }
      schedule_.step();
      evaluate(metrics);
      const ddprun::MetricAccumulator all = metrics.merged(ctx_.group());
      report.end_epoch(step_, {{"accuracy", all.mean("accuracy")},
                               {"loss", all.mean("loss")},
                               {"test_loss", all.mean("test_loss")}});
      ++state_.epoch;
      state_.metric = all.mean("test_loss");
      if (checkpoints_) checkpoints_->save(step_, state_);
    }
    if (checkpoints_) checkpoints_->wait();
    if (ctx_.rank() == 0) std::printf("sha256 %s\n", ddprun::digest_of(*learner_->net()).c_str());
  }

 private:
  // Evaluates the net on the test images. Each worker computes its share, with rank 0's running
  // statistics, because with plain batch norms each rank has its own.
  void evaluate(ddprun::MetricAccumulator& metrics) {
    const torch::NoGradGuard no_grad;
    examples::ResNet18& net = learner_->net();
    ctx_.group().broadcast_coalesced(net->buffers());
    net->eval();
    auto loader = torch::data::make_data_loader(
        test_, ddprun::DistributedEvalSampler(*test_.size(), ctx_.group()), 500);
    for (auto& batch : *loader) {
      const torch::Tensor output = net(batch.data.to(ctx_.device()));
      batch.target = batch.target.to(ctx_.device());
      const auto count = static_cast<double>(batch.data.size(0));
      metrics.add_mean("test_loss", torch::cross_entropy_loss(output, batch.target).item<double>(),
                       count);
      metrics.add("accuracy", output.argmax(1).eq(batch.target).sum().item<double>(), count);
    }
    net->train();
  }

  const Options& options_;
  ddprun::Context& ctx_;
  Setting setting_;
  examples::Digits test_;
  std::unique_ptr<Learner> learner_;
  ddprun::LRScheduler schedule_;
  ddprun::TrainingState state_;
  std::optional<ddprun::CheckpointManager> checkpoints_;
  std::int64_t step_ = 0;
};

// Contestant: one of the three nets of --compare.
struct Contestant {
  std::string averaging;
  std::unique_ptr<Learner> learner;
  std::vector<double> losses = {};  // of this rank's batches
  std::vector<double> ms = {};      // of steps

  double median_ms() const {
    std::vector<double> sorted = ms;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::ranges::nth_element(sorted, middle);
    return *middle;
  }
};

// Writes what examples/resnet18.py needs to do the same: the options, and the losses and times of
// rank 0.
void write_record(const Options& options, int workers, const std::vector<Contestant>& all) {
  nlohmann::json record{{"batch_norm", options.batch_norm},
                        {"batch_size", options.batch_size},
                        {"data", options.data},
                        {"lr", options.lr},
                        {"seed", options.seed},
                        {"steps", options.steps},
                        {"threads", torch::get_num_threads()},
                        {"warmup", options.warmup},
                        {"width", options.width},
                        {"workers", workers}};
  for (const Contestant& one : all)
    record["averagings"][one.averaging] = {{"losses", one.losses}, {"ms", one.median_ms()}};
  const std::string path = options.record + "/run.json";
  std::ofstream file(path);
  file << record.dump() << std::endl;
  if (!file) throw std::runtime_error("cannot write " + path);
}

// Returns the greatest distance of a loss from that of the first contestant, on any rank; infinite
// if a loss is not a number.
double greatest_distance(const std::vector<Contestant>& all, ddprun::ProcessGroup& group) {
  double greatest = 0;
  for (const Contestant& one : all) {
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
      const double distance = std::abs(one.losses[step] - all[0].losses[step]);
      greatest = std::max(greatest, std::isnan(distance) ? HUGE_VAL : distance);
    }
  }
  const torch::Tensor of_all =
      torch::full({1}, greatest, torch::dtype(torch::kFloat64).device(group.device()));
  group.all_reduce(of_all, {.op = ddprun::ReduceOp::kMax});
  return of_all.item<double>();
}

void compare(const Options& options, ddprun::Context& ctx) {
  Setting setting(options, ctx);
  std::vector<Contestant> all;
  for (const std::string& averaging : kAveragings)
    all.push_back({.averaging = averaging, .learner = setting.learner(averaging)});
  const bool records = !options.record.empty() && ctx.rank() == 0;
  if (records) {
    std::filesystem::create_directories(options.record);
    ddprun::save_state_dict(options.record + "/initial.pt", *all[0].learner->net());
  }

  for (std::int64_t step = 0; step < options.warmup + options.steps; ++step) {
    const torch::data::Example<> batch = setting.batches.next();
    for (std::size_t turn = 0; turn < all.size(); ++turn) {  // each step begins with another one
      Contestant& one = all[(static_cast<std::size_t>(step) + turn) % all.size()];
      ctx.group().barrier();
      const auto start = std::chrono::steady_clock::now();
      one.losses.push_back(one.learner->step(batch));
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      if (step >= options.warmup) one.ms.push_back(took.count());
    }
    ctx.report_progress(step + 1);
  }

  const double distance = greatest_distance(all, ctx.group());
  if (records) write_record(options, ctx.world_size(), all);
  if (ctx.rank() != 0) return;
  std::printf("averaging  first loss  last loss  ms a step  of ddp's\n");
  for (const Contestant& one : all)
    std::printf("%-9s  %10.4f  %9.4f  %9.2f  %8.2f\n", one.averaging.c_str(), one.losses.front(),
                one.losses.back(), one.median_ms(), one.median_ms() / all[0].median_ms());
  if (distance == 0)
    std::printf("losses: the same bits in all %zu steps\n", all[0].losses.size());
  else
    std::printf("losses: apart by at most %.3g\n", distance);
}

// Takes `steps` steps. Returns where their time goes.
examples::StepClock timed_steps(Setting& setting, Learner& learner, std::int64_t steps) {
  examples::StepClock clock;
  for (std::int64_t step = 0; step < steps; ++step) {
    clock.begin();
    const torch::data::Example<> batch = setting.batches.next();
    clock.end("data");
    const torch::Tensor loss = learner.loss_of(batch);
    clock.end("forward");
    learner.backward(loss);
    clock.end("backward");
    learner.change_weights();
    clock.end("optimizer");
  }
  return clock;
}

// Prints where the time of a step goes. exposed_communication: how much longer a backward pass
// takes than one that sends nothing.
void breakdown(const Options& options, ddprun::Context& ctx) {
  Setting setting(options, ctx);
  const auto learner = setting.learner(options.averaging);
  timed_steps(setting, *learner, options.warmup);
  ctx.group().barrier();
  const auto start = std::chrono::steady_clock::now();
  const examples::StepClock clock = timed_steps(setting, *learner, options.steps);
  if (ctx.device().is_cuda()) torch::cuda::synchronize();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  nlohmann::json parts = clock.breakdown_ms();
  if (learner->ddp()) {
    const ddprun::NoSync quiet = learner->ddp()->no_sync();
    timed_steps(setting, *learner, 1);
    parts["exposed_communication"] =
        clock.ms("backward") - timed_steps(setting, *learner, options.steps).ms("backward");
  }
  if (ctx.rank() != 0) return;
  const auto samples = static_cast<double>(options.steps * options.batch_size * ctx.world_size());
  const nlohmann::json found{{"samples_per_second", samples / took.count()},
                             {"breakdown_ms", parts}};
  std::printf("%s\n", found.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains a ResNet-18 for small images with any number of workers, or compares\n"
      "DistributedDataParallel with averaging by hand.\n"
      "Example: ddprun --standalone --nproc-per-node=2 resnet18",
      "resnet18");
  options.add_to(line);
  return line.run(argc, argv, [&] {
    ddprun::Context ctx = ddprun::init();
    if (options.compare) return compare(options, ctx);
    if (options.breakdown) return breakdown(options, ctx);
    Training(options, ctx).run();
  });
}
