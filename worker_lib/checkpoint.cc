#include "ddprun/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "worker_lib/any_rank.h"
#include "worker_lib/checkpoint_io.h"
#include "worker_lib/checkpoint_state.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/optimizer_state.h"
#include "worker_lib/save_request.h"
#include "worker_lib/serial_executor.h"
#include "worker_lib/sha256.h"
#include "worker_lib/state_snapshot.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr const char* kSaving = "save a checkpoint";
constexpr const char* kRestoring = "restore a checkpoint";

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state_of(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// A kind of generator that each rank has one of.
struct RankGenerator {
  const char* key;  // in the file
  at::Generator generator;
};

std::vector<RankGenerator> generators_of(const ProcessGroup& group) {
  std::vector<RankGenerator> result{{"cpu", at::detail::getDefaultCPUGenerator()}};
  if (group.device().is_cuda())
    result.push_back({"cuda", at::globalContext().defaultGenerator(group.device())});
  return result;
}

// A checkpoint whose bytes are in memory and known to be right.
struct Loaded {
  CheckpointManifest manifest;
  std::string identity;
  std::string file;
  std::vector<char> bytes;
};

// What one rank found within a bound. A failure is not a damaged checkpoint: something is wrong with
// the disk or the rights, and what cannot be read now may be whole.
struct Search {
  std::optional<Loaded> found;
  std::vector<std::string> skipped;
  std::optional<DistError> failure;
};

bool is_damage(const Error& error) {
  return error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kNotFound;
}

json to_json_report(const std::optional<DistError>& failure) {
  if (!failure) return nullptr;
  return {{"kind", failure->kind()}, {"what", failure->what()}};
}

// Throws the failure that to_json_report() of some rank told of, if there is one.
void throw_reported(const json& report, const std::string& whose = "") {
  if (report.is_null()) return;
  refuse(whose + report.at("what").get<std::string>(), report.at("kind").get<DistError::Kind>());
}

}  // namespace

struct CheckpointManager::Impl {
  // What is written of one save: nothing that the training goes on changing.
  struct Saving {
    CheckpointManifest manifest;
    c10::IValue contents;
  };

  ProcessGroup& group;
  std::int64_t generation;
  CheckpointOptions options;
  CheckpointDirectory directory;
  std::function<void(std::int64_t)> announce;
  bool may_be_asked = false;  // to save and to leave
  // Steps that restore() passed over: they may be damaged, and a later save may replace them.
  std::set<std::int64_t> passed_over = {};

  // On rank 0. The writer's thread has the directory and passed_over while `writing` is not complete.
  TimePoint last_save = BootClock::now();
  StateSnapshot snapshot = {};
  std::shared_ptr<detail::HostWork> writing = {};  // until its end was told
  std::atomic<bool> is_waited_for = false;
  SerialExecutor writer{"ddprun-ckpt"};  // the last member, so that it ends first

  ~Impl();

  // What ranks other than rank 0 have a part in.
  struct Gathered {
    std::vector<PickleDict> generators;          // of every rank, in rank order
    std::optional<PickleDict> optimizer_states;  // if they are dealt out to the ranks
  };

  // The generators of every rank, in rank order, on rank 0. Throws if the ranks are not at the same
  // step.
  std::vector<PickleDict> gather_generators(std::int64_t step) const;
  c10::IValue contents(std::int64_t step, const TrainingState& state,
                       const Gathered& gathered) const;
  bool would_skip() const { return options.skip_when_busy && !writer.is_idle(); }
  // Rank 0's part of save(): false if the writer is busy and need not be waited for.
  bool begin_save(std::int64_t step, const TrainingState& state, const Gathered& gathered);
  Result<void> write(const Saving& saving);
  // Waits for the writer, and throws what went wrong with what it wrote.
  void settle();
  void retire(std::int64_t step);
  std::vector<RatedStep> rated_steps() const;
  void expect_no_later_step(std::int64_t step) const;
  // Runs rank 0's part of a call; its result, or what it threw, on every rank.
  bool on_rank_0(const char* doing, const std::function<bool()>& part);

  Search search(std::int64_t bound) const;
  std::optional<Loaded> find_common(std::vector<std::string>& skipped);
  void fill(TrainingState& state, Loaded checkpoint, std::vector<std::string>& remarks) const;
};

CheckpointManager::Impl::~Impl() {
  try {
    settle();
  } catch (const DistError& failure) {
    TORCH_WARN(failure.what());
  }
}

