#include "ddprun/summary_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/file_calls.h"
#include "base/fork_mark.h"
#include "base/parse_number.h"
#include "base/unique_fd.h"
#include "base/utf8.h"
#include "base/worker_env.h"
#include "base/write_all.h"
#include "rendezvous/net/tcp_address.h"
#include "worker_lib/context/save_request.h"
#include "worker_lib/tensorboard/core/events.h"
#include "worker_lib/tensorboard/core/tf_record.h"
#include "worker_lib/util/public_error.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNameBegin = "events.out.tfevents.";
constexpr Duration kEndPatience = std::chrono::seconds(10);
constexpr Duration kLookPeriod = std::chrono::seconds(1);  // for requests to save
constexpr std::size_t kMaxValueBytes = std::size_t{64} << 20;
constexpr std::size_t kEventBytes = 150;                  // of a queued event and its record, about
constexpr std::size_t kMostHistogramBytes = 25'000;       // encoded, with the empty buckets
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;  // of the buffer, after a write

// An event that waits. Its summary is made on the writer's thread.
struct QueuedEvent {
  EventTime at;
  std::size_t bytes = 0;
  std::function<ProtobufMessage()> summary;
};

void warn(const std::string& text) {
  write_all(STDERR_FILENO, "ddprun: warning: SummaryWriter: " + text + "\n");
}

[[noreturn]] void refuse_value(std::string_view what) {
  throw DistError(DistError::Kind::kInvalidArgument, concat("SummaryWriter: ", what));
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Checks a tag, a name or a text. TensorBoard cannot read a file with an invalid one.
void check_text(std::string_view what, std::string_view text) {
  if (!is_utf8(text)) refuse_value(concat(what, " is not UTF-8"));
}

void check_tag(std::string_view tag) {
  if (tag.empty()) refuse_value("a tag is empty");
  check_text("a tag", tag);
}

bool is_of_rank_0(const SummaryOptions& options) {
  if (options.rank) return *options.rank == 0;
  const std::string text = environment_text("RANK");
  if (text.empty()) return true;
  const std::optional<int> rank = parse_number<int>(text);
  if (!rank) {
    refuse_value(
        concat("environment variable RANK: invalid value '", text, "' (expected a number)"));
  }
  return *rank == 0;
}

// Returns the seconds since 1970 for the name of a new file. Readers take the files of a directory
// in the order of their names, so it is above those of all earlier files.
std::int64_t next_second(const fs::path& directory) {
  std::int64_t second = static_cast<std::int64_t>(wall_seconds());
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename();
    if (!name.starts_with(kNameBegin)) continue;
    name.erase(0, kNameBegin.size());
    const auto earlier =
        parse_number<std::int64_t>(std::string_view(name).substr(0, name.find('.')));
    // A name beyond ten digits would not sort by number.
    if (earlier && *earlier < 9'999'999'999) second = std::max(second, *earlier + 1);
  }
  if (error) {
    throw to_dist_error(system_error("SummaryWriter: read " + directory.string(), error.value()));
  }
  return second;
}

std::vector<std::uint8_t> bytes_of(std::span<const std::uint8_t> pixels) {
  return {pixels.begin(), pixels.end()};
}

std::vector<std::uint8_t> bytes_of(std::span<const float> pixels) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(pixels.size());
  for (const float pixel : pixels) {
    const float scaled = pixel * 255;
    bytes.push_back(scaled > 0 ? static_cast<std::uint8_t>(std::min(scaled, 255.0F)) : 0);
  }
  return bytes;
}

std::vector<std::uint8_t> channels_last(const std::vector<std::uint8_t>& pixels,
                                        const ImageShape& shape) {
  if (shape.layout == ImageShape::Layout::kHWC || shape.channels == 1) return pixels;
  std::vector<std::uint8_t> result(pixels.size());
  const auto channels = static_cast<std::size_t>(shape.channels);
  const std::size_t plane = pixels.size() / channels;
  for (std::size_t i = 0; i < plane; ++i) {
    for (std::size_t c = 0; c < channels; ++c) result[i * channels + c] = pixels[c * plane + i];
  }
  return result;
}

