#include "ddprun/checkpoint.h"

#include <fcntl.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <exception>
#include <set>

#include "base/concat.h"
#include "base/durable_directory.h"
#include "base/file_calls.h"
#include "base/random_id.h"
#include "base/task_queue.h"
#include "base/unique_fd.h"
#include "worker_lib/checkpoint/contents.h"
#include "worker_lib/checkpoint/core/file_plan.h"
#include "worker_lib/checkpoint/gather.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/checkpoint/manifest_text.h"
#include "worker_lib/checkpoint/rank_state.h"
#include "worker_lib/checkpoint/restore.h"
#include "worker_lib/checkpoint/shared_write.h"
#include "worker_lib/context/save_request.h"
#include "worker_lib/group/any_rank.h"
#include "worker_lib/group/every_rank.h"
#include "worker_lib/group/late_checks.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/group/serial_executor.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/serialization/state_snapshot.h"
#include "worker_lib/util/command_runner.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr const char* kWaiting = "wait until checkpoints are written";
constexpr const char* kDirectoryVariable = "DDPRUN_CHECKPOINT_DIRECTORY";
constexpr const char* kFetchMark = ".fetching";  // in a directory: a fetch has not succeeded yet
// The end of the job's time is near.
constexpr Duration kLeavePatience = std::chrono::seconds(10);

// CheckpointWait: the training waits for a checkpoint while this lives. If an exception ends it,
// the wait is not reported: its time may be that of a hang.
class CheckpointWait {
 public:
  explicit CheckpointWait(ProcessGroup& group) : group_(group) {}
  ~CheckpointWait() {
    if (std::uncaught_exceptions() == exceptions_)
      group_.report_checkpoint(BootClock::now() - begun_);
  }
  CheckpointWait(const CheckpointWait&) = delete;
  CheckpointWait& operator=(const CheckpointWait&) = delete;

 private:
  ProcessGroup& group_;
  const TimePoint begun_ = BootClock::now();
  const int exceptions_ = std::uncaught_exceptions();
};

// Warns on rank 0 only, for warnings that are the same on all ranks.
void warn(const ProcessGroup& group, const std::string& text) {
  if (group.rank() == 0) TORCH_WARN(text);
}

// Returns the owner name of this process. Its managers share the directories that they have
// taken.
const std::string& own_name() {
  static const std::string name = random_hex(8);
  return name;
}

// The dicts in `gathered` are parts of the contents. The writer must be their only owner, because
// the bytes of a pickle depend on whether a dict has more than one.
void release(GatheredState& gathered) {
  gathered.facts = {};
  gathered.own = make_string_dict();  // a Dict cannot be moved from
}

}  // namespace

struct CheckpointManager::Impl {
  // The data of one save, independent of all that the training goes on changing.
  struct Saving {
    CheckpointManifest manifest;
    c10::IValue contents = {};
    bool is_shared = false;      // contents: this rank's share
    std::string data_name = {};  // if it is shared; of shards: the base of their names
  };

  ProcessGroup& group;
  std::int64_t generation;
  CheckpointOptions options;
  CheckpointDirectory directory;
  std::function<void(std::int64_t)> announce;
  bool may_be_asked = false;  // to save and to exit
  LateRequests requests{group};
  // Steps that restore() skipped: they may be damaged, and a later save may replace them.
  std::set<std::int64_t> passed_over = {};
  TimePoint last_save = BootClock::now();
  PositionWatch watch = {};
  bool was_told_to_leave = false;
  bool was_warned_of_leave = false;
  // The group of the threads that write shares, which tell each other what they have written.
  // Null: no shares.
  std::unique_ptr<ProcessGroup> writers = {};
  std::unique_ptr<CommandRunner> copies = {};  // on rank 0; null: there is no copy_command
  bool can_make_writers = true;
  BackgroundTask cleanup{"ddprun-cleanup"};  // after a restore