std::vector<PickleDict> CheckpointManager::Impl::gather_generators(std::int64_t step) const {
  const std::vector<RankGenerator> generators = generators_of(group);
  std::vector<torch::Tensor> parts{torch::tensor({step}, torch::kInt64).view(torch::kUInt8)};
  for (const RankGenerator& one : generators) parts.push_back(state_of(one.generator));
  const torch::Tensor own = torch::cat(parts).to(group.device());
  std::vector<torch::Tensor> all;
  for (int r = 0; r < group.size(); ++r) all.push_back(torch::empty_like(own));
  group.all_gather(all, own);
  std::vector<PickleDict> result;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const torch::Tensor theirs = all[rank].cpu();
    const auto their_step = theirs.narrow(0, 0, 8).view(torch::kInt64).item<std::int64_t>();
    if (their_step != step)
      refuse(std::string(kSaving) + ": rank " + std::to_string(rank) + " is at step " +
             std::to_string(their_step) + ", rank " + std::to_string(group.rank()) + " at step " +
             std::to_string(step));
    PickleDict of_rank = make_string_dict();
    std::int64_t begin = 8;
    for (std::size_t i = 0; i < generators.size(); ++i) {
      const std::int64_t size = parts[i + 1].size(0);
      of_rank.insert(generators[i].key, theirs.narrow(0, begin, size).clone());
      begin += size;
    }
    result.push_back(of_rank);
  }
  return result;
}

c10::IValue CheckpointManager::Impl::contents(std::int64_t step, const TrainingState& state,
                                              const Gathered& gathered) const {
  PickleDict top = make_string_dict();
  if (state.model) top.insert("model", module_state(*state.model));
  if (state.optimizer) {
    PickleDict optimizer = optimizer_state(*state.optimizer);
    if (gathered.optimizer_states) optimizer.insert_or_assign("state", *gathered.optimizer_states);
    top.insert("optimizer", optimizer);
    top.insert("optimizer_class", optimizer_class(*state.optimizer));
  }
  if (state.scheduler) {
    top.insert("lr_scheduler", from_json(state.scheduler->state()));
    top.insert("lr_scheduler_class", state.scheduler->class_name());
  }
  if (state.sampler) top.insert("sampler", from_json(state.sampler->state()));
  top.insert("epoch", state.epoch);
  top.insert("step", step);
  auto rng = make_list();
  for (const PickleDict& of_rank : gathered.generators) rng.push_back(of_rank);
  top.insert("rng", rng);
  top.insert("extra", from_json(state.extra));
  top.insert("world_size", group.size());
  top.insert("generation", generation);
  top.insert("threads", torch::get_num_threads());
  top.insert("data", state.data);
  return top;
}

void CheckpointManager::Impl::expect_no_later_step(std::int64_t step) const {
  for (const std::int64_t other : value_or_throw(directory.steps()))
    if (other > step && !passed_over.contains(other))
      refuse("save step " + std::to_string(step) + ": " + directory.path() +
             " holds a checkpoint of step " + std::to_string(other) +
             " that this run did not restore; call restore() first, or use an empty directory");
}

bool CheckpointManager::Impl::begin_save(std::int64_t step, const TrainingState& state,
                                         const Gathered& gathered) {
  if (would_skip()) return false;
  last_save = BootClock::now();
  settle();
  expect_no_later_step(step);
  Saving saving{.manifest = {.step = step,
                             .epoch = state.epoch,
                             .generation = generation,
                             .world_size = group.size(),
                             .metric = state.metric},
                .contents = contents(step, state, gathered)};
  if (saving.manifest.metric && !std::isfinite(*saving.manifest.metric))
    saving.manifest.metric.reset();
  if (!options.asynchronous) {
    is_waited_for = true;
    value_or_throw(write(saving));
    return true;
  }
  saving.contents = snapshot.take(saving.contents);
  is_waited_for = false;
  writing = writer.submit([this, saving = std::move(saving)] { return write(saving); });
  return true;
}

void CheckpointManager::Impl::settle() {
  if (!writing) return;
  is_waited_for = true;
  const std::shared_ptr<detail::HostWork> last = std::exchange(writing, nullptr);
  last->wait(std::nullopt);
}

Result<void> CheckpointManager::Impl::write(const Saving& saving) try {
  const Result<AnnouncedCheckpoint> announced =
      directory.announce(saving.manifest, [&](AtomicFile& file) {
        write_pickle(saving.contents, [&](const void* data, std::size_t size) {
          file.write(data, size);
          // A training that hangs must not look alive because its checkpoint is being written.
          if (is_waited_for) group.report_activity();
        });
      });
  if (!announced) return announced.error();
  retire(saving.manifest.step);
  if (announce) announce(saving.manifest.step);
  return {};
} catch (...) {
  return error_in_flight(kSaving);
}

