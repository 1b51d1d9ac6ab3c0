// ddp-store: one store, alone, for jobs that are started by other means and for tests.
#include <sys/resource.h>

#include <boost/asio/signal_set.hpp>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "base/exit_codes.h"
#include "base/log.h"
#include "rendezvous/listen.h"
#include "rendezvous/store_server.h"

namespace ddprun {
namespace {

constexpr const char* kProgram = "ddp-store";

int fail(ExitCode code, const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", kProgram, text.c_str());
  return to_int(code);
}

// Every client takes a descriptor, and the usual soft limit of 1024 is for programs that use
// select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int serve(const HostPort& address) {
  Result<Listener> listener = listen_tcp(address);
  if (!listener) {
    const bool meant = listener.error().kind != ErrorKind::kInvalidArgument;
    return fail(meant ? ExitCode::kAddress : ExitCode::kUsage, listener.error().message());
  }
  raise_descriptor_limit();
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads our log may leave

  Logger log(kProgram, stderr_sink());
  boost::asio::io_context io(1);
  boost::asio::signal_set ends(io, SIGINT, SIGTERM);
  ends.async_wait([&io](const boost::system::error_code&, int) { io.stop(); });
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(listener->socket));
  StoreServer server(io, log, std::move(sockets));
  server.start();

  std::printf("%s: listening on %s\n", kProgram, to_text(listener->address).c_str());
  std::fflush(stdout);
  io.run();
  return to_int(ExitCode::kSuccess);
}

int run(int argc, char** argv) {
  CLI::App app{
      "Serves one key-value store that speaks PyTorch's TCPStore protocol (2.2 and newer).\n"
      "Example: ddp-store --listen 127.0.0.1:29500\n"
      "Ends with 0 on SIGTERM and SIGINT."};
  std::string listen;
  app.add_option("--listen", listen,
                 "Numeric address and port; * for every address, port 0 for a free one, which is "
                 "printed")
      ->type_name("HOST:PORT");
  app.set_version_flag("--version", std::string(kProgram) + " " DDPRUN_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::ParseError& error) {
    return fail(ExitCode::kUsage, std::string(error.what()) + "; --help tells more");
  }
  if (listen.empty()) return fail(ExitCode::kUsage, "--listen HOST:PORT is needed");
  const Result<HostPort> address = parse_host_port(listen);
  if (!address) return fail(ExitCode::kUsage, "--listen: " + address.error().message());
  return serve(*address);
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  try {
    return ddprun::run(argc, argv);
  } catch (const std::exception& error) {
    return ddprun::fail(ddprun::ExitCode::kInternal, error.what());
  }
}