void check_image(const ImageShape& shape, std::size_t values) {
  const std::string size =
      concat(shape.channels, " channels of ", shape.height, " x ", shape.width);
  if (shape.height <= 0 || shape.width <= 0 || shape.channels < 1 || shape.channels > 4) {
    refuse_value(
        concat("an image has ", size, " (expected 1 to 4 channels, and at least 1 pixel)"));
  }
  const auto rows = static_cast<std::size_t>(shape.height);
  const std::size_t row = static_cast<std::size_t>(shape.width) *  // neither product overflows
                          static_cast<std::size_t>(shape.channels);
  // A row of a PNG has a byte for its filter.
  if (row + 1 > kMaxValueBytes / rows) refuse_value(concat("an image has ", size, ": too large"));
  if (values != rows * row) {
    refuse_value(concat("an image of ", size, " needs ", rows * row, " values, not ", values));
  }
}

}  // namespace

struct SummaryWriter::Impl {
  Impl(const SummaryOptions& options, std::string file_path, int opened)
      : path(std::move(file_path)),
        flush_every(std::min<Duration>(options.flush_every, kLongestTimeout)),
        max_queue_bytes(options.max_queue_bytes),
        file(opened) {}

  const std::string path;
  const Duration flush_every;
  const std::size_t max_queue_bytes;
  const UniqueFd file;
  const ForkMark mark;

  std::mutex mutex;
  std::condition_variable changed;
  // Below, under the mutex:
  std::deque<QueuedEvent> queue;
  std::size_t queued_bytes = 0;  // of events that are not written
  std::int64_t added = 0;        // events
  std::int64_t written = 0;
  std::int64_t dropped = 0;
  std::int64_t attempts = 0;     // to write, that have ended
  std::optional<Error> failure;  // of the last attempt
  bool must_write_now = false;
  bool is_closing = false;
  bool has_ended = false;
  // Of the writer's thread: records to write.
  std::string records;

  void add_record(const ProtobufMessage& event) { add_tf_record(records, event.bytes()); }

  // Moves the events to `records`. An event for which there is no memory is lost.
  void encode(std::deque<QueuedEvent>& events) {
    std::int64_t lost = 0;
    for (; !events.empty(); events.pop_front()) {
      const std::size_t begin = records.size();
      try {
        add_record(summary_event(events.front().at, events.front().summary()));
      } catch (const std::bad_alloc&) {
        records.resize(begin);
        ++lost;
      }
    }
    if (lost > 0) warn(concat("no memory to encode events for ", path, "; events lost: ", lost));
  }

  // Writes `records`. After a failure the rest stays there.
  Result<void> write_records() {
    const auto write = [](int fd, const void* data, std::size_t bytes) {
      return file_calls().write(fd, data, bytes);
    };
    const std::size_t done = write_until_error(file.get(), records, write);
    const int reason = errno;
    const bool is_whole = done == records.size();
    records.erase(0, done);
    if (is_whole && records.capacity() > kKeptBytes) std::string().swap(records);
    if (!is_whole) return system_error("write " + path, reason);
    return {};
  }

  // Queues an event, or drops it.
  void add(std::int64_t step, std::size_t bytes, std::function<ProtobufMessage()> summary) {
    if (!mark.is_ours()) return;
    const EventTime at{.wall_s = wall_seconds(), .step = step};
    bytes += kEventBytes;
    std::unique_lock<std::mutex> lock(mutex);
    if (queued_bytes > 0 && bytes > max_queue_bytes - std::min(queued_bytes, max_queue_bytes)) {
      if (dropped++ > 0) return;
      const std::string warning = concat(
          "the queue is full, and events are dropped: ", queued_bytes, " bytes wait for ", path);
      lock.unlock();
      warn(warning);
      return;
    }
    queued_bytes += bytes;
    ++added;
    queue.push_back({.at = at, .bytes = bytes, .summary = std::move(summary)});
    if (queue.size() == 1 || is_half_full()) changed.notify_all();
  }

