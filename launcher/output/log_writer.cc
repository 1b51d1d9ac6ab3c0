#include "launcher/output/log_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/write_all.h"
#include "launcher/output/core/gap.h"
#include "launcher/output/core/log_rotation.h"
#include "launcher/output/writer_state.h"

namespace ddprun {
namespace {

UniqueFd create(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
}

}  // namespace

// The first members belong to the State and its lock. The others belong to the thread.
class LogFile {
 public:
  LogFile(std::string path, std::uint64_t max_bytes)
      : path_(std::move(path)), rotation_(max_bytes), gap_("log file " + path_) {}

  // --- under the lock ---
  std::string queued;
  bool is_new = true;  // it has to be created
  bool ended = false;
  bool was_full = false;
  bool gave_up = false;                     // nothing waits for the disk until the queue is empty
  std::uint64_t overflow = 0;               // bytes dropped while gave_up
  std::string failure;                      // why what comes for it is lost; empty: it is written
  std::optional<TimePoint> retry_due = {};  // as of OutputGap

  // --- used by the thread ---

  // Writes bytes, and creates the file at the first call. overflowed: how many bytes were
  // dropped after `bytes`. is_end: nothing follows.
  void put(std::string_view bytes, std::uint64_t overflowed, bool is_end);
  // Returns the warnings for the user since the last call.
  std::vector<std::string> take_news() { return gap_.take_news(); }
  // Returns how many bytes are missing for good since the last call.
  std::uint64_t take_lost() { return std::exchange(lost_, 0); }
  const OutputGap& gap() const { return gap_; }
  const std::string& path() const { return path_; }

 private:
  void make();
  void write(std::string_view bytes);
  void rotate();
  void begin_missing(const std::string& why) { gap_.open(why, BootClock::now()); }
  bool try_again();
  // Returns how many bytes were written. If not all, errno has the reason.
  std::size_t write_now(std::string_view bytes);

  std::string path_;
  bool was_made_ = false;
  UniqueFd fd_;
  LogRotation rotation_;
  std::string held_;  // an unfinished line
  OutputGap gap_;
  std::uint64_t lost_ = 0;
  bool mid_line_ = false;  // the last byte written did not end a line
};

// Creates the file, and its directory if needed. If that fails, errno has the reason.
void LogFile::make() {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  fd_ = create(path_);
  if (!fd_.valid() && error) errno = error.value();
}

void LogFile::put(std::string_view bytes, std::uint64_t overflowed, bool is_end) {
  if (!std::exchange(was_made_, true)) {
    make();
    if (!fd_.valid()) begin_missing(errno_text(errno));
  }
  if (const auto due = gap_.retry_due(); due && BootClock::now() >= *due) try_again();
  const std::string begun = held_.empty() ? "" : held_.append(bytes);
  std::string_view left = begun.empty() ? bytes : begun;
  while (true) {
    const LogRotation::Step step = rotation_.next(left, is_end);
    if (step.rotate) {
      rotate();
      continue;
    }
    if (step.write == 0) break;
    write(left.substr(0, step.write));
    left.remove_prefix(step.write);
  }
  held_ = left;
  if (overflowed > 0) {
    begin_missing("the disk did not accept them in time");
    gap_.drop_unseen(overflowed);
  }
  if (!is_end) return;
  if (gap_.missing() > 0 && !try_again()) {
    lost_ += gap_.missing();
    gap_.report_loss();
  }
  fd_.reset();
}

void LogFile::write(std::string_view bytes) {
  if (gap_.is_open() || gap_.is_mid_line()) {
    bytes = gap_.writable(bytes, BootClock::now());
    if (bytes.empty()) return;
    if (!try_again()) return gap_.drop(bytes);
  }
  const std::size_t written = write_now(bytes);
  if (written == bytes.size()) return;
  begin_missing(errno_text(errno));
  gap_.drop(bytes.substr(written));
}

std::size_t LogFile::write_now(std::string_view bytes) {
  const std::size_t done = write_until_error(fd_.get(), bytes);
  rotation_.wrote(bytes.substr(0, done));
  if (done > 0) mid_line_ = bytes[done - 1] != '\n';
  return done;
}

// Renames the current file to <name>.1 and begins a new one. If the rename fails, the current
// file is emptied and used again. If the new file cannot be created, the next write() retries.
void LogFile::rotate() {
  rotation_.rotated();
  mid_line_ = false;
  if (std::rename(path_.c_str(), (path_ + ".1").c_str()) != 0 && errno != ENOENT) {
    if (ftruncate(fd_.get(), 0) == 0) lseek(fd_.get(), 0, SEEK_SET);
    return;
  }
  fd_ = create(path_);
  if (!fd_.valid()) begin_missing(errno_text(errno));
}

// Retries after a failure: creates the file if needed, and writes a line that says what is
// missing there. Returns false if that is not possible yet.
bool LogFile::try_again() {
  if (!fd_.valid()) make();
  const std::string line =
      (mid_line_ ? "\n[ddprun: " : "[ddprun: ") + gap_.text() + " here: " + gap_.why() + "]\n";
  if (!fd_.valid() || (gap_.missing() > 0 && write_now(line) < line.size())) {
    begin_missing(errno_text(errno));
    return false;
  }
  lost_ += gap_.missing();
  gap_.close();
  return true;
}

struct LogWriter::State : WriterState {
  LogWriterOptions options;
  std::vector<std::shared_ptr<LogFile>> files;
  std::string trouble;      // that was reported last
  bool is_failing = false;  // a file is
  std::string first;        // why the first file failed, and which it is
  std::uint64_t lost = 0;   // bytes that are missing in files

