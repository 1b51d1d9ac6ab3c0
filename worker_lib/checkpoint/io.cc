#include "worker_lib/checkpoint/io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "base/concat.h"
#include "base/durable_directory.h"
#include "base/file_calls.h"
#include "base/final_error.h"
#include "base/read_all.h"
#include "base/read_whole.h"
#include "base/regular_file.h"
#include "worker_lib/checkpoint/manifest_text.h"
#include "worker_lib/checkpoint/piece_reader.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

// Maximum size of a manifest or claim that is read. Those that are written are far smaller
// (kMaxManifestBytes). So no version writes a manifest that it, or a version with somewhat
// smaller bounds, could not read.
constexpr std::size_t kMaxReadBytes = std::size_t{128} << 20;
// In all files of a manifest: 4 MB.
constexpr std::uint64_t kMostChainStates = std::uint64_t{1} << 16;
constexpr JsonBounds kMaxManifest{.depth = 16, .values = std::size_t{4} << 20};

Error corrupt(const std::string& path, std::string cause) {
  return {.kind = ErrorKind::kCorrupt, .doing = "read " + path, .cause = std::move(cause)};
}

}  // namespace

Error beyond_reader(const std::string& path, std::string cause) {
  return {.kind = ErrorKind::kResource,
          .doing = "read " + path,
          .cause = std::move(cause) + ", the most that this program reads; it is left as it is"};
}

Error wrong_size(const std::string& path, std::uint64_t bytes, std::uint64_t expected) {
  return corrupt(path, concat("it has ", bytes, " bytes, but its manifest has ", expected));
}

Error wrong_digest(const std::string& path) {
  return corrupt(path, "its SHA-256 is not the one in its manifest: it is damaged");
}

Error read_error(const std::string& path, int sys_errno) {
  Error error = system_error("read " + path, sys_errno);
  if (sys_errno == ESTALE) error.kind = ErrorKind::kNotFound;
  return error;
}

Result<std::string> read_json_text(const std::string& path, const JsonBounds& shape) {
  const Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) return fd.error();
  Result<std::string> text = read_whole<std::string>(fd->get(), path, kMaxReadBytes);
  if (!text && text.error().kind == ErrorKind::kCorrupt)
    return beyond_reader(path, concat("it has more than ", kMaxReadBytes, " bytes"));
  if (!text) return text;
  if (const auto beyond = beyond_bounds(*text, shape)) return beyond_reader(path, *beyond);
  return text;
}

Result<void> CheckpointDirectory::prepare() {
  if (Result<void> made = make_durable_directory(path_); !made)
    return std::move(made).error().within("prepare for checkpoints");
  return remove_leftovers();
}

Result<std::vector<std::string>> CheckpointDirectory::names() const {
  std::error_code error;
  std::vector<std::string> result;
  for (std::filesystem::directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error))
    result.push_back(it->path().filename().string());
  if (error == std::errc::no_such_file_or_directory) return result;
  if (error) return system_error("list checkpoint directory " + path_, error.value());
  std::ranges::sort(result);
  return result;
}

Result<std::vector<std::int64_t>> CheckpointDirectory::steps() const {
  const Result<std::vector<std::string>> all = names();
  if (!all) return all.error();
  return announced_steps(*all);
}

Result<void> CheckpointDirectory::remove(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (Result<void> own = expect_own("remove " + path_of(name)); !own) return own;
    if (file_calls().unlink(path_of(name).c_str()) == 0 || errno == ENOENT) continue;
    is_untidy_ = true;
    return system_error("remove " + path_of(name), errno);
  }
  return {};
}