  // On rank 0, and with shares on all ranks. While `writing` is not complete, the writer's
  // thread owns the directory and passed_over.
  StateSnapshot snapshot = {};
  std::shared_ptr<detail::HostWork> writing = {};  // until its result was reported
  std::atomic<bool> is_waited_for = false;
  SerialExecutor writer{"ddprun-ckpt"};  // the last member, so that it ends first

  ~Impl() {
    try {
      settle();
    } catch (const DistError& failure) {
      TORCH_WARN(failure.what());
    }
    const Duration patience = options.copy_timeout;
    if (copies)
      copies->finish(was_told_to_leave ? std::min(patience, kLeavePatience) : patience,
                     [this] { group.report_activity(); });
  }

  bool would_skip() const { return options.skip_when_busy && !writer.is_idle(); }
  // Rank 0's part of save(). Returns false if the writer is busy and options.skip_when_busy is
  // set.
  bool begin_save(const TrainingState& state, GatheredState& gathered);
  // Returns whether each rank writes its share. Collective. bytes: of the parameters.
  bool is_shared(std::int64_t bytes);
  void make_writers() {
    writers = group.split(/*color=*/0, /*key=*/group.rank(), {.name = "checkpoints"});
  }
  // Every rank's part of save() with shares.
  bool save_share(const TrainingState& state, GatheredState& gathered);
  // Returns the manifest without what the writer adds: the files, and the hash of a whole model.
  CheckpointManifest manifest_of(const TrainingState& state, std::int64_t step) const;
  void hand_to_writer(Saving saving);
  Result<void> write(const Saving& saving);
  Result<void> write_shard(const Saving& saving);
  Result<void> write_part(const Saving& saving);
  void write_contents(const Saving& saving, AtomicFile& file);
  Result<void> announce_shards(CheckpointManifest manifest, const std::vector<json>& reports);
  void announced(std::int64_t step) {
    retire(step);
    if (announce) announce(step);
    if (copies)
      copies->begin({{kDirectoryVariable, directory.path()},
                     {"DDPRUN_CHECKPOINT_STEP", std::to_string(step)},
                     {"DDPRUN_CHECKPOINT_NAME", step_name(step)}});
  }
  void fetch();
  // Waits for the writer, and throws its failure.
  void settle() {
    if (!writing) return;
    is_waited_for = true;
    const std::shared_ptr<detail::HostWork> last = std::exchange(writing, nullptr);
    last->wait(std::nullopt);
  }
  void settle_everywhere();
  void retire(std::int64_t step);
  Better better() const { return options.higher_is_better ? Better::kHigher : Better::kLower; }
  void expect_no_later_step(std::int64_t step) const;
  // Runs rank 0's part of a call. Returns its result, or throws its exception, on every rank.
  bool on_rank_0(const char* doing, const std::function<bool()>& part);
};

void CheckpointManager::Impl::fetch() {
  value_or_throw(make_durable_directory(directory.path()));
  // A fetch that was cut off leaves manifests whose data is missing. The restore would skip them.
  const std::string mark = directory.path_of(kFetchMark);
  if (::access(mark.c_str(), F_OK) != 0 && !value_or_throw(directory.steps()).empty()) return;
  const UniqueFd made(uninterrupted(
      [&] { return file_calls().open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666); }));
  if (!made.valid()) throw to_dist_error(system_error("write " + mark, errno));
  value_or_throw(flush_directory(directory.path()));
  const TimePoint end =
      BootClock::now() + std::min<Duration>(options.disk_timeout, kLongestTimeout);
  const Result<void> done =
      run_command(options.fetch_command, {{kDirectoryVariable, directory.path()}}, [&] {
        group.report_activity();
        return BootClock::now() >= end;
      });
  if (!done) throw to_dist_error(Error(done.error()).within("fetch checkpoints"));
  if (file_calls().unlink(mark.c_str()) != 0 && errno != ENOENT)
    throw to_dist_error(system_error("remove " + mark, errno));
  value_or_throw(flush_directory(directory.path()));
}

