#include "launcher/output/console_writer.h"

#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/background_thread.h"
#include "base/pipe.h"
#include "base/write_all.h"
#include "launcher/output/core/gap.h"
#include "launcher/output/writer_state.h"

namespace ddprun {
namespace {

// A large pipe, so that its reader and this process do not wake for every 64 KiB.
constexpr int kPipeBytes = 1 << 20;

bool lead_to_the_same(const std::array<int, 2>& descriptors) {
  struct stat out {};
  struct stat err {};
  return fstat(descriptors[0], &out) == 0 && fstat(descriptors[1], &err) == 0 &&
         out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

// Outlet: where one of the streams leads. Used on the writer's thread.
class Outlet {
 public:
  Outlet() = default;
  Outlet(int descriptor, std::string name)
      : descriptor_(descriptor), is_terminal_(isatty(descriptor) != 0), gap_(std::move(name)) {}

  void put(std::string_view bytes);
  OutputGap& gap() { return gap_; }

 private:
  bool end_broken_line();
  bool has_lost_its_reader(int sys_errno) const;

  int descriptor_ = -1;
  // As it was at the start, because isatty() fails for a terminal that was hung up.
  bool is_terminal_ = false;
  bool reader_gone_ = false;
  bool mid_line_ = false;  // the last byte written did not end a line
  OutputGap gap_;
};

void Outlet::put(std::string_view bytes) {
  if (reader_gone_) return;
  const bool is_tried_again = gap_.is_open();
  if (is_tried_again) {
    bytes = gap_.writable(bytes, BootClock::now());
    if (bytes.empty()) return;
  }
  std::size_t written = 0;
  if (!is_tried_again || end_broken_line()) written = write_until_error(descriptor_, bytes);
  const int sys_errno = errno;
  if (written > 0) mid_line_ = bytes[written - 1] != '\n';
  if (written == bytes.size()) {
    if (is_tried_again) gap_.close();
    return;
  }
  reader_gone_ = has_lost_its_reader(sys_errno);
  if (reader_gone_) return;
  gap_.open(errno_text(sys_errno), BootClock::now());
  gap_.drop(bytes.substr(written));
}

bool Outlet::end_broken_line() {
  if (mid_line_) mid_line_ = !write_all(descriptor_, "\n");
  return !mid_line_;
}

// Returns whether the stream has no reader any more, so that nothing is lost. That is a closed
// pipe, a stream that was never open, or a terminal that was hung up.
bool Outlet::has_lost_its_reader(int sys_errno) const {
  return sys_errno == EPIPE || sys_errno == ECONNRESET || sys_errno == EBADF ||
         (sys_errno == EIO && is_terminal_);
}

}  // namespace

struct ConsoleWriter::State : WriterState {
  std::function<void()> on_drained;
  std::function<void(const std::string& text)> warn;
  std::array<Outlet, 2> outlets;  // used by the thread
  bool one_stream = false;        // everything goes to the first
  std::optional<LiveScreen> screen;
  std::array<ConsoleText, 2> texts;
  std::array<OutputBuffer, 2> queued;
  ConsoleSource self;
  bool was_full = false;
  bool has_losses = false;
  std::array<std::string, 2> losses;  // one text for each outlet