  std::shared_ptr<LogFile> next() const {
    const auto found = std::ranges::find_if(files, [](const auto& file) {
      return file->is_new || file->ended || !file->queued.empty() || file->overflow > 0;
    });
    return found == files.end() ? nullptr : *found;
  }
  // Returns the file for which a retry is due first; null: for none.
  std::shared_ptr<LogFile> first_due() const {
    std::shared_ptr<LogFile> first;
    for (const auto& file : files) {
      if (file->retry_due && (!first || *file->retry_due < *first->retry_due)) first = file;
    }
    return first;
  }
  // Reports what is wrong after a change of this file. why: of its last failure.
  void report(const LogFile& file, const std::string& why) {
    const auto failing =
        std::ranges::find_if(files, [](const auto& one) { return !one->failure.empty(); });
    const bool was_failing = std::exchange(is_failing, failing != files.end());
    if (is_failing && !was_failing) {
      first = concat((*failing)->failure, " (first ", (*failing)->path(), ")");
    } else if (first.empty() && lost > 0) {
      first = concat(why, " (first ", file.path(), ")");
    }
    if (!is_failing && lost == 0) first.clear();
    say(is_failing ? concat("log files are not written, so output is lost: ", first)
        : lost > 0 ? concat(lost, " bytes are missing in log files: ", first)
                   : "");
  }
  void say(std::string now) {
    if (now == trouble) return;
    trouble = std::move(now);
    if (options.on_trouble) options.on_trouble(trouble);
  }
  void begin_anew() {
    is_failing = false;
    first.clear();
    lost = 0;
    say("");
  }
};

LogWriter::LogWriter(LogWriterOptions options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
}

LogWriter::~LogWriter() { end_writer(*state_, thread_); }

Result<std::shared_ptr<LogFile>> LogWriter::open(const std::string& path) {
  auto file = std::make_shared<LogFile>(path, state_->options.max_bytes);
  if (!thread_.joinable()) {
    const Result<void> started =
        start_thread(thread_, "ddprun-logs", [state = state_] { run(*state); });
    if (!started) return started.error();
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (std::ranges::all_of(state_->files, &LogFile::ended)) state_->begin_anew();
    state_->files.push_back(file);
  }
  state_->wake.notify_one();
  return file;
}

void LogWriter::write(LogFile& file, std::string_view bytes) {
  {
    const std::lock_guard lock(state_->mutex);
    if (file.gave_up && file.queued.size() >= kHighWater) {
      file.overflow += bytes.size();
      return;
    }
    file.queued.append(bytes);
    file.was_full |= file.queued.size() >= kHighWater;
  }
  state_->wake.notify_one();
}

void LogWriter::end(LogFile& file) {
  {
    const std::lock_guard lock(state_->mutex);
    file.ended = true;
  }
  state_->wake.notify_one();
}

bool LogWriter::is_full(const LogFile& file) const {
  const std::lock_guard lock(state_->mutex);
  return file.was_full && !file.gave_up;
}

void LogWriter::stop_waiting(LogFile& file) {
  const std::string why = "the disk has accepted nothing for " + to_text(kPatience);
  {
    const std::lock_guard lock(state_->mutex);
    if (!file.was_full || std::exchange(file.gave_up, true)) return;
    file.failure = why;
    state_->report(file, why);
  }
  state_->options.warn("log file " + file.path() + ": " + why +
                       "; output that it does not accept is dropped");
}

void LogWriter::when_flushed(std::function<void()> then) {
  const std::lock_guard lock(state_->mutex);
  state_->on_flushed = std::move(then);
  if (!state_->writing && !state_->next()) state_->say_flushed();
}

void LogWriter::run(State& state) {
  std::string bytes;
  std::unique_lock lock(state.mutex);
  while (true) {
    std::shared_ptr<LogFile> file;
    const auto wakes = [&] { return state.over || (file = state.next()); };
    const std::shared_ptr<LogFile> due = state.first_due();
    if (!due) {
      state.wake.wait(lock, wakes);
    } else if (!state.wake.wait_until(lock, *due->retry_due, wakes)) {
      file = due;
    }
    if (state.over) return;
    bytes.clear();
    bytes.swap(file->queued);
    file->is_new = false;
    const std::uint64_t overflow = std::exchange(file->overflow, 0);
    const bool ended = file->ended;
    // Moves this file to the end, so that the other files have their turn first.
    std::erase(state.files, file);
    if (!ended) state.files.push_back(file);
    file->gave_up = false;
    if (std::exchange(file->was_full, false)) state.options.on_drained();
    state.writing = true;
    lock.unlock();
    file->put(bytes, overflow, ended);
    const std::vector<std::string> news = file->take_news();
    lock.lock();
    state.writing = false;
    if (state.over) return;
    for (const std::string& text : news) state.options.warn(text);
    file->failure = !ended && file->gap().is_open() ? file->gap().why() : "";
    file->retry_due = file->gap().retry_due();
    state.lost += file->take_lost();
    state.report(*file, file->gap().why());
    if (!state.next()) state.say_flushed();
  }
}

}  // namespace ddprun