void CheckpointManager::Impl::expect_no_later_step(std::int64_t step) const {
  const auto does_not_count = [&](std::int64_t other) {
    const auto checkpoint = directory.read_manifest(other);
    return !checkpoint && checkpoint.error().kind == ErrorKind::kStopped;
  };
  const std::string doing = concat("save step ", step);
  for (const std::int64_t other : value_or_throw(directory.steps())) {
    if (other <= step || passed_over.contains(other) || does_not_count(other)) continue;
    // If another run has taken the directory since, the step may belong to that run.
    (void)value_or_throw(directory.hold(concat(doing, " in ", directory.path())));
    refuse(
        concat(doing, ": ", directory.path(), " holds a checkpoint of step ", other,
               " that this run did not restore; call restore() first, or use an empty directory"));
  }
}

CheckpointManifest CheckpointManager::Impl::manifest_of(const TrainingState& state,
                                                        std::int64_t step) const {
  CheckpointManifest manifest{.step = step,
                              .epoch = state.epoch,
                              .generation = generation,
                              .world_size = group.size(),
                              .metric = state.metric,
                              .data = state.data};
  if (manifest.metric && !std::isfinite(*manifest.metric)) manifest.metric.reset();
  return manifest;
}

bool CheckpointManager::Impl::begin_save(const TrainingState& state, GatheredState& gathered) {
  if (would_skip()) return false;
  last_save = BootClock::now();
  settle();
  const std::int64_t step = gathered.facts.step;
  expect_no_later_step(step);
  Saving saving{.manifest = manifest_of(state, step),
                .contents = contents_of(state, gathered.facts, /*share=*/nullptr,
                                        options.asynchronous ? &snapshot : nullptr)};
  release(gathered);
  hand_to_writer(std::move(saving));
  return true;
}

bool CheckpointManager::Impl::is_shared(std::int64_t bytes) {
  if (writers) return options.sharded || bytes >= options.write_together_from;
  // Collectives of two NCCL communicators at the same time may block each other.
  can_make_writers = can_make_writers && group.takes(torch::kCPU);
  if (group.size() == 1 || options.sharded || !can_make_writers ||
      bytes < options.write_together_from)
    return false;
  // On larger pages, two hosts would write into one page.
  const bool has_large_pages =
      ::sysconf(_SC_PAGESIZE) > static_cast<long>(FilePlan::kPartAlignment);
  can_make_writers = !any_rank_requests(group, {has_large_pages})[0];
  if (!can_make_writers) return false;
  try {
    make_writers();
  } catch (const DistError& failure) {
    if (failure.kind() != DistError::Kind::kUnsupported) throw;
    can_make_writers = false;  // the group cannot be split, on no rank
  }
  return can_make_writers;
}

// Nothing is given to a writer before every rank has come this far, because a writer waits for
// the writers of the other ranks.
bool CheckpointManager::Impl::save_share(const TrainingState& state, GatheredState& gathered) {
  const std::int64_t step = gathered.facts.step;
  if (options.skip_when_busy && any_rank_requests(group, {would_skip()})[0]) return false;
  last_save = BootClock::now();
  Saving saving{.manifest = manifest_of(state, step), .is_shared = true};
  if (group.rank() == 0) saving.manifest.model = hash_of_models(state);
  const std::vector<json> replies =
      on_every_rank(group, kSaving, options.disk_timeout, [&]() -> json {
        settle();
        const auto& world_ranks = group.world_ranks();
        const ShardAssignment share(state, group.rank(), group.size(), !may_differ_anywhere(state),
                                    world_ranks.empty() ? 0 : world_ranks[0]);
        saving.contents = shard_of(state, gathered.facts, share, gathered.own);
        if (options.asynchronous) saving.contents = snapshot.take(saving.contents);
        if (group.rank() != 0) return nullptr;
        expect_no_later_step(step);
        return value_or_throw(directory.free_data_name(step));
      });
  saving.data_name = replies[0];
  release(gathered);
  hand_to_writer(std::move(saving));
  return true;
}

