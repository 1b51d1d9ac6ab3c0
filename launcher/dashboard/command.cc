#include "launcher/dashboard/command.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/fail.h"
#include "base/random_id.h"
#include "base/spawn_program.h"
#include "base/unique_fd.h"
#include "launcher/control/job_watch.h"
#include "launcher/control/local_jobs.h"
#include "launcher/control/options.h"
#include "launcher/dashboard/server.h"
#include "launcher/dashboard/status.h"
#include "launcher/process/own_program.h"
#include "launcher/process/signal_source.h"
#include "rendezvous/auth/key_file.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {
namespace {

// BrowserFile: a file of this user alone that leads a browser to the address. The address has a
// token, and other users can see the words of a command. Removed at the end.
class BrowserFile {
 public:
  ~BrowserFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }

  // Starts the browser of the desktop.
  Result<void> open(const std::string& url) {
    const char* const folder = std::getenv("TMPDIR");
    std::string path = concat(folder && *folder ? folder : "/tmp", "/ddprun-XXXXXX.html");
    const UniqueFd file(mkstemps(path.data(), 5));
    if (!file.valid()) return system_error("make " + path, errno);
    path_ = path;
    const std::string text =
        concat("<!doctype html>\n<title>ddprun</title>\n<meta http-equiv=\"refresh\" content=\"0; ",
               "url=", url, "\">\n");
    if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      return system_error("write " + path, errno);
    }
    // The child is left to init: it may be the browser, which stays.
    const Result<pid_t> child = spawn_program(
        {.words = {"xdg-open", path}, .output = STDERR_FILENO, .has_own_group = true});
    if (!child) return child.error();
    return {};
  }

 private:
  std::string path_;  // empty: there is none
};

// Serves the page until the job or a signal ends it. Ends the process.
[[noreturn]] void serve(JobWatch watch, DashboardStatus first, RankCommands commands,
                        UniqueFd signals, Listener listener, bool opens) {
  const std::string token = random_hex(32);
  const std::string url = concat("http://", to_text(listener.address), "/#token=", token);
  const std::string job = first.job();
  boost::asio::io_context io;
  int code = 0;
  DashboardServer server(io, std::move(listener.socket), std::move(watch), std::move(first),
                         std::move(commands), token, [&] {
                           std::fprintf(stderr, "ddprun: job '%s' has ended\n", job.c_str());
                           io.stop();
                         });
  boost::asio::posix::stream_descriptor source(io, signals.release());
  source.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [&](boost::system::error_code error) {
                      if (error) return;
                      const std::optional<TakenSignal> taken = next_signal(source.native_handle());
                      code = exit_code_of_signal(taken ? taken->number : SIGTERM);
                      io.stop();
                    });
  std::printf("%s\n", url.c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "ddprun: the page of job '%s'; the address works once; Ctrl-C ends it\n",
               job.c_str());
  std::optional<BrowserFile> browser;
  if (opens) {
    if (const Result<void> opened = browser.emplace().open(url); !opened) {
      std::fprintf(stderr, "ddprun: --open: %s\n", opened.error().message().c_str());
    }
  }
  io.run();
  browser.reset();
  server.close();
  // A thread that asks the job may use `server` and `io` now, so neither is destroyed.
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

int run_dashboard(const std::vector<std::string>& arguments) {
  Result<ControlOptions> options = parse_control_options(ControlCommand::kDashboard, arguments);
  if (!options) return fail("ddprun", options.error(), ExitCode::kUsage);
  if (options->wants_help) {
    std::fputs(control_help(ControlCommand::kDashboard).c_str(), stdout);
    return 0;
  }
  options->by = who_asks();
  const char* key = std::getenv(kKeyVariable);  // find() takes it out of the environment
  RankCommands commands{.program = own_program(), .arguments = options->service_arguments};
  if (key && *key) commands.variables[kKeyVariable] = key;
  JobWatch watch(*options);
  if (const int code = watch.find(); code != 0) return code;
  const JobPicture first = watch.picture();
  if (!first.trouble.empty()) return end_refused(*options, first.trouble, first.code);
  DashboardStatus status;
  if (!status.take(first.json, std::chrono::system_clock::now())) {
    return end_refused(*options, "the rendezvous service does not answer: try again in a moment",
                       ExitCode::kNoAnswer);
  }
  if (status.is_over()) return end_refused(*options, "the job has ended", ExitCode::kNoJob);
  Result<UniqueFd> signals = open_signal_source(without_ignored({SIGINT, SIGTERM, SIGHUP}));
  if (!signals) return fail("ddprun", signals.error(), ExitCode::kFiles);
  Result<Listener> listener = listen_tcp(HostPort{.host = "127.0.0.1", .port = 0});
  if (!listener) return fail("ddprun", listener.error(), ExitCode::kFiles);
  commands.arguments.insert(commands.arguments.end(),
                            {"--", options->job.empty() ? status.job() : options->job});
  serve(std::move(watch), std::move(status), std::move(commands), std::move(*signals),
        std::move(*listener), options->opens);
}

}  // namespace ddprun
