// HttpEntry: the HTTP connections of a server that has others, too.
//
// The Asio shell around HttpExchange: it reads, lets it decide, and sends. One thread, the one that
// runs the io_context, calls everything and does everything; nothing blocks it, and what one
// connection does harms no other: their number, the requests of each, what is held for it, and the
// time it may take are bounded (HttpLimits). Nothing is logged: probes and strangers come often.
#pragma once

#include <memory>
#include <string_view>

#include "base/clock.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/store/core/counters.h"
#include "rendezvous/transport/transport.h"

namespace ddprun {

struct HttpLimits {
  // At once; one more, and the one is closed that has been waited for longest, so that nobody can
  // keep a probe out by holding connections. For each one answer is held at most.
  std::size_t connections = 32;
  std::size_t requests = 100;  // of one connection
  // For a whole request to come, for an answer to be taken, and for a peer to go after the last.
  Duration patience = std::chrono::seconds(10);
};

class HttpEntry {
 public:
  // pages: called on the thread of the sockets' io_context.
  explicit HttpEntry(HttpPages pages, const HttpLimits& limits = {});
  // Closes every connection at once; `pages` is not called any more.
  ~HttpEntry();

  // Takes over a connection, with the plain bytes that were read from it. Over TLS it is https.
  void adopt(TransportPtr wire, std::string_view first_bytes);

  HttpCounters counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
