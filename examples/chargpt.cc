// A small GPT that learns to write like a text, character by character, with any number of workers:
//
//   ddprun --standalone --nproc-per-node=2 chargpt --data=shakespeare.txt --sample=500
//
// --batch-size is that of all workers together. The blocks of text that a step sees do not depend
// on the number of workers. So one worker and six take the same steps, up to rounding: entry i of
// DistributedBatchSampler's order goes to rank i modulo W, in batches of 1/W of the size.
//
// With --checkpoint-dir a job that was killed continues from its newest checkpoint and ends with
// the same bits. examples/chargpt.py is the same in plain PyTorch.
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"
#include "examples/epoch_report.h"
#include "examples/gpt.h"
#include "examples/step_clock.h"
#include "examples/text_data.h"

namespace {

using examples::Blocks;

constexpr double kWeightDecay = 0.1;  // of matrices; biases and norms have none
constexpr double kMaxNorm = 1.0;      // of all gradients

struct Options {
  std::string data;
  std::int64_t steps = 2000;
  std::int64_t batch_size = 12;
  examples::GptSizes net;
  double lr = 1e-3;
  std::int64_t lr_warmup = 100;
  std::int64_t lr_decay_steps = 0;
  std::int64_t seed = 1;
  std::int64_t eval_every = 250;
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 250;
  std::string metrics;
  std::int64_t sample = 0;
  std::string init, save_init;
  bool breakdown = false;
  std::int64_t warmup = 10;

  void add_to(examples::CommandLine& line);
  void check() const;
  // Returns the number of steps to take, including the warm-up that --breakdown does not measure.
  std::int64_t all_steps() const { return breakdown ? warmup + steps : steps; }
};

void Options::add_to(examples::CommandLine& line) {
  line.add_option("--data", data, "the text, in UTF-8; its last tenth is for validation")
      .existing_file()
      .required();
  line.show_defaults(true);
  line.add_option("--steps", steps, "number of optimizer steps").positive();
  line.add_option("--batch-size", batch_size, "blocks of all workers in a step").positive();
  line.add_option("--block", net.block, "characters that the net sees").positive();
  line.add_option("--layers", net.layers, "number of layers of attention and MLP").positive();
  line.add_option("--heads", net.heads, "number of attention heads in a layer").positive();
  line.add_option("--width", net.width, "channels of a character").positive();
  line.add_option("--lr", lr, "the highest learning rate; it falls to a tenth").positive();
  line.add_option("--lr-warmup", lr_warmup, "steps in which the rate rises").positive();
  line.add_option("--seed", seed, "seed of the weights, the order of the blocks, and the sample");
  line.add_option("--eval-every", eval_every, "steps between validations").positive();
  line.add_option("--checkpoint-every", checkpoint_every, "steps between checkpoints").positive();
  line.add_option("--sample", sample, "characters that the trained net writes").not_negative();
  auto with_breakdown =
      line.add_option("--warmup", warmup, "steps before those that --breakdown measures")
          .not_negative();
  line.show_defaults(false);
  line.add_option("--lr-decay-steps", lr_decay_steps,
                  "steps after which the rate has fallen (default: --steps)")
      .positive();
  line.add_option("--checkpoint-dir", checkpoint_dir,
                  "directory to save checkpoints to and to resume from (default: none)");
  line.add_option("--metrics", metrics,
                  "file to which a line of JSON is added for each validation (default: none)");
  line.add_option("--init", init, "state dict of the first weights, as --save-init writes it")
      .existing_file();
  line.add_option("--save-init", save_init, "file for the first weights, which chargpt.py reads");
  with_breakdown.needs(line.add_flag(
      "--breakdown", breakdown,
      "measure --steps steps, without validation, and print their times as a line of JSON"));
}

// Checks values that depend on several options.
void Options::check() const {
  if (net.width % net.heads != 0)
    throw examples::CommandLine::Refused(
        "--width",
        std::to_string(net.width) + " does not divide by --heads " + std::to_string(net.heads));
  if (lr_decay_steps > 0 && lr_decay_steps < all_steps())
    throw examples::CommandLine::Refused(
        "--lr-decay-steps",
        std::to_string(lr_decay_steps) + " is less than " + std::to_string(all_steps()) + " steps");
}

examples::Gpt make_net(const Options& options, const examples::Text& text, torch::Device device) {
  torch::manual_seed(options.seed);
  examples::GptSizes sizes = options.net;
  sizes.vocabulary = text.vocabulary_size();
  examples::Gpt net(sizes);
  if (!options.init.empty()) ddprun::load_into(*net, ddprun::load_state_dict(options.init));
  net->to(device);
  return net;
}

std::vector<torch::optim::OptimizerParamGroup> parameter_groups(examples::Gpt& net, double lr) {
  std::vector<torch::Tensor> matrices, others;
  for (const torch::Tensor& parameter : net->parameters())
    (parameter.dim() >= 2 ? matrices : others).push_back(parameter);
  const auto options = torch::optim::AdamWOptions(lr).betas({0.9, 0.99});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& [parameters, decay] : {std::pair{matrices, kWeightDecay}, {others, 0.0}}) {
    auto of_group = std::make_unique<torch::optim::AdamWOptions>(options);
    of_group->weight_decay(decay);
    groups.emplace_back(parameters, std::move(of_group));
  }
  return groups;
}