  bool is_half_full() const { return queued_bytes > max_queue_bytes / 2; }

  // Waits until it is time to write.
  void wait_for_events(std::unique_lock<std::mutex>& lock) {
    const auto is_urgent = [this] {
      return is_closing || must_write_now || (!failure && (is_half_full() || save_was_requested()));
    };
    changed.wait(
        lock, [&] { return is_closing || must_write_now || !queue.empty() || !records.empty(); });
    const TimePoint deadline = BootClock::now() + flush_every;
    while (!is_urgent() && BootClock::now() < deadline) {
      changed.wait_for(lock, std::min(kLookPeriod, deadline - BootClock::now()));
    }
  }

  // The writer's thread.
  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    bool is_last = false;
    while (!is_last) {
      wait_for_events(lock);
      must_write_now = false;
      is_last = is_closing;
      std::deque<QueuedEvent> events;
      events.swap(queue);
      const std::int64_t up_to = added;
      const std::size_t bytes = queued_bytes;
      lock.unlock();
      encode(events);
      const Result<void> done = write_records();
      lock.lock();
      if (finish_attempt(done, up_to, bytes)) {
        lock.unlock();
        warn(concat(done.error().message(), "; it tries again every ", flush_every));
        lock.lock();
      }
    }
    has_ended = true;
    changed.notify_all();
  }

  // Returns whether the attempt begins a row of failures, which is to be a warning.
  bool finish_attempt(const Result<void>& done, std::int64_t up_to, std::size_t bytes) {
    const bool is_news = !done && !failure && !is_closing;
    ++attempts;
    if (done) {
      written = up_to;
      queued_bytes -= bytes;
      failure.reset();
    } else {
      failure = done.error();
    }
    changed.notify_all();
    return is_news;
  }

  void close() {
    if (!mark.is_ours()) return;
    std::unique_lock<std::mutex> lock(mutex);
    is_closing = true;
    changed.notify_all();
    changed.wait_for(lock, kEndPatience, [this] { return has_ended; });
    if (written == added) return;
    const std::string warning =
        concat(failure ? failure->message() : "write " + path + ": the disk does not answer",
               "; events lost: ", added - written);
    lock.unlock();
    warn(warning);
  }
};

SummaryWriter::SummaryWriter(const SummaryOptions& options) {
  if (options.directory.empty()) refuse_value("the directory is empty");
  if (options.flush_every <= Duration::zero()) refuse_value("flush_every must be above zero");
  if (!is_of_rank_0(options)) return;
  std::error_code error;
  fs::create_directories(options.directory, error);
  if (error) {
    throw to_dist_error(system_error("SummaryWriter: make " + options.directory, error.value()));
  }
  std::string path;
  int file = -1;
  std::int64_t second = next_second(options.directory);
  do {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "%010lld", static_cast<long long>(second++));
    path =
        concat(options.directory, "/", kNameBegin, digits.data(), ".", host_name(), ".", getpid());
    file = uninterrupted([&] {
      return file_calls().open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC,
                               0644);
    });
  } while (file < 0 && errno == EEXIST);  // another writer of this process has made it just now
  if (file < 0) throw to_dist_error(system_error("SummaryWriter: make " + path, errno));
  impl_ = std::make_shared<Impl>(options, path, file);
  const double now = wall_seconds();
  impl_->add_record(file_version_event(now));
  impl_->add_record(session_start_event({.wall_s = now, .step = options.first_step}));
  Result<void> started = impl_->write_records();
  if (started) started = start_detached_thread("ddprun-summary", [impl = impl_] { impl->run(); });
  if (!started) throw to_dist_error(std::move(started).error().within("SummaryWriter"));
}

SummaryWriter::~SummaryWriter() {
  if (impl_) impl_->close();
}

SummaryWriter::SummaryWriter(SummaryWriter&&) noexcept = default;
SummaryWriter& SummaryWriter::operator=(SummaryWriter&& other) noexcept {
  if (this != &other) {
    if (impl_) impl_->close();
    impl_ = std::move(other.impl_);
  }
  return *this;
}