void CheckpointManager::Impl::hand_to_writer(Saving saving) {
  const auto carry_out = [this](const Saving& what) {
    if (!what.is_shared) return write(what);
    return options.sharded ? write_shard(what) : write_part(what);
  };
  is_waited_for = !options.asynchronous;
  if (!options.asynchronous) return value_or_throw(carry_out(saving));
  writing = writer.submit([this, carry_out, saving = std::move(saving)]() mutable {
    Result<void> done = carry_out(saving);
    if (!saving.is_shared) snapshot.give_back(std::exchange(saving.contents, {}));
    return done;
  });
}

void CheckpointManager::Impl::settle_everywhere() {
  if (writers)
    (void)on_every_rank(group, kWaiting, options.disk_timeout, [&]() -> json {
      settle();
      return nullptr;
    });
  else
    on_rank_0(kWaiting, [&] {
      settle();
      return true;
    });
}

void CheckpointManager::Impl::write_contents(const Saving& saving, AtomicFile& file) {
  write_pickle(saving.contents, [&](const void* data, std::size_t size) {
    file.write(data, size);
    // A hung training must not look alive only because its checkpoint is being written. So this
    // reports activity only if a call waits for the write.
    if (is_waited_for) group.report_activity();
  });
}

Result<void> CheckpointManager::Impl::write(const Saving& saving) try {
  CheckpointManifest manifest = saving.manifest;
  manifest.model = hash_of_models(saving.contents.toGenericDict());
  const Result<AnnouncedCheckpoint> done = directory.announce(
      std::move(manifest), [&](AtomicFile& file) { write_contents(saving, file); });
  if (!done) return done.error();
  announced(saving.manifest.step);
  return {};
} catch (...) {
  return error_in_flight(kSaving);
}

// Each writer reports its file to rank 0's writer. That one announces all files or none, and
// reports the result to the others.
Result<void> CheckpointManager::Impl::write_shard(const Saving& saving) try {
  const std::string name = shard_name(saving.data_name, group.rank());
  const auto write_file = [&]() -> Result<WrittenFile> {
    try {
      return directory.write_data(name, [&](AtomicFile& file) { write_contents(saving, file); });
    } catch (...) {
      return error_in_flight(kSaving);
    }
  };
  const Result<WrittenFile> written = write_file();
  json report = json::object();
  if (written) report = *written;
  report["failure"] = written ? json() : to_json_report(to_dist_error(written.error()));
  const std::vector<json> reports = writers->gather_object(report, 0, options.disk_timeout);
  json outcome = nullptr;
  if (group.rank() == 0)
    if (const Result<void> done = announce_shards(saving.manifest, reports); !done)
      outcome = to_json_report(to_dist_error(done.error()));
  outcome = writers->broadcast_object(outcome, 0, options.disk_timeout);
  if (!outcome.is_null() && written) directory.discard({name});
  throw_reported(outcome);
  if (group.rank() == 0) announced(saving.manifest.step);
  return {};
} catch (...) {
  return error_in_flight(kSaving);
}

// All ranks write one file. Rank 0 announces it, and reports the result to the others.
Result<void> CheckpointManager::Impl::write_part(const Saving& saving) try {
  json outcome = nullptr;
  CheckpointManifest manifest = saving.manifest;
  try {
    manifest.files = {write_together(
        *writers, directory, saving.contents,
        {.name = saving.data_name, .timeout = options.disk_timeout, .on_progress = [this] {
           if (is_waited_for) group.report_activity();
         }})};
  } catch (...) {
    if (group.rank() == 0) directory.tidy();
    throw;
  }
  if (group.rank() == 0)
    if (const auto done = directory.announce(std::move(manifest)); !done)
      outcome = to_json_report(to_dist_error(done.error()));
  outcome = writers->broadcast_object(outcome, 0, options.disk_timeout);
  throw_reported(outcome);
  if (group.rank() == 0) announced(saving.manifest.step);
  return {};
} catch (...) {
  return error_in_flight(kSaving);
}

