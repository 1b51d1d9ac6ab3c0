#include "ddprun/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <limits>
#include <set>
#include <sstream>

#include "worker_lib/checkpoint_io.h"
#include "worker_lib/checkpoint_state.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/optimizer_state.h"
#include "worker_lib/sha256.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr const char* kSaving = "save a checkpoint";
constexpr const char* kRestoring = "restore a checkpoint";

torch::Tensor cpu_generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_cpu_generator_state(const torch::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
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
  ProcessGroup& group;
  std::int64_t generation;
  CheckpointOptions options;
  CheckpointDirectory directory;
  std::function<void(std::int64_t)> announce;
  // Steps that restore() passed over: they may be damaged, and a later save may replace them.
  std::set<std::int64_t> passed_over = {};

  // Every rank's generator, in rank order, on rank 0. Throws if the ranks are not at the same step.
  std::vector<torch::Tensor> gather_generators(std::int64_t step) const;
  c10::IValue contents(std::int64_t step, const TrainingState& state,
                       const std::vector<torch::Tensor>& generators) const;
  void write(std::int64_t step, const TrainingState& state,
             const std::vector<torch::Tensor>& generators);
  void retire(std::int64_t step);
  void expect_no_later_step(std::int64_t step) const;
  // Throws rank 0's failure on every rank.
  void share_outcome(const std::optional<DistError>& failure) const;

  Search search(std::int64_t bound) const;
  std::optional<Loaded> find_common(std::vector<std::string>& skipped);
  void fill(TrainingState& state, Loaded checkpoint) const;
};

std::vector<torch::Tensor> CheckpointManager::Impl::gather_generators(std::int64_t step) const {
  const torch::Tensor own =
      torch::cat({cpu_generator_state(), torch::tensor({step}, torch::kInt64).view(torch::kUInt8)})
          .to(group.device());
  std::vector<torch::Tensor> all;
  for (int r = 0; r < group.size(); ++r) all.push_back(torch::empty_like(own));
  group.all_gather(all, own);
  for (torch::Tensor& tensor : all) {
    tensor = tensor.cpu();
    const auto theirs = tensor.narrow(0, tensor.size(0) - 8, 8).clone().view(torch::kInt64);
    if (theirs.item<std::int64_t>() != step)
      refuse(std::string(kSaving) + ": rank " + std::to_string(&tensor - all.data()) +
             " is at step " + std::to_string(theirs.item<std::int64_t>()) + ", rank " +
             std::to_string(group.rank()) + " at step " + std::to_string(step));
    tensor = tensor.narrow(0, 0, tensor.size(0) - 8).clone();
  }
  return all;
}

