// ddp-rendezvous: the rendezvous service as a program of its own, for many jobs. A job then
// survives the loss of any of its nodes.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

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
#include "rendezvous/persistence/core/state_place.h"
#include "rendezvous/persistence/state_codec.h"
#include "rendezvous/protocol/core/handshake.h"
#include "rendezvous/service/daemon.h"
#include "rendezvous/service/server.h"

namespace {

using namespace ddprun;

constexpr const char* kName = "ddp-rendezvous";

struct Options {
  LeaseTimes times;
  std::string state;            // as --state has it; empty: none
  std::string state_directory;  // of --state-dir; empty: none
  std::string advertised;       // empty: where it listens
  std::string etcd_user;        // empty: none
  std::string etcd_password_file;
  TlsFiles etcd_tls{.options = "--etcd-"};
  std::string key_file;      // empty: none
  std::string munge_socket;  // empty: munge's own default
  TlsFiles tls;
  bool require_auth = false;
  bool print_read_token = false;
  bool print_write_token = false;
};

void add_options(CLI::App& app, Options& options) {
  const auto time_into = [](auto& time, const char* name, auto parse) {
    return [&time, name, parse](const std::string& text) {
      const Result<Duration> given = parse(text);
      if (!given) throw CLI::ValidationError(name, given.error().message());
      time = *given;
    };
  };
  app.add_option_function<std::string>("--lease",
                                       time_into(options.times.lease, "--lease", parse_lease),
                                       "A node that is silent for this time is lost; it ends its "
                                       "own workers after four fifths of the time")
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
  app.add_option("--state", options.state,
                 "Where the state is kept: a service that is killed and started again continues "
                 "with the same jobs, generations and budgets. dir:PATH: in a directory, which is "
                 "made if it does not exist. etcd://HOST:PORT,HOST:PORT,.../PREFIX: in etcd, for "
                 "several services of which one leads")
      ->type_name("URL");
  app.add_option("--state-dir", options.state_directory,
                 "The same as --state dir:DIR. If both are given, this one counts")
      ->type_name("DIR");
  app.add_option("--advertise", options.advertised,
                 "Where agents and the other services find this one, if it leads (default: the "
                 "address of --listen, or this host's name)")
      ->type_name("HOST:PORT");
  app.add_option("--etcd-user", options.etcd_user, "User of etcd, if it has users")
      ->type_name("NAME");
  app.add_option("--etcd-password-file", options.etcd_password_file,
                 "File with the user's password. Default: DDPRUN_ETCD_PASSWORD in the environment")
      ->type_name("FILE");
  app.add_option("--etcd-ca", options.etcd_tls.ca,
                 "Use TLS with etcd: the authority of its certificates, in PEM. system: those "
                 "that this system trusts. Read again at SIGHUP, like the next two files")
      ->type_name("FILE|system");
  app.add_option("--etcd-cert", options.etcd_tls.cert,
                 "Certificate to show to etcd, in PEM. With users of etcd it must have no CN")
      ->type_name("FILE");
  app.add_option("--etcd-key", options.etcd_tls.key, "Its private key, in PEM")->type_name("FILE");
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
  app.add_flag("--print-write-token", options.print_write_token,
               "Print the token for the buttons of the page (stop, restart, stacks), and exit. It "
               "works only over TLS");
}

// Returns where the state is kept; both members empty: nowhere.
Result<StatePlace> find_place(const Options& given) {
  if (given.state.empty()) return StatePlace{.directory = given.state_directory};
  Result<StatePlace> place = parse_state_place(given.state);
  if (!place) return std::move(place).error().within("--state");
  if (!given.state_directory.empty()) {
    if (place->directory.empty())
      return invalid_argument("names etcd, but --state-dir names a directory: give one of the two")
          .within("--state");
    place->directory = given.state_directory;
  }
  return place;
}

// Checks that options for etcd are given only with etcd, and completely.
Result<void> check_etcd_options(const Options& given, const StatePlace& place) {
  const std::pair<const char*, bool> options[] = {
      {"--advertise", !given.advertised.empty()},
      {"--etcd-user", !given.etcd_user.empty()},
      {"--etcd-password-file", !given.etcd_password_file.empty()},
      {"--etcd-ca", !given.etcd_tls.ca.empty()},
      {"--etcd-cert", !given.etcd_tls.cert.empty()},
      {"--etcd-key", !given.etcd_tls.key.empty()}};
  for (const auto& [name, is_given] : options) {
    if (is_given && place.etcd.empty()) {
      return invalid_argument("needs --state etcd://...").within(name);
    }
  }
  if (given.etcd_tls.is_given() && given.etcd_tls.ca.empty()) {
    return invalid_argument("needs --etcd-ca, which turns TLS on").within("--etcd-cert");
  }
  if (!given.etcd_password_file.empty() && given.etcd_user.empty()) {
    return invalid_argument("needs --etcd-user").within("--etcd-password-file");
  }
  return {};
}

// Returns the address at which others find this service.
Result<std::string> address_of(const Options& given, const HostPort& listening) {
  if (given.advertised.empty()) {
    const bool is_all = listening.host == "::" || listening.host == "0.0.0.0";
    return to_text(HostPort{is_all ? host_name() : listening.host, listening.port});
  }
  const Result<HostPort> address = parse_host_port(given.advertised);
  if (!address) return Error(address.error()).within("--advertise");
  if (address->host.empty() || address->port == 0) {
    return invalid_argument("invalid value '" + given.advertised + "' (expected HOST:PORT)")
        .within("--advertise");
  }
  return to_text(*address);
}

Result<EtcdStateOptions> find_etcd(const Options& given, const StatePlace& place,
                                   const HostPort& listening, Logger& log) {
  Result<std::string> address = address_of(given, listening);
  if (!address) return std::move(address).error();
  EtcdStateOptions options{.client = {.endpoints = place.etcd, .tls = nullptr},
                           .prefix = place.prefix,
                           .address = std::move(*address)};
  const Result<FoundPassword> password = find_etcd_password(given.etcd_password_file);
  if (!password) return password.error();
  if (!password->remark.empty()) log.warning(password->remark);
  options.client.user = given.etcd_user;
  options.client.password = password->password;
  if (!given.etcd_user.empty() && password->password.empty()) {
    return invalid_argument(concat("needs --etcd-password-file or ", kEtcdPasswordVariable))
        .within("--etcd-user");
  }
  if (!given.etcd_user.empty() && !given.etcd_tls.is_given()) {
    log.warning("--etcd-user without --etcd-ca: the password goes to etcd without encryption");
  }
  if (!given.etcd_tls.is_given()) return options;
  Result<FoundTls> tls = TlsContext::for_agent(given.etcd_tls);
  if (!tls) return std::move(tls).error();
  if (!tls->remark.empty()) log.warning(tls->remark);
  options.client.tls = std::move(tls->context);
  options.client.renew_tls = [files = given.etcd_tls] {
    Result<FoundTls> renewed = TlsContext::for_agent(files);
    return renewed ? std::move(renewed->context) : nullptr;
  };
  return options;
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

// Prints a token for the pages. Returns the exit code, or nullopt if it was not asked for.
std::optional<int> print_token(const Options& given) {
  if (!given.print_read_token && !given.print_write_token) return std::nullopt;
  const Result<FoundKeys> found = find_keys(given.key_file);
  if (!found) {
    return fail(kName, found.error(), usage_or(ExitCode::kFiles, found.error()));
  }
  const std::optional<Secret>& key = found->keys.for_every_job();
  if (!key) {
    return fail(kName,
                invalid_argument("needs a key for all jobs (--rdzv-key-file FILE)")
                    .within(given.print_read_token ? "--print-read-token" : "--print-write-token"),
                ExitCode::kUsage);
  }
  if (given.print_read_token) std::printf("%s\n", read_token_of(key->view()).c_str());
  if (given.print_write_token) std::printf("%s\n", write_token_of(key->view()).c_str());
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
  if (given.tls.is_given()) {
    Result<FoundTls> found = TlsContext::for_service(given.tls);
    if (is_new(found, "certificates", log)) {
      server.set_tls(std::move(found->context));
      log.info("has read the certificates again");
    }
  }
  if (given.etcd_tls.is_given()) {
    Result<FoundTls> found = TlsContext::for_agent(given.etcd_tls);
    if (is_new(found, "certificates for etcd", log)) {
      server.set_etcd_tls(std::move(found->context));
      log.info("has read the certificates for etcd again");
    }
  }
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
  const Result<StatePlace> place = find_place(given);
  if (!place) return place.error();
  if (const auto good = check_etcd_options(given, *place); !good) return good.error();
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
  if (!place->directory.empty()) {
    Result<KeptState> opened = open_state(place->directory, log);
    if (!opened) return std::move(opened).error();
    kept = std::move(*opened);
  }
  std::optional<EtcdStateOptions> etcd;
  if (!place->etcd.empty()) {
    Result<EtcdStateOptions> options = find_etcd(given, *place, socket.address, log);
    if (!options) return std::move(options).error();
    etcd = std::move(*options);
  }
  ServiceOptions options{.times = given.times, .host = host_name(), .service_id = random_hex(8)};
  // Without kept state, agents of an earlier service at this address may still come.
  const bool knows_its_past = kept && !kept->directory.is_new();
  if (!knows_its_past && !socket.port_is_new) {
    options.earlier_agents_until = BootClock::now() + options.times.patience();
  }
  const auto server = RendezvousServer::make(io, log, std::move(options),
                                             std::move(socket.listener), std::move(kept));
  server->set_keys(std::move(found->keys));
  if (munge->munge) server->set_munge(munge->munge);
  server->set_tls(std::move(tls.context));
  if (etcd) server->keep_in_etcd(std::move(*etcd));
  server->start();
  DaemonService service{
      .service = server,
      .drain = [server](std::function<void()> then) { server->drain(std::move(then)); },
      .reload = {}};
  if (!given.key_file.empty() || given.tls.is_given() || given.etcd_tls.is_given()) {
    service.reload = [server, &given, &log] { reload(given, log, *server); };
  } else if (std::getenv("NOTIFY_SOCKET")) {
    // `systemctl reload` must not end the service. systemd would not start it again.
    service.reload = [&log] {
      log.info("SIGHUP: this service has no keys or certificates to read again");
    };
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
  daemon.instead = [&] { return print_token(options); };
  daemon.serve = [&](boost::asio::io_context& io, Logger& log, DaemonSocket socket) {
    return serve(options, io, log, std::move(socket));
  };
  return run_daemon(daemon, argc, argv);
}