void SummaryWriter::add_scalar(std::string_view tag, double value, std::int64_t step) {
  if (!impl_) return;
  check_tag(tag);
  impl_->add(step, tag.size(), [tag = std::string(tag), value] {
    return scalar_summary(tag, static_cast<float>(value));
  });
}

void SummaryWriter::add_histogram(std::string_view tag, std::span<const float> values,
                                  std::int64_t step) {
  if (!impl_) return;
  check_tag(tag);
  impl_->add(step, tag.size() + std::max(values.size_bytes(), kMostHistogramBytes),
             [tag = std::string(tag), values = std::vector<float>(values.begin(), values.end())] {
               return histogram_summary(tag, count_in_buckets(values));
             });
}

void SummaryWriter::add_histogram(std::string_view tag, std::span<const double> values,
                                  std::int64_t step) {
  if (!impl_) return;
  check_tag(tag);
  impl_->add(step, tag.size() + std::max(values.size_bytes(), kMostHistogramBytes),
             [tag = std::string(tag), values = std::vector<double>(values.begin(), values.end())] {
               return histogram_summary(tag, count_in_buckets(values));
             });
}

void SummaryWriter::add_text(std::string_view tag, std::string_view text, std::int64_t step) {
  if (!impl_) return;
  check_tag(tag);
  check_text("the text of '" + std::string(tag) + "'", text);
  if (text.size() > kMaxValueBytes) refuse_value(concat("a text of ", text.size(), " bytes"));
  impl_->add(step, tag.size() + text.size(), [tag = std::string(tag), text = std::string(text)] {
    return text_summary(tag, text);
  });
}

void SummaryWriter::add_image(std::string_view tag, std::span<const std::uint8_t> pixels,
                              const ImageShape& shape, std::int64_t step) {
  if (!impl_) return;
  check_tag(tag);
  check_image(shape, pixels.size());
  impl_->add(step, tag.size() + pixels.size(),
             [tag = std::string(tag), pixels = bytes_of(pixels), shape] {
               return image_summary(tag, channels_last(pixels, shape), shape.height, shape.width,
                                    shape.channels);
             });
}

void SummaryWriter::add_image(std::string_view tag, std::span<const float> pixels,
                              const ImageShape& shape, std::int64_t step) {
  if (!impl_) return;
  add_image(tag, bytes_of(pixels), shape, step);
}

void SummaryWriter::add_hparams(const HParams& parameters,
                                const std::map<std::string, double>& metrics, std::int64_t step) {
  if (!impl_) return;
  std::size_t bytes = 0;
  for (const auto& [name, value] : parameters) {
    check_text("the name of a hyperparameter", name);
    bytes += name.size();
    if (const auto* text = std::get_if<std::string>(&value)) {
      check_text("the hyperparameter '" + name + "'", *text);
      bytes += text->size();
    }
  }
  for (const auto& [name, value] : metrics) {
    check_tag(name);
    bytes += name.size();
  }
  impl_->add(step, bytes, [parameters, metrics] { return hparams_summary(parameters, metrics); });
}

void SummaryWriter::flush(std::chrono::nanoseconds timeout) {
  if (!impl_ || !impl_->mark.is_ours()) return;
  Impl& impl = *impl_;
  std::unique_lock<std::mutex> lock(impl.mutex);
  const std::int64_t up_to = impl.added;
  const std::int64_t earlier_attempts = impl.attempts;
  impl.must_write_now = true;
  impl.changed.notify_all();
  const auto has_failed = [&] { return impl.failure && impl.attempts > earlier_attempts; };
  const bool in_time = impl.changed.wait_for(lock, std::min<Duration>(timeout, kLongestTimeout),
                                             [&] { return impl.written >= up_to || has_failed(); });
  if (impl.written >= up_to) return;
  if (in_time) throw to_dist_error(*impl.failure);
  throw to_dist_error(
      timeout_error("write " + impl.path, "the disk does not answer", timeout, timeout));
}

std::int64_t SummaryWriter::dropped() const {
  if (!impl_ || !impl_->mark.is_ours()) return 0;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->dropped;
}

}  // namespace ddprun