c10::IValue CheckpointManager::Impl::contents(std::int64_t step, const TrainingState& state,
                                              const std::vector<torch::Tensor>& generators) const {
  PickleDict top = make_string_dict();
  if (state.model) top.insert("model", module_state(*state.model));
  if (state.optimizer) {
    top.insert("optimizer", optimizer_state(*state.optimizer));
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
  for (const torch::Tensor& generator : generators) {
    PickleDict of_rank = make_string_dict();
    of_rank.insert("cpu", generator);
    rng.push_back(of_rank);
  }
  top.insert("rng", rng);
  top.insert("extra", from_json(state.extra));
  top.insert("world_size", group.size());
  top.insert("generation", generation);
  return top;
}

void CheckpointManager::Impl::expect_no_later_step(std::int64_t step) const {
  for (const std::int64_t other : value_or_throw(directory.steps()))
    if (other > step && !passed_over.contains(other))
      refuse("save step " + std::to_string(step) + ": " + directory.path() +
             " holds a checkpoint of step " + std::to_string(other) +
             " that this run did not restore; call restore() first, or use an empty directory");
}

void CheckpointManager::Impl::write(std::int64_t step, const TrainingState& state,
                                    const std::vector<torch::Tensor>& generators) {
  expect_no_later_step(step);
  const c10::IValue top = contents(step, state, generators);
  value_or_throw(directory.announce(
      {.step = step, .epoch = state.epoch, .generation = generation, .world_size = group.size()},
      [&](AtomicFile& file) {
        write_pickle(top, [&](const void* data, std::size_t size) {
          file.write(data, size);
          group.report_activity();
        });
      }));
  retire(step);
}

// Removes what the new checkpoint makes superfluous. That it cannot be removed does not undo the
// save, and the next one tries again.
void CheckpointManager::Impl::retire(std::int64_t step) {
  for (const std::int64_t other : passed_over)
    if (other != step) (void)directory.forget(other);
  passed_over.clear();
  if (const auto steps = directory.steps())
    for (const std::int64_t old : steps_to_forget(*steps, options.keep_last))
      (void)directory.forget(old);
}

void CheckpointManager::Impl::share_outcome(const std::optional<DistError>& failure) const {
  throw_reported(group.broadcast_object(to_json_report(failure), /*root=*/0, options.disk_timeout));
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

void CheckpointManager::Impl::fill(TrainingState& state, Loaded checkpoint) const {
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
  if (state.model) load_module_state(*state.model, entry_of(top, "model", file), file);
  if (state.optimizer)
    load_optimizer_state(*state.optimizer, entry_of(top, "optimizer", file), file);
  if (state.scheduler) state.scheduler->load_state(to_json(entry_of(top, "lr_scheduler", file)));
  if (state.sampler) state.sampler->load_state(to_json(entry_of(top, "sampler", file)));
  state.epoch = entry_of(top, "epoch", file).toInt();
  state.extra = to_json(entry_of(top, "extra", file));
  std::vector<torch::Tensor> generators;
  for (const c10::IValue& of_rank : entry_of(top, "rng", file).toListRef())
    generators.push_back(entry_of(of_rank, "cpu", file).toTensor());
  if (generators.empty()) refuse("restore " + file + ": it has no random generators");
  set_cpu_generator_state(generator_of_rank(generators, static_cast<std::size_t>(group.rank())));
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

CheckpointManager::CheckpointManager(ProcessGroup& group, std::int64_t generation,
                                     const CheckpointOptions& options,
                                     std::function<void(std::int64_t)> announce)
    : impl_(new Impl{group, generation, options, CheckpointDirectory(options.directory),
                     std::move(announce)}) {
  if (options.directory.empty()) refuse("CheckpointManager: the option 'directory' is empty");
  if (options.keep_last < 1)
    refuse("CheckpointManager: the option 'keep_last' is " + std::to_string(options.keep_last) +
           ", at least 1 is needed");
  if (group.rank() == 0) value_or_throw(impl_->directory.prepare());
}

CheckpointManager::~CheckpointManager() = default;
CheckpointManager::CheckpointManager(CheckpointManager&&) noexcept = default;
CheckpointManager& CheckpointManager::operator=(CheckpointManager&&) noexcept = default;

void CheckpointManager::save(std::int64_t step, const TrainingState& state) {
  with_dist_errors(kSaving, [&] {
    if (step < 0) refuse(std::string(kSaving) + ": step " + std::to_string(step) + " is negative");
    const auto generators = impl_->gather_generators(step);
    std::optional<DistError> failure;
    std::optional<LongWait> for_the_disk;
    if (impl_->group.rank() != 0) for_the_disk.emplace(impl_->group);
    try {
      with_dist_errors(kSaving, [&] {
        if (impl_->group.rank() == 0) impl_->write(step, state, generators);
      });
    } catch (const DistError& thrown) {
      failure = thrown;
    }
    impl_->share_outcome(failure);
    if (impl_->group.rank() == 0 && impl_->announce) impl_->announce(step);
  });
}

Restored CheckpointManager::restore(TrainingState& state) {
  return with_dist_errors(kRestoring, [&] {
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
    impl_->fill(state, *std::move(found));
    return result;
  });
}

}  // namespace ddprun