Result<void> CheckpointManager::Impl::announce_shards(CheckpointManifest manifest,
                                                      const std::vector<json>& reports) try {
  for (std::size_t rank = 0; rank < reports.size(); ++rank)
    throw_reported(reports[rank].at("failure"), concat("rank ", rank, ": "));
  for (const json& report : reports) manifest.files.push_back(report.get<WrittenFile>());
  if (const auto done = directory.announce(std::move(manifest)); !done) return done.error();
  return {};
} catch (...) {
  return error_in_flight(kSaving);
}

// Removes checkpoints that the new one makes superfluous, and those that do not count. A
// checkpoint beyond the reader's bounds may be complete: it stays, and does not count among
// those that are kept. A failed removal does not fail the save; the next save tries again.
void CheckpointManager::Impl::retire(std::int64_t step) {
  const Result<ClaimLock> mine = directory.hold("remove old checkpoints");
  const auto steps = directory.steps();
  if (!mine || !steps) return;
  std::vector<RatedStep> read_here;
  for (const std::int64_t other : *steps) {
    const auto checkpoint = directory.read_manifest(other);
    const bool is_beyond = !checkpoint && is_beyond_reader(checkpoint.error());
    if (!checkpoint && checkpoint.error().kind == ErrorKind::kStopped) passed_over.insert(other);
    const bool is_gone = other != step && !is_beyond && passed_over.contains(other) &&
                         directory.forget(other).has_value();
    if (is_gone || other == step) passed_over.erase(other);
    if (!is_gone && !is_beyond && !passed_over.contains(other))
      read_here.push_back({other, checkpoint ? checkpoint->manifest.metric : std::nullopt});
  }
  for (const std::int64_t old :
       steps_to_forget(read_here, options.keep_last, options.keep_best, better()))
    (void)directory.forget(old);
}

bool CheckpointManager::Impl::on_rank_0(const char* doing, const std::function<bool()>& part) {
  json outcome{{"failure", nullptr}, {"result", false}};
  std::optional<LongWait> for_the_disk;
  if (group.rank() != 0) {
    for_the_disk.emplace(group);
  } else {
    try {
      with_dist_errors(doing, [&] { outcome["result"] = part(); });
    } catch (const DistError& failure) {
      outcome["failure"] = to_json_report(failure);
    }
  }
  try {
    outcome = group.broadcast_object(outcome, /*root=*/0, options.disk_timeout);
  } catch (const DistError& thrown) {
    throw within(thrown, doing);
  }
  throw_reported(outcome.at("failure"));
  return outcome.at("result");
}

std::string digest_of(const torch::nn::Module& module) {
  return with_dist_errors("digest a module", [&] {
    Sha256 digest;
    for (const auto& [name, tensor] : tensors_of(module)) {
      const torch::Tensor plain = tensor.detach().cpu().contiguous();
      const std::string header =
          concat(name, " ", text_of(plain.dtype()), " ", text_of(plain.sizes()), "\n");
      digest.add(header.data(), header.size());
      if (plain.nbytes() > 0) digest.add(plain.const_data_ptr(), plain.nbytes());
    }
    return digest.hex();
  });
}

CheckpointManager::CheckpointManager(Context& context, const CheckpointOptions& options)
    : CheckpointManager(context.group(), context.generation(), options,
                        context.checkpoint_announcer(), job_name(context.run_id())) {
  impl_->may_be_asked = context.may_be_asked_to_save();
}

CheckpointManager::CheckpointManager(ProcessGroup& group, std::int64_t generation,
                                     const CheckpointOptions& options,
                                     std::function<void(std::int64_t)> announce)
    : CheckpointManager(group, generation, options, std::move(announce), "") {}