// Removes what the new checkpoint makes superfluous. That it cannot be removed does not undo the
// save, and the next one tries again.
void CheckpointManager::Impl::retire(std::int64_t step) {
  for (const std::int64_t other : passed_over)
    if (other != step) (void)directory.forget(other);
  passed_over.clear();
  const auto better = options.higher_is_better ? Better::kHigher : Better::kLower;
  for (const std::int64_t old :
       steps_to_forget(rated_steps(), options.keep_last, options.keep_best, better))
    (void)directory.forget(old);
}

// Newest first; none if the directory cannot be read.
std::vector<RatedStep> CheckpointManager::Impl::rated_steps() const {
  const auto steps = directory.steps();
  if (!steps) return {};
  std::vector<RatedStep> result;
  for (const std::int64_t step : *steps) {
    RatedStep rated{.step = step};
    if (options.keep_best > 0)
      if (const auto checkpoint = directory.read_manifest(step))
        rated.metric = checkpoint->manifest.metric;
    result.push_back(rated);
  }
  return result;
}

bool CheckpointManager::Impl::on_rank_0(const char* doing, const std::function<bool()>& part) {
  json outcome{{"failure", nullptr}, {"result", false}};
  std::optional<LongWait> for_the_disk;
  if (group.rank() != 0) for_the_disk.emplace(group);
  if (group.rank() == 0) {
    std::optional<DistError> failure;
    try {
      with_dist_errors(doing, [&] { outcome["result"] = part(); });
    } catch (const DistError& thrown) {
      failure = thrown;
    }
    outcome["failure"] = to_json_report(failure);
  }
  outcome = group.broadcast_object(outcome, /*root=*/0, options.disk_timeout);
  throw_reported(outcome.at("failure"));
  return outcome.at("result");
}

Search CheckpointManager::Impl::search(std::int64_t bound) const {
  Search result;
  const auto steps = directory.steps();
  if (!steps) {
    result.failure = to_dist_error(steps.error());
    return result;
  }
  for (const std::int64_t step : *steps) {
    if (step > bound) continue;
    const auto checkpoint = directory.read_manifest(step);
    auto data = checkpoint ? directory.read_data(checkpoint->manifest)
                           : Result<std::vector<char>>(checkpoint.error());
    if (data) {
      result.found =
          Loaded{checkpoint->manifest, checkpoint->identity,
                 directory.path_of(checkpoint->manifest.files.front().name), *std::move(data)};
      return result;
    }
    if (!is_damage(data.error())) {
      result.failure = to_dist_error(data.error());
      return result;
    }
    result.skipped.push_back("step " + std::to_string(step) + ": " + data.error().message());
  }
  return result;
}

// Rounds of: every rank says what it can read, until all say the same. Each round lowers the bound,
// so there are at most as many as checkpoints. Nothing is agreed upon only where nobody has any: to
// start anew because one host lacks a mount would cost the whole run, and its checkpoints at the
// next save.
std::optional<Loaded> CheckpointManager::Impl::find_common(std::vector<std::string>& skipped) {
  std::int64_t bound = std::numeric_limits<std::int64_t>::max();
  std::string somebody_reads;
  for (;;) {
    Search own = search(bound);
    const json reports =
        group.all_gather_object({{"step", own.found ? own.found->manifest.step : -1},
                                 {"identity", own.found ? own.found->identity : ""},
                                 {"file", own.found ? own.found->file : ""},
                                 {"skipped", own.skipped},
                                 {"failure", to_json_report(own.failure)}},
                                options.disk_timeout);
    std::vector<RestoreCandidate> candidates;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const json& report = reports[rank];
      throw_reported(report.at("failure"),
                     std::string(kRestoring) + ": rank " + std::to_string(rank) + ": ");
      if (somebody_reads.empty() && report.at("step") >= 0)
        somebody_reads =
            "rank " + std::to_string(rank) + " can read " + report.at("file").get<std::string>();
      candidates.push_back({report.at("step"), report.at("identity")});
      // Ranks that share a directory say the same; it is said once.
      for (const std::string line : report.at("skipped"))
        if (std::ranges::find(skipped, line) == skipped.end()) skipped.push_back(line);
    }
    const RestoreRound round = agree_on_step(candidates);
    if (round.done && round.step < 0 && !somebody_reads.empty())
      refuse(std::string(kRestoring) + ": the ranks have none in common: " + somebody_reads +
                 ", rank " + std::to_string(round.rank) + " none that is the same; is " +
                 directory.path() +
                 " one directory that all ranks see? (To start anew, use an empty one.)",
             DistError::Kind::kSystem);
    if (round.done && round.step < 0) return std::nullopt;
    if (round.done) return std::move(own.found);
    skipped.push_back(
        "rank " + std::to_string(round.rank) +
        (round.differs
             ? " has another checkpoint of step " + std::to_string(round.bound + 1) + " than rank 0"
             : " can read none that is newer than step " + std::to_string(round.bound)));
    bound = round.bound;
  }
}