  std::size_t index_of(ConsoleStream stream) const {
    return one_stream ? 0 : static_cast<std::size_t>(stream);
  }
  void add(ConsoleStream stream, ConsoleSource& source, std::string_view piece, PieceEnd end) {
    if (screen) return screen->add(source, piece, end);
    const std::size_t index = index_of(stream);
    texts[index].add(source, piece, end, queued[index]);
  }
  std::size_t size() const {
    return queued[0].size() + queued[1].size() + (screen ? screen->pending() : 0);
  }
  bool is_empty() const {
    return queued[0].empty() && queued[1].empty() && !(screen && screen->has_changed());
  }
  void note_losses(std::size_t outlet) {
    OutputGap& gap = outlets[outlet].gap();
    has_losses |= gap.is_open();
    losses[outlet] = gap.loss();
    for (const std::string& text : gap.take_news()) {
      if (warn && !over) warn(text);
    }
  }
};

ConsoleWriter::ConsoleWriter(std::function<void()> on_drained, const ConsoleOptions& options)
    : state_(std::make_shared<State>()) {
  state_->on_drained = std::move(on_drained);
  state_->warn = options.warn;
  state_->outlets = {Outlet(options.descriptors[0], "standard output"),
                     Outlet(options.descriptors[1], "standard error")};
  state_->one_stream = options.live || lead_to_the_same(options.descriptors);
  for (const int descriptor : options.descriptors) widen_pipe(descriptor, kPipeBytes);
  if (options.live) state_->screen.emplace(*options.live);
  const Result<void> started =
      start_thread(thread_, "ddprun-console", [state = state_] { run(*state); });
  if (!started) {
    throw std::system_error(started.error().sys_errno, std::generic_category(),
                            started.error().doing);
  }
}

ConsoleWriter::~ConsoleWriter() { end_writer(*state_, thread_); }

template <class Change>
void ConsoleWriter::change(Change&& change) {
  bool sleeps = false;
  {
    const std::lock_guard lock(state_->mutex);
    change(*state_);
    if (state_->size() >= kHighWater) state_->was_full = true;
    sleeps = !state_->writing && !state_->is_empty();
  }
  if (sleeps) state_->wake.notify_one();
}

void ConsoleWriter::write(ConsoleStream stream, ConsoleSource& source, std::string_view piece,
                          PieceEnd end) {
  change([&](State& state) { state.add(stream, source, piece, end); });
}

void ConsoleWriter::finish(ConsoleStream stream, ConsoleSource& source) {
  change([&](State& state) {
    if (state.screen) return state.screen->finish(source);
    const std::size_t index = state.index_of(stream);
    state.texts[index].finish(source, state.queued[index]);
  });
}

void ConsoleWriter::say(ConsoleStream stream, std::string_view lines) {
  change([&](State& state) { state.add(stream, state.self, lines, PieceEnd::kLines); });
}

bool ConsoleWriter::is_live() const { return state_->screen.has_value(); }

void ConsoleWriter::show_rest(ConsoleSource& source, std::string_view rest) {
  change([&](State& state) {
    if (state.screen) state.screen->show_rest(source, rest);
  });
}

void ConsoleWriter::set_status(std::string_view status) {
  change([&](State& state) {
    if (state.screen) state.screen->set_status(status);
  });
}

void ConsoleWriter::resize(ScreenSize size) {
  change([&](State& state) {
    if (state.screen) state.screen->resize(size);
  });
}

void ConsoleWriter::hide_area() {
  change([&](State& state) {
    if (state.screen) state.screen->hide();
  });
}

void ConsoleWriter::show_area() {
  change([&](State& state) {
    if (state.screen) state.screen->show();
  });
}

bool ConsoleWriter::is_full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->was_full;
}

void ConsoleWriter::when_flushed(std::function<void()> then) {
  const std::lock_guard lock(state_->mutex);
  state_->on_flushed = std::move(then);
  if (!state_->writing && state_->is_empty()) state_->say_flushed();
}

bool ConsoleWriter::has_losses() const {
  const std::lock_guard lock(state_->mutex);
  return state_->has_losses;
}

std::vector<std::string> ConsoleWriter::losses() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> texts;
  for (const std::string& text : state_->losses) {
    if (!text.empty()) texts.push_back(text);
  }
  return texts;
}

void ConsoleWriter::run(State& state) {
  std::array<OutputBuffer, 2> batch;
  std::unique_lock lock(state.mutex);
  while (true) {
    state.wake.wait(lock, [&] { return state.over || !state.is_empty(); });
    if (state.over) return;
    if (state.screen) state.screen->take(state.queued[0]);
    batch.swap(state.queued);
    state.writing = true;
    // The callers read from workers again while this batch is written.
    if (std::exchange(state.was_full, false)) state.on_drained();
    for (std::size_t i = 0; i < batch.size() && !state.over; ++i) {
      if (batch[i].empty()) continue;
      lock.unlock();
      state.outlets[i].put(batch[i].bytes());
      batch[i].clear();
      lock.lock();
      state.note_losses(i);
    }
    state.writing = false;
    if (state.over) return;
    if (state.is_empty()) state.say_flushed();
  }
}

}  // namespace ddprun
