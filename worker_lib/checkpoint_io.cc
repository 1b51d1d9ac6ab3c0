#include "worker_lib/checkpoint_io.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/durable_directory.h"
#include "base/random_id.h"
#include "base/read_whole.h"
#include "base/write_all.h"

namespace ddprun {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::size_t kLargeBytes = 256 << 10;  // worth waking a thread, and the disk, up
constexpr std::size_t kWritebackBytes = 8 << 20;
constexpr std::size_t kMaxManifestBytes = 1 << 20;
constexpr const char* kSelfDigest = "manifest_sha256";

Error corrupt(const std::string& path, std::string cause) {
  return {.kind = ErrorKind::kCorrupt, .doing = "read " + path, .cause = std::move(cause)};
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

template <class Bytes>
Result<Bytes> read_file(const std::string& path, std::uint64_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return system_error("open " + path, errno);
  return read_whole<Bytes>(fd.get(), path, limit);
}

// The document with its own digest in it. nlohmann::json sorts keys: one text for one manifest.
std::string encode(const CheckpointManifest& manifest) {
  nlohmann::json document{{"format", manifest.format},         {"step", manifest.step},
                          {"epoch", manifest.epoch},           {"generation", manifest.generation},
                          {"world_size", manifest.world_size}, {"files", nlohmann::json::array()}};
  if (manifest.metric) document["metric"] = *manifest.metric;
  for (const ManifestFile& file : manifest.files)
    document["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  document[kSelfDigest] = sha256_hex(document.dump());
  return document.dump(1) + "\n";
}

// Null unless `text` is exactly what encode() makes of some document, unknown keys included.
nlohmann::json whole_document(const std::string& text) {
  nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || document.dump(1) + "\n" != text) return nullptr;
  const auto digest = document.find(kSelfDigest);
  if (digest == document.end()) return nullptr;
  const nlohmann::json claimed = *digest;
  document.erase(digest);
  if (claimed != sha256_hex(document.dump())) return nullptr;
  return document;
}

Result<CheckpointManifest> decode(const std::string& path, const std::string& text) try {
  const nlohmann::json document = whole_document(text);
  if (document.is_null())
    return corrupt(path, "the manifest does not match its own SHA-256: it is damaged or cut off");
  CheckpointManifest manifest;
  manifest.format = document.at("format");
  if (manifest.format != kCheckpointFormat)
    return Error{.kind = ErrorKind::kUnsupported,
                 .doing = "read " + path,
                 .cause = "it has format " + std::to_string(manifest.format) +
                          ", this program reads format " + std::to_string(kCheckpointFormat)};
  manifest.step = document.at("step");
  manifest.epoch = document.at("epoch");
  manifest.generation = document.at("generation");
  manifest.world_size = document.at("world_size");
  if (document.contains("metric")) manifest.metric = document.at("metric").get<double>();
  for (const nlohmann::json& file : document.at("files"))
    manifest.files.push_back({file.at("name"), file.at("bytes"), file.at("sha256")});
  return manifest;
} catch (const nlohmann::json::exception& wrong) {
  return corrupt(path, wrong.what());
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)),
      temporary_(temporary_name(path_, random_hex(6))),
      fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (!fd_.valid()) fail(errno);
  buffer_.reserve(kBufferBytes);
  flushed_.reserve(kBufferBytes);
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(int sys_errno) {
  if (!failure_) failure_ = system_error("write " + temporary_, sys_errno);
}

void AtomicFile::write(const void* data, std::size_t bytes, bool stays) {
  if (failure_) return;
  bytes_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) flush();
  if (bytes < kBufferBytes) {
    buffer_.append(static_cast<const char*>(data), bytes);
    return;
  }
  put_out(static_cast<const char*>(data), bytes);
  if (!stays) beside_.join();
}

void AtomicFile::flush() {
  beside_.join();
  std::swap(buffer_, flushed_);
  buffer_.clear();
  put_out(flushed_.data(), flushed_.size());
}

void AtomicFile::put_out(const char* data, std::size_t bytes) {
  beside_.join();
  if (failure_ || bytes == 0) return;
  const bool is_large = bytes >= kLargeBytes;
  if (is_large)
    beside_.begin(data, bytes);
  else
    digest_.add(data, bytes);
  for (std::size_t at = 0; at < bytes && !failure_; at += kWritebackBytes) {
    if (!write_all(fd_.get(), {data + at, std::min(kWritebackBytes, bytes - at)})) fail(errno);
    // The disk begins now, rather than when fsync() waits for it. Where it cannot, fsync() does it all.
    if (is_large) ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }
}

