// What ddp-store and ddp-rendezvous have in common: --listen HOST:PORT, a line that says the
// address, serving until SIGTERM or SIGINT. A service manager that asked for it (Type=notify) is
// told when they listen and when they end.
//
// For the main thread, which blocks in run_daemon() and runs the io_context; every callback is
// called on it. They may throw: an exception, also one out of a handler of the io_context, ends the
// program with ExitCode::kInternal and its words. Nothing else throws.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/log.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct DaemonSocket {
  UniqueFd listener;        // listens already
  HostPort address;         // where
  bool port_is_new = true;  // it was chosen just now: nobody can know it from before
};

struct DaemonService {
  std::shared_ptr<void> service;  // lives until the end of the process
  // Ends it in good order, and calls `then`; empty: it can be ended at any time. After a signal the
  // service is not destroyed: the process leaves while a thread of it may still wait for a disk.
  std::function<void(std::function<void()> then)> drain;
  // Reads its files again, at SIGHUP; empty: SIGHUP ends the program, as it does by itself.
  std::function<void()> reload;
};

struct Daemon {
  // However long drain() takes; a second signal does not wait for it, either.
  static constexpr std::chrono::milliseconds kDrainTime{1500};

  std::string name;
  std::string description;  // for --help
  // Adds the daemon's own options; may be empty. What they say is read by `serve`.
  std::function<void(CLI::App&)> add_options;
  // Called when the options have been read: an exit code ends the program with it. May be empty.
  std::function<std::optional<int>()> instead;
  // Makes the service. An error is one of its files: the program ends with ExitCode::kFiles; with
  // kUsage where the options do not fit together (kInvalidArgument).
  std::function<Result<DaemonService>(boost::asio::io_context&, Logger&, DaemonSocket)> serve;
};

// The whole program, once per process: it sets signals and limits. Returns its exit code where it
// could not begin (base/exit_codes.h); told to end, it leaves by _exit(0) when its output is
// flushed: kDrainTime after the first signal at the latest, even if the disk does not answer. (A
// thread that the kernel itself cannot interrupt in its write keeps the process, even from kill -9.)
int run_daemon(const Daemon& daemon, int argc, char** argv);

}  // namespace ddprun
