// ddp-rendezvous: the rendezvous service as a program of its own, for many jobs. A job then
// survives the loss of any of its nodes.
#include <chrono>
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/concat.h"
#include "base/fail.h"
#include "base/random_id.h"
#include "base/seconds.h"
#include "rendezvous/auth/core/proof.h"
#include "rendezvous/auth/key_file.h"
#include "rendezvous/auth/munge.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/membership/core/lease.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/persistence/state_codec.h"
#include "rendezvous/protocol/core/handshake.h"
#include "rendezvous/service/daemon.h"
#include "rendezvous/service/server.h"

namespace {

using namespace ddprun;

constexpr const char* kName = "ddp-rendezvous";

struct Options {
  LeaseTimes times;
  std::string state_directory;  // empty: none
  std::string key_file;         // empty: none
  std::string munge_socket;     // empty: munge's own default
  TlsFiles tls;
  bool require_auth = false;
  bool print_read_token = false;
};

void add_options(CLI::App& app, Options& options) {
  const auto time_into = [](auto& time, const char* name, auto parse) {
    return [&time, name, parse](const std::string& text) {
      const Result<Duration> given = parse(text);
      if (!given) throw CLI::ValidationError(name, given.error().message());
      time = *given;
    };
  };
  app.add_option_function<std::string>(
         "--lease", time_into(options.times.lease, "--lease", parse_lease),
         "A node that is silent for this time is lost; it ends its workers a fifth earlier")
      ->type_name("SECONDS")
      ->default_str(in_seconds(options.times.lease));
  app.add_option_function<std::string>(
         "--heartbeat-interval",
         time_into(options.times.given_heartbeat, "--heartbeat-interval", parse_seconds),
         "Time between heartbeats of an agent, from a fiftieth to a quarter of the lease (default: "
         "a fifth)")
      ->type_name("SECONDS");
  app.parse_complete_callback([&options] {
    const Result<void> good = check_lease(options.times);
    if (!good) throw CLI::ValidationError(good.error().message());
  });
  app.add_option("--state-dir", options.state_directory,
                 "Directory for the state: a service that is killed and started again continues "
                 "with the same jobs, generations and budgets. It is made if it does not exist")
      ->type_name("DIR");
  app.add_option(
         "--rdzv-key-file", options.key_file,
         "File with the key that agents must also have, or with one for each job: lines of KEY or "
         "JOB KEY; read again at SIGHUP. Default: DDPRUN_RDZV_KEY in the environment")
      ->type_name("FILE");
  app.add_option("--munge-socket", options.munge_socket,
                 "Socket of munged (default: munge's own). If munged answers and there is no key, "
                 "munge authenticates the users of agents; a job belongs to the user of its first "
                 "agent. none: do not use munge")
      ->type_name("PATH|none");
  app.add_option(
         "--rdzv-tls-cert", options.tls.cert,
         "Certificate for TLS, in PEM, with its intermediate certificates: agents and readers of "
         "the pages must then use TLS. Read again at SIGHUP, like the other two files")
      ->type_name("FILE");
  app.add_option("--rdzv-tls-key", options.tls.key, "Its private key, in PEM without a passphrase")
      ->type_name("FILE");
  app.add_option("--rdzv-tls-ca", options.tls.ca,
                 "Admit only holders of a certificate of this authority (PEM)")
      ->type_name("FILE");
  app.add_flag("--require-auth", options.require_auth,
               "Refuse to listen for other hosts without a key, munge or --rdzv-tls-ca");
  app.add_flag(
      "--print-read-token", options.print_read_token,
      "Print the token for /metrics and /status.json, which is derived from the key, and exit");
}

Result<KeptState> open_state(const std::string& path, Logger& log) {
  Result<StateDirectory> directory = StateDirectory::open(path);
  if (!directory) return std::move(directory).error().within("--state-dir");
  Result<ServiceState> state = decode_state(directory->image());
  if (!state) return std::move(state).error().within("--state-dir " + path);
  if (directory->cut_bytes() > 0) {
    log.warning(concat("cut ", directory->cut_bytes(), " bytes off the journal in ", path,
                       ": the last write was incomplete, and no agent knows of it"));
  }
  if (!directory->is_new()) {
    log.info(concat("continuing with ", state->jobs.size(), " jobs of ", path));
  }
  return KeptState{std::move(*directory), std::move(*state)};
}

// Prints the token for readers of the pages. Returns the exit code, or nullopt if it was not
// asked for.
std::optional<int> print_read_token(const Options& given) {
  if (!given.print_read_token) return std::nullopt;
  const Result<FoundKeys> found = find_keys(given.key_file);
  if (!found) {
    return fail(kName, found.error(), usage_or(ExitCode::kFiles, found.error()));
  }
  const std::optional<Secret>& key = found->keys.for_every_job();
  if (!key) {
    return fail(kName,
                invalid_argument("needs a key for all jobs (--rdzv-key-file FILE)")
                    .within("--print-read-token"),
                ExitCode::kUsage);
  }
  std::printf("%s\n", read_token_of(key->view()).c_str());
  return to_int(ExitCode::kSuccess);
}

// Tells of the result of reading files again. An error changes nothing: the service continues with
// what it has. Returns whether there is something new.
template <class Found>
bool is_new(const Result<Found>& found, const std::string& what, Logger& log) {
  if (!found) {
    log.error("the " + what + " stay as they are: " + found.error().message());
    return false;
  }
  if (!found->remark.empty()) log.warning(found->remark);
  return true;
}

void reload(const Options& given, Logger& log, RendezvousServer& server) {
  if (!given.key_file.empty()) {  // keys from the environment stay
    Result<FoundKeys> found = find_keys(given.key_file);
    if (is_new(found, "keys", log)) {
      server.set_keys(std::move(found->keys));
      log.info("has read the keys again");
    }
  }
  if (!given.tls.is_given()) return;
  Result<FoundTls> found = TlsContext::for_service(given.tls);
  if (!is_new(found, "certificates", log)) return;
  server.set_tls(std::move(found->context));
  log.info("has read the certificates again");
}

// Looks for munge. Called if there are neither keys nor certificates that agents must show.
Result<FoundMunge> find_munge_for(const Options& given, const HostPort& listening, Logger& log) {
  FoundMunge found = find_munge({.socket = given.munge_socket});
  if (const std::string open = exposure_of(listening, {}, found); !open.empty()) {
    if (given.require_auth) {
      return invalid_argument(open).within("--require-auth");
    }
    log.warning(open);
  } else if (!found.munge && is_named(given.munge_socket)) {
    log.warning("munge is not used: " + found.why_not);
  }
  if (!found.munge) return found;
  const UserId user = found.munge->user();
  log.info(concat("munge authenticates agents; agents of ",
                  user < kFirstUserOfPeople ? "all users" : "only user " + to_text(user),
                  " trust a service of user ", user));
  return found;
}

Result<DaemonService> serve(const Options& given, boost::asio::io_context& io, Logger& log,
                            DaemonSocket socket) {
  Result<FoundKeys> found = find_keys(given.key_file);
  if (!found) return std::move(found).error();
  if (!found->remark.empty()) log.warning(found->remark);
  FoundTls tls;
  if (given.tls.is_given()) {
    Result<FoundTls> made = TlsContext::for_service(given.tls);
    if (!made) return std::move(made).error();
    tls = std::move(*made);
  }
  if (!tls.remark.empty()) log.warning(tls.remark);
  const bool is_closed =
      !found->keys.empty() || (tls.context && tls.context->demands_certificates());
  const Result<FoundMunge> munge = is_closed ? FoundMunge{nullptr, "keys or certificates are used"}
                                             : find_munge_for(given, socket.address, log);
  if (!munge) return munge.error();
  std::optional<KeptState> kept;
  if (!given.state_directory.empty()) {
    Result<KeptState> opened = open_state(given.state_directory, log);
    if (!opened) return std::move(opened).error();
    kept = std::move(*opened);
  }
  ServiceOptions options{.times = given.times,
                         .host = host_name(),
                         .service_id = random_hex(8),
                         .calendar = std::chrono::system_clock::now().time_since_epoch() -
                                     BootClock::now().time_since_epoch()};
  // Without kept state, agents of an earlier service at this address may still come.
  const bool knows_its_past = kept && !kept->directory.is_new();
  if (!knows_its_past && !socket.port_is_new) {
    options.strangers_until = BootClock::now() + options.times.patience();
  }
  const auto server = RendezvousServer::make(io, log, std::move(options),
                                             std::move(socket.listener), std::move(kept));
  server->set_keys(std::move(found->keys));
  if (munge->munge) server->set_munge(munge->munge);
  server->set_tls(std::move(tls.context));
  server->start();
  DaemonService service{
      .service = server,
      .drain = [server](std::function<void()> then) { server->drain(std::move(then)); },
      .reload = {}};
  if (!given.key_file.empty() || given.tls.is_given()) {
    service.reload = [server, &given, &log] { reload(given, log, *server); };
  }
  return service;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Daemon daemon;
  daemon.name = kName;
  daemon.description =
      "Serves the rendezvous of jobs: agents (ddprun --rdzv-endpoint=HOST:PORT) join here and get "
      "their ranks.\nExample: ddp-rendezvous --listen '*:29400' --state-dir "
      "/var/lib/ddp-rendezvous";
  daemon.add_options = [&](CLI::App& app) { add_options(app, options); };
  daemon.instead = [&] { return print_read_token(options); };
  daemon.serve = [&](boost::asio::io_context& io, Logger& log, DaemonSocket socket) {
    return serve(options, io, log, std::move(socket));
  };
  return run_daemon(daemon, argc, argv);
}
