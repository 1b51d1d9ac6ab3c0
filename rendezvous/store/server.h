// StoreServer: the key-value store of one generation on TCP (docs/wire_protocol.md, "The store").
//
// The Asio shell around RequestParser and KvState: it reads, lets them decide, and sends. One
// thread, the one that runs the io_context, calls everything and does everything; nothing blocks
// it. Whatever one client does (half a request, reading nothing, nonsense), the others do not
// notice: a bad request and one past a limit close that connection only, with at most one line in
// the log, and a count. A client that does not read its replies is not served until it does: no more than
// one reply (KvLimits::reply_bytes) and 256 KiB are held for it.
//
// A client that is silent, from its first moment or later, is never timed out: the second socket of
// PyTorch up to 2.0 stays idle, and its thread spins when the server closes it.
//
// Peers are named by their numeric address; no name is ever looked up. The protocol knows no keys:
// who may connect may read and write every key. So who may connect can be bounded: by address
// (`allow`; from loopback one always may), and on this host by user (`this_user_only`).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "rendezvous/net/address_set.h"
#include "rendezvous/store/core/counters.h"
#include "rendezvous/store/core/kv_state.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun {

struct StoreServerOptions {
  Dialect legacy_dialect = Dialect::kL1;  // of connections without a handshake (RequestParser)
  RequestLimits request;
  KvLimits state;
  std::size_t connections = 65536;
  std::optional<AddressSet> allow =
      std::nullopt;  // whose connections are taken; nullopt: everyone's
  // Of connections from this host, those of this user's processes and of root's only
  // (rendezvous/net/connection_owner.h). One whose owner cannot be told is closed.
  bool this_user_only = false;
  // For so long after a request the loop looks for the next one without sleeping, unless there is
  // only one CPU: most clients ask again as soon as they have their answer, and to be woken takes a
  // third of the time of a request. Zero: it sleeps at once.
  Duration alertness = std::chrono::microseconds(50);
  // Called after each SET of this key, as it is on the wire, from within the io_context's work;
  // must not destroy the server. Without a function nothing is watched.
  std::string watched_key;
  std::function<void()> watched_key_set;
  // The process is there for the store, which may set how all of it takes memory.
  bool owns_process = true;
};

class StoreServer {
 public:
  // listener: a socket that listens already (listen_tcp); an invalid one: none. Nothing is accepted
  // before start(): until then clients that connect wait in the backlog. warn: is told, on the
  // io_context's thread, what is worth a line in a log. io, and what warn uses, outlive the server.
  using Warn = std::function<void(const std::string& text)>;
  StoreServer(boost::asio::io_context& io, Warn warn, UniqueFd listener = {},
              const StoreServerOptions& options = {});
  StoreServer(boost::asio::io_context& io, Logger& log, UniqueFd listener = {},
              const StoreServerOptions& options = {})
      : StoreServer(
            io, [&log](const std::string& text) { log.warning(text); }, std::move(listener),
            options) {}
  // Stops.
  ~StoreServer();

  // Accepts clients from now on, those first who wait in the backlog. To be called once; returns at
  // once, the clients are served by the io_context.
  void start();

  // Takes over a connection of the same io_context that somebody else has accepted, with the bytes
  // that were read from it.
  void adopt(boost::asio::ip::tcp::socket socket, std::string_view initial_bytes);

  // Closes the listener and every connection, at once. Nothing is sent or answered any more.
  void stop();

  StoreCounters counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
