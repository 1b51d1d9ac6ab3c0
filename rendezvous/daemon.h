// What ddp-store and ddp-rendezvous have in common: --listen HOST:PORT, a line that says the
// address, serving until SIGTERM or SIGINT. A service manager that asked for it (Type=notify) is
// told when they listen and when they end.
//
// For the main thread, which blocks in run_daemon() and runs the io_context; both callbacks are
// called on it. They may throw: an exception, also one out of a handler of the io_context, ends the
// program with ExitCode::kInternal and its words. Nothing else throws.
#pragma once

#include <boost/asio/io_context.hpp>
#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/unique_fd.h"

namespace ddprun {

struct Daemon {
  std::string name;
  std::string description;  // for --help
  // Adds the daemon's own options; may be empty. What they say is read by `serve`.
  std::function<void(CLI::App&)> add_options;
  // Makes the service on a socket that listens already. What is returned lives until the end.
  std::function<std::shared_ptr<void>(boost::asio::io_context&, Logger&, UniqueFd listener)> serve;
};

// The whole program, once per process: it sets signals and limits. Returns its exit code
// (base/exit_codes.h).
int run_daemon(const Daemon& daemon, int argc, char** argv);

}  // namespace ddprun