// Returns the schedule of the learning rate: it rises linearly, and falls in half a cosine.
ddprun::SequentialLR rates(const Options& options) {
  const std::int64_t end = std::max(options.all_steps(), options.lr_decay_steps);
  return {.schedules = {ddprun::LinearWarmup{
                            .start_factor = 1.0 / static_cast<double>(options.lr_warmup),
                            .total_iters = options.lr_warmup},
                        ddprun::CosineAnnealingLR{
                            .t_max = std::max<std::int64_t>(end - options.lr_warmup, 1),
                            .eta_min = options.lr / 10}},
          .milestones = {options.lr_warmup}};
}

ddprun::DistributedBatchSampler make_sampler(const Options& options, const Blocks& blocks,
                                             ddprun::ProcessGroup& group) {
  ddprun::DistributedBatchSampler sampler(
      *blocks.size(), group,
      {.batch_size = ddprun::per_rank(static_cast<std::size_t>(options.batch_size), group.size()),
       .drop_last_batch = true,
       .of_samples = {.seed = options.seed, .drop_last = true}});
  if (sampler.batches() == 0)
    throw std::runtime_error(options.data + " has " + std::to_string(*blocks.size()) +
                             " blocks to train on, less than --batch-size " +
                             std::to_string(options.batch_size));
  return sampler;
}

torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& target) {
  return torch::cross_entropy_loss(scores.flatten(0, 1), target.flatten());
}

class Training {
 public:
  Training(const Options& options, const examples::Text& text, ddprun::Context& ctx)
      : options_(options),
        text_(text),
        ctx_(ctx),
        training_(text, Blocks::Part::kTraining, options.net.block),
        validation_(text, Blocks::Part::kValidation, options.net.block),
        net_(make_net(options, text, ctx.device())),
        model_(net_, ctx.group()),
        optimizer_(parameter_groups(net_, options.lr)),
        schedule_(optimizer_, rates(options)),
        sampler_(make_sampler(options, training_, ctx.group())),
        loader_(training_, sampler_, torch::data::DataLoaderOptions()),
        state_{.model = net_.get(),
               .optimizer = &optimizer_,
               .scheduler = &schedule_,
               .sampler = &sampler_,
               .data = "text with SHA-256 " + text.sha256()},
        report_(options.metrics, ctx.rank() == 0, ctx.world_size(), "step") {
    if (!options.save_init.empty() && ctx.rank() == 0)
      ddprun::save_state_dict(options.save_init, *net_);
    if (!options.checkpoint_dir.empty()) resume();
  }

  void run() {
    begin_report();
    while (step_ < options_.all_steps() && !leaves_) {
      if (step_ == options_.warmup) clock_ = {};
      take_step(next_batch());
      const bool last = step_ == options_.all_steps();
      if (!options_.breakdown && (last || step_ % options_.eval_every == 0)) evaluate(last);
      save(last);
    }
    if (checkpoints_) checkpoints_->wait();
    if (ctx_.rank() == 0) say_goodbye();
  }

 private:
  void resume() {
    checkpoints_.emplace(ctx_, ddprun::CheckpointOptions{.directory = options_.checkpoint_dir,
                                                         .every_steps = options_.checkpoint_every});
    const ddprun::Restored restored = checkpoints_->restore(state_);
    step_ = restored.step;
    if (ctx_.rank() != 0) return;
    for (const std::string& line : restored.skipped) std::printf("skipped %s\n", line.c_str());
    for (const std::string& line : restored.remarks) std::printf("%s\n", line.c_str());
    if (!restored) return;
    std::printf("resumed at step %lld from %s\n", static_cast<long long>(step_),
                restored.file.c_str());
  }

  // Returns the next batch; at the end of an epoch, the first one of the next epoch.
  const torch::data::Example<>& next_batch() {
    clock_.begin();
    if (batch_) ++*batch_;
    while (!batch_ || *batch_ == loader_.end()) {  // a resumed epoch may have nothing left
      if (batch_) ++state_.epoch;
      sampler_.set_epoch(state_.epoch);
      batch_ = loader_.begin();
    }
    clock_.end("data");
    return **batch_;
  }

