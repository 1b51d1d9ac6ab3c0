// HttpEntry: the HTTP connections of a server that also has connections of other protocols.
//
// It is the Asio shell around HttpExchange: it reads, lets HttpExchange decide, and sends. One
// thread, which runs the io_context, makes all calls and does all work. Nothing blocks it. One
// connection does not disturb another. HttpLimits bounds the number of connections, the
// requests, the memory and the time of each. Nothing is logged, because probes and unknown
// clients connect often.
#pragma once

#include <memory>
#include <string_view>

#include "base/clock.h"
#include "rendezvous/http/core/counters.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/transport/transport.h"

namespace ddprun {

struct HttpLimits {
  // Connections at a time. One more closes the connection that has been waited for longest, so
  // that held connections cannot keep a probe out. At most one answer is held for each
  // connection.
  std::size_t connections = 32;
  std::size_t requests = 100;  // per connection
  // The timeout for a whole request to arrive, for an answer to be read, and for the peer to
  // close after the last answer.
  Duration patience = std::chrono::seconds(10);
};

class HttpEntry {
 public:
  // pages: called on the thread of the sockets' io_context.
  explicit HttpEntry(HttpPages pages, const HttpLimits& limits = {});
  // Closes every connection at once. `pages` is not called afterwards.
  ~HttpEntry();

  // Takes over a connection with the decrypted bytes that were already read from it. Over TLS
  // it is https.
  void adopt(TransportPtr wire, std::string_view first_bytes);

  HttpCounters counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
