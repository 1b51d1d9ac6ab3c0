#include "launcher/top/command.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/fail.h"
#include "base/pidfd.h"
#include "base/poll_until.h"
#include "base/spawn_program.h"
#include "base/unique_fd.h"
#include "launcher/control/job_watch.h"
#include "launcher/control/options.h"
#include "launcher/process/own_program.h"
#include "launcher/process/signal_source.h"
#include "launcher/top/core/screen.h"
#include "launcher/top/full_screen.h"
#include "launcher/top/picture.h"
#include "rendezvous/auth/key_file.h"

namespace ddprun {
namespace {

constexpr Duration kRefresh = std::chrono::seconds(1);
// Agents send a service their ranks only while the job is watched. So its first answer has none.
constexpr Duration kRanksCome = std::chrono::seconds(3);

// Fetch: asks for the next picture of the job in a thread of its own. One is asked for at a time.
class Fetch {
 public:
  explicit Fetch(std::shared_ptr<JobWatch> watch)
      : watch_(std::move(watch)),
        wakeup_(std::make_shared<UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}

  Result<void> begin() {
    const auto promise = std::make_shared<std::promise<JobPicture>>();
    std::future<JobPicture> next = promise->get_future();
    Result<void> started =
        start_detached_thread("status", [watch = watch_, wakeup = wakeup_, promise] {
          promise->set_value(watch->picture());
          eventfd_write(wakeup->get(), 1);
        });
    if (started) next_ = std::move(next);
    return started;
  }
  bool is_busy() const { return next_.valid(); }
  // Is readable when a picture has come.
  int descriptor() const { return wakeup_->get(); }
  // Returns the picture, if it has come.
  std::optional<JobPicture> take() {
    eventfd_t count = 0;
    if (eventfd_read(wakeup_->get(), &count) != 0) return std::nullopt;
    return next_.get();
  }

 private:
  std::shared_ptr<JobWatch> watch_;
  std::shared_ptr<UniqueFd> wakeup_;
  std::future<JobPicture> next_;
};

// LiveView: the loop of `ddprun top` on a terminal.
class LiveView {
 public:
  LiveView(ControlOptions options, std::string key, std::shared_ptr<JobWatch> watch,
           UniqueFd signals)
      : options_(std::move(options)),
        key_(std::move(key)),
        fetch_(std::move(watch)),
        signals_(std::move(signals)) {}

  // Returns the exit code.
  int run(const JobPicture& first);

 private:
  void take(const JobPicture& picture);
  void describe_age();
  void do_keys();
  void do_signals();
  void run_command(std::string_view command);
  void wait_for_key();