Result<void> CheckpointDirectory::remove_leftovers() {
  const Result<std::vector<std::string>> all = names();
  if (!all) return all.error();
  std::map<std::int64_t, std::set<std::string>> named_by;
  for (const std::int64_t step : announced_steps(*all))
    if (const Result<AnnouncedCheckpoint> checkpoint = read_manifest(step))
      for (const WrittenFile& file : checkpoint->manifest.files) named_by[step].insert(file.name);
  const std::vector<std::string> unneeded = leftovers(*all, named_by);
  is_untidy_ = !unneeded.empty();
  if (!is_untidy_) return {};
  // The directory must be durable before unneeded files are removed. The run that wrote the
  // manifest without their names may have been killed before it fsynced the directory.
  if (Result<void> flushed = flush_directory(path_); !flushed) return flushed;
  Result<void> removed = remove(unneeded);
  is_untidy_ = !removed;
  return removed;
}

Result<void> CheckpointDirectory::take(std::int64_t generation, const std::string& owner,
                                       const std::string& job) {
  const std::string doing = "take the directory " + path_;
  const ClaimLock lock(path_);
  const Result<FencingToken> last = read_claim(path_);
  if (!last) return Error(last.error()).within(doing);
  if (last->number > 0 && last->owner == owner && last->generation == generation) {
    own_ = *last;
    return {};
  }
  if (is_displaced(*last, job, generation)) return taken_by_another_job(last->job, job);
  const Result<std::vector<std::string>> all = names();
  if (!all) return Error(all.error()).within(doing);
  for (const std::string& name : *all)  // left by a kill within the next lines
    if (name.starts_with(".claim.json.")) (void)remove({name});
  std::map<std::int64_t, std::string> present;
  std::int64_t highest = last->number;
  for (const std::int64_t step : announced_steps(*all)) {
    const Result<AnnouncedCheckpoint> checkpoint = read_manifest(step);
    if (!checkpoint && !is_passed_over(checkpoint.error()))
      return Error(checkpoint.error()).within(doing);  // it may be complete
    if (!checkpoint && is_beyond_reader(checkpoint.error())) present.emplace(step, kUnreadIdentity);
    if (!checkpoint) continue;
    present.emplace(step, checkpoint->identity);
    highest = std::max(highest, checkpoint->manifest.claim);
  }
  FencingToken from = *last;
  from.number = highest;
  own_ = next_claim(from, generation, owner, std::move(present), job);
  if (Result<void> written = write_claim(path_, own_); !written)
    return std::move(written).error().within(doing);
  return {};
}

// The path is last: ddprun looks for kFinalError in lines of which it keeps kMaxTailLineBytes.
Error CheckpointDirectory::taken_by_another_job(const std::string& other,
                                                const std::string& own) const {
  return {.kind = ErrorKind::kStopped,
          .cause = concat(
              "job '", other, "' has taken the checkpoint directory from this one; ", kFinalError,
              ": give each job its own directory, or end one of the two jobs (if '", other,
              "' has ended, submit this job, '", own,
              "', again or remove .claim.json); a run that only restores sets the option "
              "'read_only' (the directory is ",
              path_, ")")};
}

Result<void> CheckpointDirectory::expect_own(const std::string& doing) const {
  if (own_.number == 0) return {};
  const Result<FencingToken> now = read_claim(path_);
  if (!now) return Error(now.error()).within(doing);
  if (now->number == own_.number && now->owner == own_.owner) return {};
  const bool is_other_job = !own_.job.empty() && !now->job.empty() && own_.job != now->job;
  if (is_other_job) return taken_by_another_job(now->job, own_.job);
  return Error{.kind = ErrorKind::kStopped,
               .doing = doing,
               .cause = concat("a later run (generation ", now->generation, ") has taken ", path_,
                               " from this one (generation ", own_.generation,
                               "); a run that only restores sets the option 'read_only'")};
}

Result<ClaimLock> CheckpointDirectory::hold(const std::string& doing) const {
  if (own_.number == 0) return ClaimLock();
  ClaimLock lock(path_);
  if (const Result<void> own = expect_own(doing); !own) return own.error();
  return lock;
}

Result<std::string> CheckpointDirectory::free_data_name(std::int64_t step) const {
  const Result<std::vector<std::string>> before = names();
  if (!before) return before.error();
  return data_name(step, {before->begin(), before->end()});
}