CheckpointManager::CheckpointManager(ProcessGroup& group, std::int64_t generation,
                                     const CheckpointOptions& options,
                                     std::function<void(std::int64_t)> announce,
                                     const std::string& job)
    : impl_(new Impl{group, generation, options, CheckpointDirectory(options.directory),
                     std::move(announce)}) {
  const auto expect_at_least = [](std::int64_t least, const char* option, std::int64_t value) {
    if (value < least)
      refuse(concat("CheckpointManager: the option '", option, "' is ", value, ", at least ", least,
                    " is needed"));
  };
  if (options.directory.empty()) refuse("CheckpointManager: the option 'directory' is empty");
  expect_at_least(1, "keep_last", options.keep_last);
  expect_at_least(0, "keep_best", options.keep_best);
  expect_at_least(0, "every_steps", options.every_steps);
  expect_at_least(0, "every", options.every.count());
  expect_at_least(0, "copy_timeout", options.copy_timeout.count());
  expect_at_least(0, "write_together_from", options.write_together_from);
  if (options.read_only && options.fetch_command.empty()) return;
  const auto begin = [&]() -> json {
    if (group.rank() != 0) return nullptr;
    // Before the directory is taken: what is there then counts.
    if (!options.fetch_command.empty()) impl_->fetch();
    if (options.read_only) return nullptr;
    // Before any file of the job that has the directory is removed.
    value_or_throw(make_durable_directory(options.directory));
    value_or_throw(impl_->directory.take(generation, own_name(), job));
    // After the claim, because before it, files that look unneeded may belong to a running job.
    value_or_throw(impl_->directory.prepare());
    if (!options.copy_command.empty())
      impl_->copies = std::make_unique<CommandRunner>(
          options.copy_command,
          [](const std::string& text) { TORCH_WARN("copy a checkpoint: ", text); });
    return to_json(impl_->directory.own_claim());
  };
  if ((!options.sharded && options.fetch_command.empty()) || group.size() == 1) {
    (void)begin();
    return;
  }
  const std::vector<json> claims =
      on_every_rank(group, "prepare for checkpoints", options.disk_timeout, begin);
  if (!options.sharded || options.read_only) return;
  impl_->directory.share(claim_of(claims[0]));
  impl_->make_writers();
}

CheckpointManager::~CheckpointManager() = default;
CheckpointManager::CheckpointManager(CheckpointManager&&) noexcept = default;
CheckpointManager& CheckpointManager::operator=(CheckpointManager&&) noexcept = default;

bool CheckpointManager::save(std::int64_t step, const TrainingState& state) {
  return with_dist_errors(kSaving, [&] {
    if (step < 0) refuse(concat(kSaving, ": step ", step, " is negative"));
    if (impl_->options.read_only) refuse(concat(kSaving, ": the option 'read_only' is on"));
    const CheckpointWait waits(impl_->group);
    if (state.sampler) state.sampler->follow_group(impl_->group);
    GatheredState gathered =
        gather_for_save(impl_->group, state,
                        {.step = step,
                         .generation = impl_->generation,
                         .is_shared = [&](std::int64_t bytes) { return impl_->is_shared(bytes); },
                         .timeout = impl_->options.disk_timeout});
    for (const std::string& warning :
         impl_->watch.saving(position_of(state, step), state.has_position))
      warn(impl_->group, concat(kSaving, ": ", warning));
    if (gathered.is_shared) return impl_->save_share(state, gathered);
    return impl_->on_rank_0(kSaving, [&] { return impl_->begin_save(state, gathered); });
  });
}