  ControlOptions options_;
  const std::string key_;  // of the job, as the environment had it
  Fetch fetch_;
  const UniqueFd signals_;
  FullScreen terminal_;
  TopScreen screen_;
  std::string trouble_;
  TimePoint shown_since_;  // of the newest picture
  bool is_gone_ = false;   // the job's ddprun has ended
  std::optional<int> exit_code_;
};

int LiveView::run(const JobPicture& first) {
  take(first);
  if (const Result<void> entered = terminal_.enter(); !entered) {
    return fail("ddprun", entered.error(), ExitCode::kFiles);
  }
  TimePoint next = BootClock::now() + kRefresh;
  while (!exit_code_) {
    const TimePoint now = BootClock::now();
    if (now >= next) {
      next = now + kRefresh;
      if (!fetch_.is_busy()) {
        if (const Result<void> begun = fetch_.begin(); !begun) trouble_ = begun.error().message();
      }
    }
    describe_age();
    terminal_.draw(screen_.lines(terminal_.size()));
    std::array<pollfd, 3> events{
        {{STDIN_FILENO, POLLIN, 0}, {signals_.get(), POLLIN, 0}, {fetch_.descriptor(), POLLIN, 0}}};
    poll_until(events, next);
    if (const std::optional<JobPicture> picture = fetch_.take()) take(*picture);
    if (events[1].revents != 0) do_signals();
    if (events[0].revents != 0 && !exit_code_) do_keys();
  }
  terminal_.leave();
  // The thread may wait for a service for seconds. It must not run while exit() destroys what it
  // uses.
  std::fflush(nullptr);
  if (fetch_.is_busy()) std::_Exit(*exit_code_);
  return *exit_code_;
}

void LiveView::take(const JobPicture& picture) {
  trouble_ = picture.trouble;
  is_gone_ = picture.code == ExitCode::kNoJob;
  if (!trouble_.empty()) return;
  JobView view = view_of(picture.json);
  options_.job = options_.job.empty() ? view.id : options_.job;
  screen_.show(std::move(view));
  shown_since_ = BootClock::now();
}

// Says why the picture is not the newest one, and how old it is.
void LiveView::describe_age() {
  if (trouble_.empty()) return screen_.set_note("");
  const auto age = std::chrono::floor<std::chrono::seconds>(BootClock::now() - shown_since_);
  screen_.set_note(concat(is_gone_ ? "the job has ended: " : "no answer: ", trouble_,
                          " (shown: ", age.count(), " s ago)"));
}

void LiveView::do_keys() {
  using enum TopScreen::Action;
  const std::string typed = terminal_.read();
  if (typed.empty()) exit_code_ = exit_code_of_signal(SIGHUP);
  for (const Key& key : keys_of(typed)) {
    switch (screen_.press(key)) {
      case kNone: break;
      case kQuit: exit_code_ = 0; return;
      case kLogs: return run_command("logs");
      case kStacks: return run_command("stacks");
      case kFlight: return run_command("flight");
    }
  }
}

void LiveView::do_signals() {
  while (const std::optional<TakenSignal> taken = next_signal(signals_.get())) {
    if (taken->number == SIGWINCH) continue;
    if (taken->number != SIGTSTP) {
      exit_code_ = exit_code_of_signal(taken->number);
      continue;
    }
    terminal_.leave();
    kill(getpid(), SIGSTOP);
    if (const Result<void> entered = terminal_.enter(); !entered) {
      exit_code_ = exit_code_of_signal(SIGHUP);
    }
  }
}

// Runs another command of ddprun for the selected rank, on the usual screen of the terminal.
void LiveView::run_command(std::string_view command) {
  ProgramStart start{.words = {own_program(), std::string(command)}, .input = STDIN_FILENO};
  start.words.push_back("--rank=" + std::to_string(*screen_.selected()));
  start.words.insert(start.words.end(), options_.service_arguments.begin(),
                     options_.service_arguments.end());
  start.words.insert(start.words.end(), {"--", options_.job});
  if (!key_.empty()) start.variables[kKeyVariable] = key_;
  terminal_.leave();
  const Result<pid_t> child = spawn_program(start);
  if (child) {
    const UniqueFd ended = pidfd_of(*child);
    // Ctrl-C reaches the command, which is in the same process group. It does not end this view.
    std::array<pollfd, 2> events{{{ended.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
    while (events[0].revents == 0) {
      poll_until(events, BootClock::now() + kLongestTimeout);
      while (const std::optional<TakenSignal> taken = next_signal(signals_.get())) {
        if (taken->number == SIGTSTP) {  // Ctrl-Z has stopped the command, too
          kill(getpid(), SIGSTOP);
          kill(*child, SIGCONT);
        }
        if (taken->number != SIGTERM && taken->number != SIGHUP) continue;
        exit_code_ = exit_code_of_signal(taken->number);
        kill(*child, SIGTERM);
      }
    }
    while (waitpid(*child, nullptr, 0) < 0 && errno == EINTR) {
    }
  } else {
    std::fprintf(stderr, "ddprun: error: %s\n", child.error().message().c_str());
  }
  if (!exit_code_) wait_for_key();
}

// Shows the output of a command until a key is pressed.
void LiveView::wait_for_key() {
  std::fputs("-- press a key to return to ddprun top --", stderr);
  if (const Result<void> taken = terminal_.take_keys(); !taken) {
    exit_code_ = exit_code_of_signal(SIGHUP);
  }
  std::array<pollfd, 2> events{{{STDIN_FILENO, POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
  while (!exit_code_ && events[0].revents == 0) {
    poll_until(events, BootClock::now() + kLongestTimeout);
    do_signals();
  }
  std::fputs("\n", stderr);
  if (exit_code_) return;
  terminal_.read();
  if (const Result<void> entered = terminal_.enter(); !entered) {
    exit_code_ = exit_code_of_signal(SIGHUP);
  }
}

// Prints the view; one that lacks ranks only if they do not come soon. Returns the exit code.
int print_table(JobWatch& watch, JobView view) {
  const TimePoint deadline = BootClock::now() + kRanksCome;
  const auto is_whole = [&] {
    return !view.ranks.empty() && view.ranks.size() >= view.ranks_expected;
  };
  while (!is_whole() && view.outcome.empty() && BootClock::now() < deadline) {
    poll_until({}, std::min(deadline, BootClock::now() + kRefresh / 4));
    const JobPicture next = watch.picture();
    if (next.trouble.empty()) view = view_of(next.json);
  }
  TopScreen screen;
  screen.show(std::move(view));
  std::fputs(screen.text().c_str(), stdout);
  return 0;
}

}  // namespace

int run_top(const std::vector<std::string>& arguments) {
  Result<ControlOptions> options = parse_control_options(ControlCommand::kTop, arguments);
  if (!options) return fail("ddprun", options.error(), ExitCode::kUsage);
  if (options->wants_help) {
    std::fputs(control_help(ControlCommand::kTop).c_str(), stdout);
    return 0;
  }
  options->by = who_asks();
  const char* key = std::getenv(kKeyVariable);  // find() takes it out of the environment
  const std::string given_key = key ? key : "";
  const auto watch = std::make_shared<JobWatch>(*options);
  if (const int code = watch->find(); code != 0) return code;
  const JobPicture first = watch->picture();
  if (!first.trouble.empty()) return end_refused(*options, first.trouble, first.code);
  if (options->once || !FullScreen::is_possible()) return print_table(*watch, view_of(first.json));
  Result<UniqueFd> signals =
      open_signal_source(without_ignored({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}));
  if (!signals) return fail("ddprun", signals.error(), ExitCode::kFiles);
  return LiveView(std::move(*options), given_key, watch, std::move(*signals)).run(first);
}

}  // namespace ddprun