Result<ManifestFile> AtomicFile::commit() {
  flush();
  beside_.join();
  if (!failure_ && ::fsync(fd_.get()) != 0) fail(errno);
  if (!failure_ && ::close(fd_.release()) != 0) fail(errno);
  if (!failure_ && ::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  if (failure_) return *failure_;
  committed_ = true;
  return ManifestFile{.name = name_of(path_), .bytes = bytes_, .sha256 = digest_.hex()};
}

CheckpointDirectory::CheckpointDirectory(std::string path) : path_(std::move(path)) {}

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
  for (const std::string& name : names)
    if (::unlink(path_of(name).c_str()) != 0 && errno != ENOENT)
      return system_error("remove " + path_of(name), errno);
  return {};
}

Result<void> CheckpointDirectory::remove_leftovers() {
  const Result<std::vector<std::string>> all = names();
  if (!all) return all.error();
  std::map<std::int64_t, std::set<std::string>> named_by;
  for (const std::int64_t step : announced_steps(*all))
    if (const Result<AnnouncedCheckpoint> checkpoint = read_manifest(step))
      for (const ManifestFile& file : checkpoint->manifest.files) named_by[step].insert(file.name);
  return remove(leftovers(*all, named_by));
}

Result<AnnouncedCheckpoint> CheckpointDirectory::announce(
    CheckpointManifest manifest, const std::function<void(AtomicFile&)>& write_data) {
  const Result<std::vector<std::string>> before = names();
  if (!before) return before.error();
  const std::set<std::string> taken(before->begin(), before->end());
  AtomicFile data(path_of(data_name(manifest.step, taken)));
  write_data(data);
  const Result<ManifestFile> written = data.commit();
  if (!written) return written.error();
  // Before a manifest names it: the manifest may replace one whose file is there.
  if (const Result<void> flushed = flush_directory(path_); !flushed) return flushed.error();
  manifest.files = {*written};
  const std::string text = encode(manifest);
  AtomicFile announcement(path_of(manifest_name(manifest.step)));
  announcement.write(text.data(), text.size());
  if (const Result<ManifestFile> announced = announcement.commit(); !announced) {
    (void)remove({written->name});  // prepare() would remove it as well
    return announced.error();
  }
  if (const Result<void> flushed = flush_directory(path_); !flushed) return flushed.error();
  // Had the step a checkpoint before, then its data file is nobody's now. If it cannot be removed,
  // the next prepare() or announce() tries again.
  if (taken.contains(manifest_name(manifest.step))) (void)remove_leftovers();
  return AnnouncedCheckpoint{manifest, sha256_hex(text)};
}

Result<AnnouncedCheckpoint> CheckpointDirectory::read_manifest(std::int64_t step) const {
  const std::string path = path_of(manifest_name(step));
  const Result<std::string> text = read_file<std::string>(path, kMaxManifestBytes);
  if (!text) return text.error();
  Result<CheckpointManifest> manifest = decode(path, *text);
  if (!manifest) return manifest.error();
  if (manifest->step != step)
    return corrupt(path, "it is the manifest of step " + std::to_string(manifest->step));
  using Kind = CheckpointFileName::Kind;
  if (manifest->files.size() != 1 ||
      parse_file_name(manifest->files.front().name) != CheckpointFileName{Kind::kData, step})
    return corrupt(path, "it does not name one data file of step " + std::to_string(step));
  return AnnouncedCheckpoint{*std::move(manifest), sha256_hex(*text)};
}

Result<std::vector<char>> CheckpointDirectory::read_data(const CheckpointManifest& manifest) const {
  const ManifestFile& file = manifest.files.front();
  const std::string path = path_of(file.name);
  Result<std::vector<char>> bytes = read_file<std::vector<char>>(path, file.bytes);
  if (!bytes) return bytes;
  if (bytes->size() != file.bytes)
    return corrupt(path, "it has " + std::to_string(bytes->size()) + " bytes, its manifest says " +
                             std::to_string(file.bytes));
  if (sha256_hex({bytes->data(), bytes->size()}) != file.sha256)
    return corrupt(path, "its SHA-256 is not the one in its manifest: it is damaged");
  return bytes;
}

Result<void> CheckpointDirectory::forget(std::int64_t step) {
  const Result<AnnouncedCheckpoint> checkpoint = read_manifest(step);
  if (const Result<void> removed = remove({manifest_name(step)}); !removed) return removed;
  if (!checkpoint) return remove_leftovers();
  return remove({checkpoint->manifest.files.front().name});
}

}  // namespace ddprun