  void take_step(const torch::data::Example<>& batch) {
    const torch::Device device = ctx_.device();
    const torch::Tensor loss = loss_of(model_(batch.data.to(device)), batch.target.to(device));
    clock_.end("forward");
    optimizer_.zero_grad();
    loss.backward();
    clock_.end("backward");
    model_.clip_grad_norm_(kMaxNorm);
    optimizer_.step();
    schedule_.step();
    clock_.end("optimizer");
    ctx_.report_progress(++step_, options_.all_steps());
    const std::int64_t blocks = batch.data.size(0);
    metrics_.add_mean("loss", loss.item<double>(), static_cast<double>(blocks));
    if (!options_.breakdown) report_.step(loss.item<double>(), blocks);
  }

  void begin_report() {
    const std::int64_t next = (step_ / options_.eval_every + 1) * options_.eval_every;
    const std::int64_t end = std::min(next, options_.all_steps());
    report_.begin_epoch(end, end - step_);
  }

  // Evaluates the net on the last tenth of the text. Each worker computes its share.
  void evaluate(bool last) {
    const torch::NoGradGuard no_grad;
    constexpr std::int64_t kBlocks = 64;
    auto loader = torch::data::make_data_loader(
        validation_, ddprun::DistributedEvalSampler(*validation_.size(), ctx_.group()), kBlocks);
    for (auto& batch : *loader)
      metrics_.add_mean("val_loss",
                        loss_of(net_(batch.data.to(ctx_.device())), batch.target.to(ctx_.device()))
                            .item<double>(),
                        static_cast<double>(batch.data.size(0)));
    const ddprun::MetricAccumulator all = metrics_.merged(ctx_.group());
    report_.end_epoch(step_, {{"loss", all.mean("loss")}, {"val_loss", all.mean("val_loss")}});
    metrics_.clear();
    if (!last) begin_report();
  }

  void save(bool last) {
    if (!checkpoints_) {
      leaves_ = ctx_.save_requested();
      return;
    }
    leaves_ = checkpoints_->maybe_save(step_, state_).leave;
    if (last && !leaves_ && step_ % options_.checkpoint_every != 0)
      checkpoints_->save(step_, state_);
  }

  void say_goodbye() {
    if (leaves_) {
      std::printf("asked to leave at step %lld\n", static_cast<long long>(step_));
      return;
    }
    if (options_.sample > 0) {
      const torch::Tensor drawn = examples::drawn_tokens(net_, 0, options_.sample, options_.seed);
      std::printf("%s\n", text_.spelled(drawn).c_str());
    }
    std::printf("sha256 %s\n", ddprun::digest_of(*net_).c_str());
    if (!options_.breakdown) return;
    double step_ms = 0;
    for (const nlohmann::json& phase : clock_.breakdown_ms()) step_ms += phase.get<double>();
    const nlohmann::json measured{
        {"samples_per_second", static_cast<double>(options_.batch_size) * 1000 / step_ms},
        {"breakdown_ms", clock_.breakdown_ms()}};
    std::printf("%s\n", measured.dump().c_str());
  }

  const Options& options_;
  const examples::Text& text_;
  ddprun::Context& ctx_;
  Blocks training_, validation_;
  examples::Gpt net_;
  ddprun::DistributedDataParallel<examples::Gpt> model_;
  torch::optim::AdamW optimizer_;
  ddprun::LRScheduler schedule_;
  ddprun::DistributedBatchSampler sampler_;
  torch::data::StatelessDataLoader<Blocks, ddprun::DistributedBatchSampler> loader_;
  std::optional<torch::data::Iterator<torch::data::Example<>>> batch_;
  ddprun::TrainingState state_;
  std::optional<ddprun::CheckpointManager> checkpoints_;
  examples::EpochReport report_;
  ddprun::MetricAccumulator metrics_;
  examples::StepClock clock_;
  std::int64_t step_ = 0;
  bool leaves_ = false;  // ddprun has asked the job to leave (--checkpoint-signal)
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains a small GPT on the characters of a text.\n"
      "Example: ddprun --standalone --nproc-per-node=2 chargpt --data=shakespeare.txt",
      "chargpt");
  options.add_to(line);
  line.set_check([&] { options.check(); });
  return line.run(argc, argv, [&] {
    const examples::Text text(options.data);
    ddprun::Context ctx = ddprun::init();
    Training(options, text, ctx).run();
  });
}