Result<WrittenFile> CheckpointDirectory::write_data(
    const std::string& name, const std::function<void(AtomicFile&)>& write_data) {
  AtomicFile data(path_of(name));
  write_data(data);
  data.put_on_disk();
  const Result<ClaimLock> lock = hold("write " + path_of(name));
  if (!lock) return lock.error();
  Result<WrittenFile> written = data.commit();
  if (!written) return written;
  // The data must be durable before a manifest names it, because the manifest may replace one
  // whose file is there.
  if (const Result<void> flushed = flush_directory(path_); !flushed) {
    discard({name});
    return flushed.error();
  }
  return written;
}

Result<void> CheckpointDirectory::rename_data(const std::string& temporary,
                                              const std::string& name) {
  const Result<ClaimLock> lock = hold("write " + path_of(name));
  if (!lock) return lock.error();
  if (file_calls().rename(temporary.c_str(), path_of(name).c_str()) != 0)
    return system_error("write " + temporary, errno);
  Result<void> flushed = flush_directory(path_);
  if (!flushed) discard({name});
  return flushed;
}

void CheckpointDirectory::tidy() {
  if (const Result<ClaimLock> lock = hold("tidy " + path_)) (void)remove_leftovers();
}

Result<void> CheckpointDirectory::set_aside_unread(std::int64_t step) {
  const auto old = read_manifest(step);
  if (old || !is_beyond_reader(old.error())) return {};
  const std::string path = path_of(manifest_name(step)), aside = path + std::string(kUnreadSuffix);
  // A second name, so that the step has a manifest until the new one replaces it.
  FileCalls& calls = file_calls();
  int linked = calls.link(path.c_str(), aside.c_str());
  if (linked != 0 && errno == EEXIST && calls.unlink(aside.c_str()) == 0)
    linked = calls.link(path.c_str(), aside.c_str());
  if (linked == 0) return {};
  // Not every file system has hard links.
  if (calls.rename(path.c_str(), aside.c_str()) == 0) return {};
  return system_error("rename " + path, errno);
}

Result<AnnouncedCheckpoint> CheckpointDirectory::announce(CheckpointManifest manifest) {
  manifest.claim = own_.number;
  for (WrittenFile& file : manifest.files)
    thin_out_chain(file, kMostChainStates / manifest.files.size());
  const std::string name = manifest_name(manifest.step);
  std::string text = encode_manifest(manifest);
  if (text.size() > kMaxManifestBytes) {
    for (WrittenFile& file : manifest.files) {
      file.chain_bytes = 0;
      file.chain.clear();
    }
    text = encode_manifest(manifest);
  }
  if (text.size() > kMaxManifestBytes) {
    for (const WrittenFile& file : manifest.files) discard({file.name});
    return Error{.kind = ErrorKind::kInvalidArgument,
                 .doing = "announce " + path_of(name),
                 .cause = concat("a manifest of ", manifest.files.size(), " files has ",
                                 text.size(), " bytes, ", kMaxManifestBytes,
                                 " is the most that is written: save fewer shards, or a shorter "
                                 "TrainingState::data")};
  }
  AtomicFile announcement(path_of(name));
  announcement.write(text.data(), text.size());
  announcement.put_on_disk();
  const Result<ClaimLock> lock = hold("announce " + path_of(name));
  if (!lock) {
    for (const WrittenFile& file : manifest.files) discard({file.name});
    return lock.error();
  }
  const bool replaces = ::access(path_of(name).c_str(), F_OK) == 0;
  // Data of the replaced manifest. If a manifest of the step was set aside, remove_leftovers()
  // keeps all data of that step.
  std::set<std::string> replaced;
  if (replaces)
    if (const auto old = read_manifest(manifest.step))
      for (const WrittenFile& file : old->manifest.files) replaced.insert(file.name);
  for (const WrittenFile& file : manifest.files) replaced.erase(file.name);
  const auto announced = [&]() -> Result<void> {
    if (replaces)
      if (const Result<void> done = set_aside_unread(manifest.step); !done) return done;
    const Result<WrittenFile> committed = announcement.commit();
    if (!committed) return committed.error();
    return flush_directory(path_);
  }();
  if (announced) (void)remove({replaced.begin(), replaced.end()});
  // A failure may have left files. If the step had a checkpoint before, its data file is now
  // unneeded. The next prepare() or announce() tries again to remove files that cannot be
  // removed now.
  if (!announced || replaces || is_untidy_) (void)remove_leftovers();
  if (!announced) return announced.error();
  return AnnouncedCheckpoint{manifest, sha256_hex(text)};
}

