// run_daemon(): the common part of ddp-store and ddp-rendezvous. It parses --listen HOST:PORT,
// prints the address, and serves until SIGTERM or SIGINT. A service manager that asked for it
// (Type=notify) is told when they listen and when they end.
//
// The main thread blocks in run_daemon() and runs the io_context; every callback is called on
// it. Callbacks may throw. An exception, also from a handler of the io_context, ends the
// program with ExitCode::kInternal and prints its text. Nothing else throws.
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
  UniqueFd listener;        // already listens
  HostPort address;         // where it listens
  bool port_is_new = true;  // the port was chosen now, so no agent can know it from earlier
};

struct DaemonService {
  std::shared_ptr<void> service;  // lives until the end of the process
  // Ends the service in good order and then calls `then`. Empty: it can be ended at any time.
  // After a signal the service is not destroyed: the process exits while one of its threads
  // may still wait for a disk.
  std::function<void(std::function<void()> then)> drain;
  // Called at SIGHUP: reads the service's files again, or says that there are none. Empty: SIGHUP
  // ends the program.
  std::function<void()> reload;
};

struct Daemon {
  // Limit for drain(). A second signal ends the program at once.
  static constexpr std::chrono::milliseconds kDrainTime{1500};

  std::string name;
  std::string description;  // for --help
  // Adds the daemon's own options; may be empty. `serve` reads their values.
  std::function<void(CLI::App&)> add_options;
  // Called after the options have been read. If it returns an exit code, the program ends with
  // it. May be empty.
  std::function<std::optional<int>()> instead;
  // Makes the service. An error of kInvalidArgument means that the options contradict each
  // other; the program ends with ExitCode::kUsage. Any other error concerns one of its files;
  // the program ends with ExitCode::kFiles.
  std::function<Result<DaemonService>(boost::asio::io_context&, Logger&, DaemonSocket)> serve;
};

// Runs the whole program, once per process: it sets signal handlers and limits. Returns the
// exit code if the program could not begin (base/exit_codes.h). After SIGTERM or SIGINT it
// leaves by _exit(0) when its output is flushed. That is at most kDrainTime after the first
// signal, even if the disk does not answer. (A thread in a write that the kernel itself cannot
// interrupt keeps the process alive, even after kill -9.)
int run_daemon(const Daemon& daemon, int argc, char** argv);

}  // namespace ddprun
