#include "rendezvous/service/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <vector>

#include "base/descriptor_limit.h"
#include "base/fail.h"
#include "base/missing_value.h"
#include "base/nearest_word.h"
#include "base/version.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/service/sd_notify.h"

namespace ddprun {
namespace {

void notify_manager(Logger& log, const std::string& state) {
  const Result<void> notified = notify_service_manager(state);
  if (!notified) log.warning(notified.error().message());
}

void reload_at(boost::asio::signal_set& hangups, const DaemonService& service) {
  hangups.async_wait([&](const boost::system::error_code& error, int) {
    if (error) return;
    service.reload();
    reload_at(hangups, service);
  });
}

// Runs until a signal has come and the service has been drained. Returns earlier at kDrainTime
// or at a second signal.
void run(boost::asio::io_context& io, boost::asio::signal_set& ends, const DaemonService& service,
         Logger& log) {
  using boost::system::error_code;
  boost::asio::steady_timer at_last(io);
  ends.async_wait([&](const error_code&, int) {
    notify_manager(log, "STOPPING=1");
    if (!service.drain) return io.stop();
    at_last.expires_after(Daemon::kDrainTime);
    at_last.async_wait([&io](const error_code&) { io.stop(); });
    ends.async_wait([&io](const error_code&, int) { io.stop(); });
    service.drain([&io] { io.stop(); });
  });
  io.run();
}

int serve(const Daemon& daemon, const HostPort& address) {
  Result<Listener> listener = listen_tcp(address);
  if (!listener) {
    return fail(daemon.name, listener.error(), usage_or(ExitCode::kAddress, listener.error()));
  }
  raise_descriptor_limit();
  std::signal(SIGPIPE, SIG_IGN);  // the reader of our log may exit

  Logger log(daemon.name, stderr_sink());
  boost::asio::io_context io(1);
  boost::asio::signal_set ends(io, SIGINT, SIGTERM);
  boost::asio::signal_set hangups(io);
  const Result<DaemonService> service = daemon.serve(io, log,
                                                     {.listener = std::move(listener->socket),
                                                      .address = listener->address,
                                                      .port_is_new = address.port == 0});
  if (!service) {
    return fail(daemon.name, service.error(), usage_or(ExitCode::kFiles, service.error()));
  }
  if (service->reload) {
    hangups.add(SIGHUP);
    reload_at(hangups, *service);
  }

  const std::string listening = "listening on " + to_text(listener->address);
  std::printf("%s: %s\n", daemon.name.c_str(), listening.c_str());
  std::fflush(stdout);
  notify_manager(log, "READY=1\nSTATUS=" + listening);
  run(io, ends, *service, log);
  // No destructor may wait for a disk that hangs. All files survive a kill at any moment.
  std::fflush(nullptr);
  ::_exit(to_int(ExitCode::kSuccess));
}

// Returns the error for an argument that no option accepts.
Error unexpected(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  const std::vector<std::string> all = app.remaining();
  const auto option =
      std::ranges::find_if(all, [](const std::string& one) { return one.starts_with('-'); });
  if (option == all.end()) {
    return invalid_argument("unexpected argument '" + all.front() +
                            "' (expected only options; --help lists them)");
  }
  const std::string name = option->substr(0, option->find('='));
  return invalid_argument("unknown option " + name +
                          guess_at_option(name, names, "; --help lists them"));
}

// Returns the error for a wrong command line. It replaces CLI11's texts by ours.
Error misuse(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    return unexpected(app);
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
    const std::string name = text.substr(0, text.find(':'));
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option) return missing_value(name, option->get_type_name());
  }
  // "Could not convert: --switch = value"
  const std::size_t equals = text.rfind(" = ");
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ConversionError) &&
      equals != std::string::npos) {
    const std::size_t name = text.find("--");
    return invalid_argument(text.substr(name, equals - name) + ": invalid value '" +
                            text.substr(equals + 3) + "' (expected true or false)");
  }
  return invalid_argument(text);
}

int parse_and_serve(const Daemon& daemon, int argc, char** argv) {
  CLI::App app{daemon.description + "\nEnds with 0 on SIGTERM and SIGINT."};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::string listen;
  app.add_option("--listen", listen,
                 "Numeric address and port; * for every address, port 0 for a free one, which is "
                 "printed")
      ->type_name("HOST:PORT");
  app.set_version_flag("--version", daemon.name + " " + kVersion);
  if (daemon.add_options) daemon.add_options(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::ParseError& error) {
    return fail(daemon.name, misuse(app, error), ExitCode::kUsage);
  }
  if (daemon.instead) {
    if (const std::optional<int> code = daemon.instead()) return *code;
  }
  if (listen.empty()) {
    return fail(daemon.name, missing_value("--listen", "HOST:PORT"), ExitCode::kUsage);
  }
  const Result<HostPort> address = parse_host_port(listen);
  if (!address) {
    return fail(daemon.name, Error(address.error()).within("--listen"), ExitCode::kUsage);
  }
  return serve(daemon, *address);
}

}  // namespace

int run_daemon(const Daemon& daemon, int argc, char** argv) {
  try {
    return parse_and_serve(daemon, argc, argv);
  } catch (const std::exception& error) {
    return fail(daemon.name, Error{.doing = error.what()}, ExitCode::kInternal);
  }
}

}  // namespace ddprun