Result<AnnouncedCheckpoint> CheckpointDirectory::announce(
    CheckpointManifest manifest, const std::function<void(AtomicFile&)>& write) {
  const Result<std::string> name = free_data_name(manifest.step);
  if (!name) return name.error();
  const Result<WrittenFile> written = write_data(*name, write);
  if (!written) {
    tidy();
    return written.error();
  }
  manifest.files = {*written};
  return announce(std::move(manifest));
}

Result<AnnouncedCheckpoint> CheckpointDirectory::read_manifest(std::int64_t step) const {
  const std::string path = path_of(manifest_name(step));
  const Result<std::string> text = read_json_text(path, kMaxManifest);
  if (!text) return text.error();
  Result<CheckpointManifest> manifest = decode_manifest(*text);
  if (!manifest) return std::move(manifest).error().within("read " + path);
  if (manifest->step != step)
    return corrupt(path, concat("it is the manifest of step ", manifest->step));
  if (!names_data_files(*manifest))
    return corrupt(
        path, concat("it does not name one data file of step ", step, ", or all shards of one"));
  AnnouncedCheckpoint result{*std::move(manifest), sha256_hex(*text)};
  const Result<FencingToken> claim = read_claim(path_);
  if (!claim) return claim.error();
  if (!counts(*claim, result.manifest, result.identity))
    return Error{.kind = ErrorKind::kStopped,
                 .doing = "read " + path,
                 .cause = concat("a run of generation ", result.manifest.generation,
                                 " announced it after a later run (generation ", claim->generation,
                                 ") had taken the directory: it does not count (if it was put "
                                 "there by hand, remove ",
                                 path_of(".claim.json"), ")")};
  return result;
}

Result<void> CheckpointDirectory::check_sizes(const CheckpointManifest& manifest) const {
  for (const WrittenFile& file : manifest.files) {
    const std::string path = path_of(file.name);
    const Result<UniqueFd> fd = open_regular_file(path);
    if (!fd) return fd.error();
    const Result<std::size_t> size = size_within(fd->get(), path, file.bytes);
    if (!size) return size.error();
    if (*size != file.bytes) return wrong_size(path, *size, file.bytes);
  }
  return {};
}

Result<void> CheckpointDirectory::verify(const CheckpointManifest& manifest,
                                         const std::function<void()>& on_progress) const {
  if (const Result<void> checked = check_sizes(manifest); !checked) return checked;
  // Each reader has threads of its own, so that all cores digest.
  const int count = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  std::vector<std::unique_ptr<PieceReader>> readers;
  for (const std::vector<FileRange>& ranges : reading_order(manifest.files, count))
    if (!ranges.empty())
      readers.push_back(
          std::make_unique<PieceReader>(*this, manifest, in_pieces(ranges, kPieceBytes)));
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (const auto& reader : readers)
      if (reader->next()) {
        is_done = false;
        on_progress();
      }
  }
  for (const auto& reader : readers)
    if (reader->failure()) return *reader->failure();
  return {};
}

Result<void> CheckpointDirectory::forget(std::int64_t step) {
  const Result<AnnouncedCheckpoint> checkpoint = read_manifest(step);
  if (const Result<void> removed = remove({manifest_name(step)}); !removed) return removed;
  if (!checkpoint) return remove_leftovers();
  std::vector<std::string> files;
  for (const WrittenFile& file : checkpoint->manifest.files) files.push_back(file.name);
  return remove(files);
}

}  // namespace ddprun
