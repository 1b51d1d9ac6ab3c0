// ddp-store: one store, alone, for jobs that are started by other means and for tests.
#include "rendezvous/daemon.h"
#include "rendezvous/store_server.h"

int main(int argc, char** argv) {
  ddprun::Daemon daemon;
  daemon.name = "ddp-store";
  daemon.description =
      "Serves one key-value store that speaks PyTorch's TCPStore protocol (2.2 and newer).\n"
      "Example: ddp-store --listen 127.0.0.1:29500";
  daemon.serve = [](boost::asio::io_context& io, ddprun::Logger& log,
                    ddprun::DaemonSocket socket) -> ddprun::Result<ddprun::DaemonService> {
    std::vector<ddprun::UniqueFd> listeners;
    listeners.push_back(std::move(socket.listener));
    auto server = std::make_shared<ddprun::StoreServer>(io, log, std::move(listeners));
    server->start();
    return ddprun::DaemonService{.service = server, .drain = {}};
  };
  return ddprun::run_daemon(daemon, argc, argv);
}