void CheckpointManager::Impl::fill(TrainingState& state, Loaded checkpoint,
                                   std::vector<std::string>& remarks) const {
  const std::string& file = checkpoint.file;
  // The SHA-256 of the manifest vouches for the bytes.
  const c10::IValue top =
      read_pickle({checkpoint.bytes.data(), checkpoint.bytes.size()}, file, RecordCrcs::kTrust);
  if (state.optimizer) {
    const std::string saved = entry_of(top, "optimizer_class", file).toStringRef();
    if (saved != optimizer_class(*state.optimizer))
      refuse("restore " + file + ": it holds the state of " + saved + ", this optimizer is " +
             optimizer_class(*state.optimizer));
  }
  if (state.scheduler) {
    const std::string saved = entry_of(top, "lr_scheduler_class", file).toStringRef();
    if (saved != state.scheduler->class_name())
      refuse("restore " + file + ": it holds the state of " + saved + ", this schedule is " +
             state.scheduler->class_name());
  }
  // Files of earlier versions have neither.
  if (const auto data = find_entry(top, "data"); data && !state.data.empty()) {
    const std::string& saved = data->toStringRef();
    if (!saved.empty() && saved != state.data)
      refuse("restore " + file + ": it was trained on the data '" + saved + "', this run's is '" +
             state.data + "'");
  }
  if (const auto threads = find_entry(top, "threads");
      threads && threads->toInt() != torch::get_num_threads())
    remarks.push_back(file + " was saved by workers of " + std::to_string(threads->toInt()) +
                      " threads, these have " + std::to_string(torch::get_num_threads()) +
                      ": sums may be rounded otherwise");
  if (state.model) load_module_state(*state.model, entry_of(top, "model", file), file);
  if (state.optimizer)
    load_optimizer_state(*state.optimizer, entry_of(top, "optimizer", file), file);
  if (state.scheduler) state.scheduler->load_state(to_json(entry_of(top, "lr_scheduler", file)));
  if (state.sampler) state.sampler->load_state(to_json(entry_of(top, "sampler", file)));
  state.epoch = entry_of(top, "epoch", file).toInt();
  state.extra = to_json(entry_of(top, "extra", file));
  const c10::IValue rng = entry_of(top, "rng", file);
  if (rng.toListRef().empty()) refuse("restore " + file + ": it has no random generators");
  for (const RankGenerator& own : generators_of(group)) {
    std::vector<torch::Tensor> saved;
    for (const c10::IValue& of_rank : rng.toListRef())
      if (const auto state_there = find_entry(of_rank, own.key))
        saved.push_back(state_there->toTensor());
    if (saved.empty()) {  // saved by ranks without a GPU
      remarks.push_back(file + " has no " + own.key + " generators: those stay as they are");
      continue;
    }
    set_state_of(own.generator, generator_of_rank(saved, static_cast<std::size_t>(group.rank())));
  }
}

std::string digest_of(const torch::nn::Module& module) {
  return with_dist_errors("digest a module", [&] {
    Sha256 digest;
    for (const auto& [name, tensor] : tensors_of(module)) {
      const torch::Tensor plain = tensor.detach().cpu().contiguous();
      std::ostringstream text;
      text << name << " " << plain.dtype() << " " << plain.sizes() << "\n";
      const std::string header = text.str();
      digest.add(header.data(), header.size());
      if (plain.nbytes() > 0) digest.add(plain.const_data_ptr(), plain.nbytes());
    }
    return digest.hex();
  });
}

CheckpointManager::CheckpointManager(Context& context, const CheckpointOptions& options)
    : CheckpointManager(context.group(), context.generation(), options,
                        context.checkpoint_announcer()) {
  impl_->may_be_asked = context.may_be_asked_to_save();
}

