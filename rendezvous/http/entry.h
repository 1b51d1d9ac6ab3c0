// HttpEntry: the HTTP connections of a server that also has connections of other protocols.
//
// It is the Asio shell around HttpExchange: it reads, lets HttpExchange decide, and sends. One
// thread, which runs the io_context, makes all calls and does all work. Nothing blocks it. One
// connection does not disturb another. HttpLimits bounds the number of connections, the
// requests, the memory and the time of each. Nothing is logged, because probes and unknown
// clients connect often.
//
// A page with is_stream makes its connection a reader: it is sent the editions of the status as
// events until it closes. EventFeed (core/event_feed.h) decides when. All readers share the bytes
// of an edition. A page with `feed` makes its connection a reader of that feed instead. A reader
// that does not take what it is sent within `patience` is closed.
#pragma once

#include <functional>
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
  std::size_t readers = 64;    // of events, in addition to `connections`; one more gets a 503
  // The timeout for a whole request to arrive, for an answer to be read, and for the peer to
  // close after the last answer.
  Duration patience = std::chrono::seconds(10);
  // A reader of a feed without news is sent a comment after this time. So `patience` and the kernel
  // find a reader that is gone.
  Duration quiet = std::chrono::seconds(15);
};

// Makes the newest edition, in the form of event_text().
using MakeEdition = std::function<HttpBody()>;

class HttpEntry {
 public:
  // Both functions are called on the thread of the sockets' io_context. `make_edition` may be null
  // if no page is a stream.
  explicit HttpEntry(HttpPages pages, const HttpLimits& limits = {},
                     MakeEdition make_edition = nullptr);
  // Closes every connection at once. `pages` is not called afterwards.
  ~HttpEntry();

  // Takes over a connection with the decrypted bytes that were already read from it. Over TLS
  // it is https.
  void adopt(TransportPtr wire, std::string_view first_bytes);

  // Reports that a new edition would differ. Costs little.
  void changed();
  // Makes an edition now, and begins to send it to all readers that are not busy. It arrives also
  // if the process ends then, unless it is larger than the socket's buffer.
  void show_last();
  // Closes the connections of all readers. Their pages connect again, and are checked again.
  void close_readers();

  HttpCounters counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