MaybeSaved CheckpointManager::maybe_save(std::int64_t step, const TrainingState& state) {
  return with_dist_errors(kSaving, [&] {
    const CheckpointOptions& options = impl_->options;
    bool due = options.every_steps > 0 && step % options.every_steps == 0;
    const bool goes_on = impl_->was_told_to_leave;
    if (goes_on && !std::exchange(impl_->was_warned_of_leave, true))
      warn(impl_->group,
           "the training continues after maybe_save() returned `leave` (--checkpoint-signal): "
           "ddprun will exit with 75, as if the job were to be started again; leave the loop and "
           "return 0 when maybe_save(...).leave is true");
    const bool may_be_asked = impl_->may_be_asked && !goes_on;
    MaybeSaved done;
    const bool asks = options.every.count() > 0 || may_be_asked;
    const auto own_requests = [&]() -> std::vector<bool> {
      // Rank 0's clock decides, because other ranks may have started later. A save that would be
      // skipped stays due.
      const bool is_time = options.every.count() > 0 && impl_->group.rank() == 0 &&
                           BootClock::now() - impl_->last_save >= options.every &&
                           !impl_->would_skip();
      return {is_time, may_be_asked && save_was_requested()};
    };
    if (asks) {
      const std::vector<bool> requests = impl_->requests.take_previous(own_requests());
      due = due || requests[0];
      done.leave = requests[1];
    }
    if (done.leave) wait();  // so that the save is not skipped as busy
    const auto send_requests = [&] {
      if (asks && !done.leave) impl_->requests.send(own_requests());
    };
    try {
      if (due || done.leave) done.saved = save(step, state);
    } catch (const DistError&) {
      send_requests();  // as all ranks do, even if the save failed on one only
      throw;
    }
    if (done.leave) wait();
    send_requests();  // after the save, whose time they depend on
    done.leave = done.leave || goes_on;
    impl_->was_told_to_leave = done.leave;
    return done;
  });
}

void CheckpointManager::wait() {
  with_dist_errors(kWaiting, [&] {
    const CheckpointWait waits(impl_->group);
    impl_->settle_everywhere();
  });
}

std::string CheckpointManager::best() const {
  return with_dist_errors("look for the best checkpoint", [&]() -> std::string {
    std::vector<RatedStep> rated;
    for (const std::int64_t step : value_or_throw(impl_->directory.steps()))
      if (const auto checkpoint = impl_->directory.read_manifest(step))
        rated.push_back({step, checkpoint->manifest.metric});
    const std::optional<std::int64_t> step = best_step(rated, impl_->better());
    if (!step) return "";
    const auto checkpoint = value_or_throw(impl_->directory.read_manifest(*step));
    return impl_->directory.path_of(checkpoint.manifest.files.front().name);
  });
}

Restored CheckpointManager::restore(TrainingState& state) {
  return with_dist_errors(kRestoring, [&] {
    wait();
    expect_sound_names(state);
    if (state.sampler) state.sampler->follow_group(impl_->group);
    Restored result;
    const std::optional<FoundCheckpoint> found = restore_newest(
        impl_->group, impl_->directory, state, result,
        {.extra = impl_->options.read_only ? ExtraNames::kRemark : ExtraNames::kRefuse,
         .timeout = impl_->options.disk_timeout,
         .cleanup = impl_->cleanup});
    for (const std::int64_t step : value_or_throw(impl_->directory.steps()))
      if (!found || step > found->manifest.step) impl_->passed_over.insert(step);
    if (!found) {
      impl_->watch.restored(position_of(state, 0));
      return result;
    }
    result.file = found->file;
    result.step = found->manifest.step;
    const int world_size = found->manifest.world_size;
    if (world_size != impl_->group.size())
      result.remarks.insert(
          result.remarks.begin(),
          concat(result.file, " was saved by a world of ", world_size, ", this one has ",
                 impl_->group.size(),
                 ": the rest of the epoch is divided among the ranks of this one, and results are "
                 "not bit-identical to those of a training that was not resized"));
    // The late checks are about passes that the restored state replaces.
    impl_->group.notes()->late_checks->forget(impl_->group.world_ranks());
    const TrainingPosition position = position_of(state, result.step);
    impl_->watch.restored(position);
    if (const auto contradiction = epoch_contradiction(position);
        contradiction && state.has_position) {
      result.remarks.push_back(concat(result.file, ": ", *contradiction));
      warn(impl_->group, concat(kRestoring, ": ", result.remarks.back()));
    }
    return result;
  });
}

}  // namespace ddprun
