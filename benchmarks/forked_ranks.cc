#include "benchmarks/forked_ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/wait_status.h"
#include "benchmarks/give_up.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/store/server.h"

namespace ddprun::benchmarks {
namespace {

[[noreturn]] void serve_store(UniqueFd listener) {
  boost::asio::io_context io;
  Logger log("store", stderr_sink());
  StoreServer store(io, log, std::move(listener));
  store.start();
  io.run();
  std::_Exit(0);
}

template <class Run>
pid_t fork_and(Run run) {
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run();
    std::exit(0);
  }
  return child;
}

}  // namespace

int run_forked_ranks(const ForkedRanks& ranks,
                     const std::function<void(int rank, std::uint16_t port)>& run) {
  std::optional<Listener> listener;
  if (ranks.first == 0) listener = need(listen_tcp(ranks.store));
  const std::uint16_t port = listener ? listener->address.port : ranks.store.port;
  std::vector<pid_t> children;
  for (int rank = ranks.first; rank < ranks.first + ranks.count; ++rank) {
    children.push_back(fork_and([&] {
      listener.reset();
      run(rank, port);
    }));
  }
  const pid_t server =
      listener ? fork_and([&] { serve_store(std::move(listener->socket)); }) : pid_t{-1};
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    worst = std::max(worst, exit_code_of_status(status));
  }
  if (server > 0) {
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
  }
  return worst;
}

}  // namespace ddprun::benchmarks
