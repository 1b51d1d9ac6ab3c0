// ddp-store: one store, alone, for jobs that are started by other means and for tests.
#include <CLI/CLI.hpp>

#include "rendezvous/daemon.h"
#include "rendezvous/store_server.h"

namespace {

void add_options(CLI::App& app, ddprun::StoreServerOptions& options) {
  app.add_option_function<std::string>(
         "--legacy-dialect",
         [&options](const std::string& name) {
           options.legacy_dialect = name == "l2" ? ddprun::Dialect::kL2 : ddprun::Dialect::kL1;
         },
         "How clients older than PyTorch 2.2 are understood: l1 (up to 2.0; default) or l2 (2.1)")
      ->type_name("DIALECT")
      ->check(CLI::IsMember({"l1", "l2"}));
}

}  // namespace

int main(int argc, char** argv) {
  ddprun::StoreServerOptions options;
  ddprun::Daemon daemon;
  daemon.name = "ddp-store";
  daemon.description =
      "Serves one key-value store that speaks PyTorch's TCPStore protocol.\n"
      "Example: ddp-store --listen 127.0.0.1:29500";
  daemon.add_options = [&](CLI::App& app) { add_options(app, options); };
  daemon.serve = [&](boost::asio::io_context& io, ddprun::Logger& log, ddprun::UniqueFd listener) {
    std::vector<ddprun::UniqueFd> listeners;
    listeners.push_back(std::move(listener));
    auto server = std::make_shared<ddprun::StoreServer>(io, log, std::move(listeners), options);
    server->start();
    return server;
  };
  return ddprun::run_daemon(daemon, argc, argv);
}
