// ddp-rendezvous: the rendezvous service as a program of its own, for many jobs, so that the loss
// of any node of a job is survived.
#include <CLI/CLI.hpp>

#include "base/random_id.h"
#include "rendezvous/daemon.h"
#include "rendezvous/server.h"
#include "rendezvous/tcp_address.h"

int main(int argc, char** argv) {
  double lease_seconds = 5;
  ddprun::Daemon daemon;
  daemon.name = "ddp-rendezvous";
  daemon.description =
      "Brings the nodes of jobs together: agents (ddprun --rdzv-endpoint=HOST:PORT) join here and "
      "are "
      "told their ranks.\nExample: ddp-rendezvous --listen '*:29400'";
  daemon.add_options = [&](CLI::App& app) {
    app.add_option(
           "--lease", lease_seconds,
           "Seconds after which a node that is not heard of counts as lost (default 5). Its "
           "agent ends its workers a fifth earlier")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.5, 3600.0));
  };
  daemon.serve = [&](boost::asio::io_context& io, ddprun::Logger& log, ddprun::UniqueFd listener) {
    const std::chrono::duration<double> lease(lease_seconds);
    ddprun::ServiceOptions options;
    options.membership.lease = std::chrono::duration_cast<ddprun::Duration>(lease);
    options.agent_patience = std::chrono::duration_cast<ddprun::Duration>(lease * 0.8);
    options.heartbeat_interval = std::chrono::duration_cast<ddprun::Duration>(lease * 0.2);
    options.host = ddprun::host_name();
    options.service_id = ddprun::random_hex(8);
    std::vector<ddprun::UniqueFd> listeners;
    listeners.push_back(std::move(listener));
    auto server = std::make_shared<ddprun::RendezvousServer>(io, log, std::move(options),
                                                             std::move(listeners));
    server->start();
    return server;
  };
  return ddprun::run_daemon(daemon, argc, argv);
}