CheckpointManager::CheckpointManager(ProcessGroup& group, std::int64_t generation,
                                     const CheckpointOptions& options,
                                     std::function<void(std::int64_t)> announce)
    : impl_(new Impl{group, generation, options, CheckpointDirectory(options.directory),
                     std::move(announce)}) {
  const auto refuse_option = [](const char* option, std::int64_t value, const char* least) {
    refuse(std::string("CheckpointManager: the option '") + option + "' is " +
           std::to_string(value) + ", at least " + least + " is needed");
  };
  if (options.directory.empty()) refuse("CheckpointManager: the option 'directory' is empty");
  if (options.keep_last < 1) refuse_option("keep_last", options.keep_last, "1");
  if (options.keep_best < 0) refuse_option("keep_best", options.keep_best, "0");
  if (options.every_steps < 0) refuse_option("every_steps", options.every_steps, "0");
  if (options.every.count() < 0) refuse_option("every", options.every.count(), "0");
  if (group.rank() == 0) value_or_throw(impl_->directory.prepare());
}

CheckpointManager::~CheckpointManager() = default;
CheckpointManager::CheckpointManager(CheckpointManager&&) noexcept = default;
CheckpointManager& CheckpointManager::operator=(CheckpointManager&&) noexcept = default;

bool CheckpointManager::save(std::int64_t step, const TrainingState& state) {
  return with_dist_errors(kSaving, [&] {
    if (step < 0) refuse(std::string(kSaving) + ": step " + std::to_string(step) + " is negative");
    const auto generators = impl_->gather_generators(step);
    std::optional<PickleDict> states;
    if (state.optimizer) states = gather_optimizer_states(*state.optimizer);
    return impl_->on_rank_0(kSaving, [&] {
      return impl_->begin_save(step, state, {generators, states});
    });
  });
}

MaybeSaved CheckpointManager::maybe_save(std::int64_t step, const TrainingState& state) {
  return with_dist_errors(kSaving, [&] {
    const CheckpointOptions& options = impl_->options;
    bool due = options.every_steps > 0 && step % options.every_steps == 0;
    MaybeSaved done{.leave = impl_->may_be_asked && save_was_requested()};
    if (options.every.count() > 0 || impl_->may_be_asked) {
      // Rank 0's clock counts: others may have started later. What would be skipped stays due.
      const bool is_time = options.every.count() > 0 && impl_->group.rank() == 0 &&
                           BootClock::now() - impl_->last_save >= options.every &&
                           !impl_->would_skip();
      const std::vector<bool> wishes = wishes_of_all(impl_->group, {is_time, done.leave});
      due = due || wishes[0];
      done.leave = wishes[1];
    }
    if (done.leave) wait();  // so that it is not skipped as busy
    if (due || done.leave) done.saved = save(step, state);
    if (done.leave) wait();
    return done;
  });
}

void CheckpointManager::wait() {
  with_dist_errors(kSaving, [&] {
    impl_->on_rank_0(kSaving, [&] {
      impl_->settle();
      return true;
    });
  });
}

std::string CheckpointManager::best() const {
  return with_dist_errors("look for the best checkpoint", [&]() -> std::string {
    std::vector<RatedStep> rated;
    for (const std::int64_t step : value_or_throw(impl_->directory.steps()))
      if (const auto checkpoint = impl_->directory.read_manifest(step))
        rated.push_back({step, checkpoint->manifest.metric});
    const auto better = impl_->options.higher_is_better ? Better::kHigher : Better::kLower;
    const std::optional<std::int64_t> step = best_step(rated, better);
    if (!step) return "";
    const auto checkpoint = value_or_throw(impl_->directory.read_manifest(*step));
    return impl_->directory.path_of(checkpoint.manifest.files.front().name);
  });
}

Restored CheckpointManager::restore(TrainingState& state) {
  return with_dist_errors(kRestoring, [&] {
    wait();
    const LongWait for_the_disk(impl_->group);
    Restored result;
    std::optional<Loaded> found = impl_->find_common(result.skipped);
    for (const std::int64_t step : value_or_throw(impl_->directory.steps()))
      if (!found || step > found->manifest.step) impl_->passed_over.insert(step);
    if (!found) return result;
    result.file = found->file;
    result.step = found->manifest.step;
    const int world_size = found->manifest.world_size;
    if (world_size != impl_->group.size())
      result.remarks.push_back(result.file + " was saved by a world of " +
                               std::to_string(world_size) + ", this one has " +
                               std::to_string(impl_->group.size()) +
                               ": what is left of the epoch is dealt to it, and the bits of a "
                               "training that was not resized are not to be expected");
    impl_->fill(state, *std::move(found), result.remarks);
    return result;
  });
}

}  // namespace ddprun
