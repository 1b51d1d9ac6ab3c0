// StoreServer: the key-value store of one generation on TCP (docs/reference/wire_protocol.md, "The
// store").
//
// It is the Asio part around RequestParser and KvState: it reads, lets them decide, and sends.
// The one thread that runs the io_context calls everything and does everything; nothing blocks
// it.
//
// No client can disturb the others, whether it sends half a request, reads nothing or sends
// garbage. A bad request, or one beyond a limit, closes only that connection. This makes at most
// one line in the log, and is counted. A client that does not read its replies is not served
// until it does. At most one reply (KvLimits::reply_bytes) and 256 KiB are held for it.
//
// A silent client never times out. The second socket of PyTorch up to 2.0 stays idle, and its
// thread spins if the server closes it.
//
// Log lines have numeric addresses of peers; names are never looked up. The protocol has no
// authentication: every client may read and write every key. Clients can therefore be restricted
// by address (`allow`, which always includes loopback) and, on this host, by user
// (`this_user_only`).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
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
  Dialect legacy_dialect = Dialect::kL1;  // for connections without a handshake (RequestParser)
  RequestLimits request;
  KvLimits state;
  std::size_t connections = 65536;
  std::optional<AddressSet> allow = std::nullopt;  // addresses that may connect; nullopt: all
  // Accepts from this host only connections of this user's and of root's processes
  // (rendezvous/net/connection_owner.h). A connection whose owner cannot be determined is
  // closed.
  bool this_user_only = false;
  // For this long after a request, the loop polls for the next one instead of sleeping, unless
  // there is only one CPU. Most clients send their next request as soon as they have the answer,
  // and waking up takes a third of the time of a request. Zero: it always sleeps.
  Duration alertness = std::chrono::microseconds(50);
  // The key as it is on the wire. After each SET of it watched_key_set is called, within the
  // io_context's work. The function must not destroy the server. Without a function no key is
  // watched.
  std::string watched_key;
  std::function<void()> watched_key_set;
  // The process exists for the store. The store may then change malloc settings of the whole
  // process.
  bool owns_process = true;
};

class StoreServer {
 public:
  // listener: a listening socket (listen_tcp), or an invalid one for none. The server accepts
  // nothing before start(): until then clients wait in the backlog. warn: is called on the
  // io_context's thread with text for the log. io, and what warn uses, must outlive the server.
  using Warn = std::function<void(const std::string& text)>;
  StoreServer(boost::asio::io_context& io, Warn warn, UniqueFd listener = {},
              const StoreServerOptions& options = {});
  StoreServer(boost::asio::io_context& io, Logger& log, UniqueFd listener = {},
              const StoreServerOptions& options = {})
      : StoreServer(
            io, [&log](const std::string& text) { log.warning(text); }, std::move(listener),
            options) {}
  // Calls stop().
  ~StoreServer();

  // Begins to accept clients, first those in the backlog. May be called once. Returns at once;
  // the io_context serves the clients.
  void start();

  // Takes over a connection that was accepted elsewhere on the same io_context, with the bytes
  // that were already read from it.
  void adopt(boost::asio::ip::tcp::socket socket, std::string_view initial_bytes);

  // Closes the listener and all connections at once. Nothing is sent or answered after it.
  void stop();

  StoreCounters counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
