// ddp-store: one store as a program of its own, for jobs that are started by other means and
// for tests.
#include <CLI/CLI.hpp>

#include "base/parse_number.h"
#include "rendezvous/service/daemon.h"
#include "rendezvous/store/server.h"

namespace {

using namespace ddprun;

struct LimitOption {
  const char* name;
  std::size_t& limit;
  const char* what;
};

// Converts a size with a unit to a plain number. Returns what is wrong with the text, or an
// empty string.
std::string read_size(std::string& text) {
  constexpr double kMost = std::size_t{1} << 40;
  const std::string given = text;
  try {
    const std::string wrong = CLI::AsSizeValue(false)(text);
    const auto size = parse_number<double>(text);
    if (wrong.empty() && size && *size >= 1 && *size <= kMost) return "";
  } catch (const CLI::ValidationError&) {  // an unknown unit
  }
  return "invalid value '" + given + "' (expected a size from 1 to 1TiB, such as 1000 or 64MiB)";
}

void add_limits(CLI::App& app, StoreServerOptions& options) {
  const LimitOption limits[] = {
      {"--max-key-bytes", options.request.key_bytes, "Of one key"},
      {"--max-value-bytes", options.request.value_bytes, "Of one value in a request"},
      {"--max-keys", options.request.keys, "Keys in one request"},
      {"--max-request-bytes", options.request.request_bytes, "Of one request"},
      {"--max-reply-bytes", options.state.reply_bytes,
       "Of one reply; this and 256 KiB are held for a client that does not read"},
      {"--max-held-bytes", options.state.held_bytes,
       "Of all that the store holds, not counting up to twice --max-request-bytes for each client "
       "whose request is not complete"},
      {"--max-connections", options.connections, "Clients at a time"},
  };
  for (const LimitOption& one : limits) {
    app.add_option(one.name, one.limit, one.what)
        ->type_name("SIZE")
        ->transform(CLI::Validator(&read_size, ""))
        ->capture_default_str()
        ->group("Limits: numbers, or sizes such as 64MiB. A connection that exceeds one is closed");
  }
}

void add_options(CLI::App& app, StoreServerOptions& options) {
  app.add_option_function<std::string>(
         "--legacy-dialect",
         [&options](const std::string& name) {
           const auto dialect = parse_enum(kLegacyDialectWords, name);
           if (!dialect)
             throw CLI::ValidationError("--legacy-dialect",
                                        "invalid value '" + name + "' (expected l1 or l2)");
           options.legacy_dialect = *dialect;
         },
         "Protocol of clients older than PyTorch 2.2: l1 (up to 2.0) or l2 (2.1)")
      ->type_name("DIALECT")
      ->default_str(std::string(enum_name(kLegacyDialectWords, options.legacy_dialect)));
  app.add_option_function<std::string>(
         "--store-allow",
         [&options](const std::string& networks) {
           const auto allowed = AddressSet::parse(networks);
           if (!allowed) throw CLI::ValidationError("--store-allow", allowed.error().cause);
           options.allow = *allowed;
         },
         "Addresses and networks that may connect, besides this host: 10.1.0.0/16,fd00::/8 "
         "(default: all)")
      ->type_name("NET,...");
}

}  // namespace

int main(int argc, char** argv) {
  StoreServerOptions options;
  Daemon daemon;
  daemon.name = "ddp-store";
  daemon.description =
      "Serves one key-value store that speaks PyTorch's TCPStore protocol.\n"
      "Example: ddp-store --listen 127.0.0.1:29500";
  daemon.add_options = [&](CLI::App& app) {
    add_options(app, options);
    add_limits(app, options);
  };
  daemon.serve = [&](boost::asio::io_context& io, Logger& log,
                     DaemonSocket socket) -> Result<DaemonService> {
    auto server = std::make_shared<StoreServer>(io, log, std::move(socket.listener), options);
    server->start();
    return DaemonService{.service = server, .drain = {}};
  };
  return run_daemon(daemon, argc, argv);
}
