#include "rendezvous/http/entry.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "rendezvous/http/core/event_feed.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// How many bytes are read and ignored after the last answer. If the socket were closed with
// unread bytes, the kernel would reset the connection, and the peer would lose the answer.
constexpr std::size_t kMaxIgnoredBytes = 64 * 1024;

// Connection: one client. Its handlers keep it alive. `closed` tells them that HttpEntry has
// closed the connection or is destroyed.
struct Connection {
  Connection(TransportPtr from, HttpPages pages, std::size_t requests)
      : wire(std::move(from)),
        deadline(wire->socket().get_executor()),
        exchange(std::move(pages), requests) {}

  const TransportPtr wire;
  asio::steady_timer deadline;
  HttpExchange exchange;
  HttpAnswer sending;
  bool is_reading = false;
  bool is_sending = false;
  bool is_waiting = false;  // for a page that is made later
  bool closed = false;
  EventFeed::Reader reader = 0;  // 0: it is none
  std::size_t ignored_bytes = 0;
};
using ConnectionPtr = std::shared_ptr<Connection>;

}  // namespace

class HttpEntry::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(HttpPages pages, const HttpLimits& limits, MakeEdition make_edition)
      : pages_(std::move(pages)), limits_(limits), make_edition_(std::move(make_edition)) {}

  void adopt(TransportPtr wire, std::string_view first_bytes) {
    if (connections_.size() >= limits_.connections) close(longest_waited_for());
    const auto connection =
        std::make_shared<Connection>(wire, with_connection(pages_, *wire), limits_.requests);
    connections_.insert(connection);
    connection->exchange.append(first_bytes);
    begin_waiting(connection);
    serve(connection);
  }

  void stop() {
    for (const ConnectionPtr& connection : std::exchange(connections_, {})) release(*connection);
    close_readers();
  }

  void changed() {
    feed_.changed();
    arm_feed();
  }

  void show_last() {
    feed_.changed();
    feed_.hurry();
    take_turn();
  }

  void close_readers() {
    // The head of a stream may be in transit.
    std::erase_if(connections_, [](const ConnectionPtr& connection) {
      if (connection->sending.is_stream) release(*connection);
      return connection->sending.is_stream;
    });
    for (const auto& [reader, connection] : std::exchange(readers_, {})) {
      release(*connection);
      feed_.remove(reader);
    }
    forget_edition();
  }

  HttpCounters counters() const {
    HttpCounters now = counters_;
    now.connections = connections_.size() + readers_.size();
    return now;
  }

 private:
  // Adds to a request what only its connection knows.
  static HttpPages with_connection(HttpPages pages, Transport& wire) {
    return [pages = std::move(pages), encrypted = wire.is_tls(),
            peer = peer_address_of(wire.socket().native_handle())](HttpRequest request) {
      request.encrypted = encrypted;
      request.peer = peer.host();
      return pages(request);
    };
  }

  ConnectionPtr longest_waited_for() const {
    return *std::min_element(connections_.begin(), connections_.end(),
                             [](const ConnectionPtr& a, const ConnectionPtr& b) {
                               return a->deadline.expiry() < b->deadline.expiry();
                             });
  }

  void serve(const ConnectionPtr& connection) {
    try {
      auto answer = connection->exchange.next();
      if (!answer) return read(connection);
      if (answer->later) return wait_for_page(connection, answer->later);
      send(connection, std::move(*answer));
    } catch (const std::bad_alloc&) {
      close(connection);
    }
  }

  // The page has a deadline of its own. Meanwhile nothing is read, and other connections are closed
  // first.
  void wait_for_page(const ConnectionPtr& connection,
                     const std::function<void(const HttpFinish&)>& later) {
    connection->deadline.expires_at(std::chrono::steady_clock::time_point::max());
    connection->is_waiting = true;
    later([self = shared_from_this(), connection](const HttpPage& page) {
      if (connection->closed) return;
      connection->is_waiting = false;
      self->send(connection, connection->exchange.finish(page));
    });
  }

  void read(const ConnectionPtr& connection) {
    if (std::exchange(connection->is_reading, true)) return;
    connection->wire->read(
        [self = shared_from_this(), connection](const Result<std::string_view>& bytes) {
          if (connection->closed) return;
          connection->is_reading = false;
          if (!bytes) return self->close(connection);
          self->take(connection, *bytes);
        });
  }

  void take(const ConnectionPtr& connection, std::string_view bytes) {
    if (!connection->reader && connection->is_sending)
      return;  // the 408 answer is on its way: sent() reads on
    if (!connection->reader && !connection->sending.last) {
      connection->exchange.append(bytes);
      return serve(connection);
    }
    connection->ignored_bytes += bytes.size();
    if (connection->ignored_bytes > kMaxIgnoredBytes) return close(connection);
    read(connection);
  }

  void send(const ConnectionPtr& connection, HttpAnswer answer) {
    if (answer.is_stream && readers_.size() >= limits_.readers) {
      answer = connection->exchange.refuse(503, "too many pages are open: try again later");
    }
    ++counters_.answers[answer.status];
    connection->sending = std::move(answer);
    connection->is_sending = true;
    begin_waiting(connection);
    const HttpBody& body = connection->sending.body;
    connection->wire->write(
        {asio::buffer(connection->sending.head), body ? asio::buffer(*body) : asio::const_buffer()},
        [self = shared_from_this(), connection](const Result<void>& written) {
          if (connection->closed) return;
          if (!written) return self->close(connection);
          self->sent(connection);
        });
  }

  void sent(const ConnectionPtr& connection) {
    connection->is_sending = false;
    connection->sending.body.reset();
    if (connection->sending.is_stream) return begin_reading(connection);
    begin_waiting(connection);
    if (!connection->sending.last) return serve(connection);
    connection->wire->end_writing();
    read(connection);
  }

  // --- readers of events ------------------------------------------------------------------------

  void begin_reading(const ConnectionPtr& connection) {
    connection->deadline.cancel();
    if (readers_.size() >= limits_.readers) return close(connection);  // another one was faster
    connections_.erase(connection);
    connection->reader = ++last_reader_;
    readers_[connection->reader] = connection;
    enable_keepalive(connection->wire->socket().native_handle());
    if (const auto& feed = connection->sending.feed) {
      await_quiet(connection);
      feed->begin([weak = weak_from_this(), reader = std::weak_ptr(connection)] {
        const auto self = weak.lock();
        const ConnectionPtr to = reader.lock();
        if (self && to && !to->closed && !to->is_sending) self->send_of_feed(to);
      });
      return read(connection);
    }
    feed_.add(connection->reader);
    if (!feed_timer_) feed_timer_.emplace(connection->wire->socket().get_executor());
    arm_feed();
    read(connection);
  }

  // Sets the timer to the feed's deadline, unless it is set to an earlier time.
  void arm_feed() {
    const TimePoint now = BootClock::now();
    const std::optional<TimePoint> due = feed_.deadline(now);
    if (!due || (armed_ && *armed_ <= *due)) return;
    armed_ = *due;
    feed_timer_->expires_after(*due - now);
    feed_timer_->async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (error || !self) return;
      self->armed_.reset();
      self->take_turn();
    });
  }

  void take_turn() {
    const TimePoint begun = BootClock::now();
    const EventFeed::Turn turn = feed_.turn(begun);
    if (turn.make) {
      try {
        edition_ = make_edition_();
      } catch (const std::bad_alloc&) {
        return close_readers();
      }
      feed_.made(begun, BootClock::now(), edition_->size(), turn.to.size());
    }
    for (const EventFeed::Reader reader : turn.to) send_edition(readers_.at(reader));
    arm_feed();
  }

  void send_edition(const ConnectionPtr& connection) {
    send_events(connection, edition_, [this, connection] {
      feed_.idle(connection->reader);
      arm_feed();
    });
  }

  // Sends what the feed of this connection has.
  void send_of_feed(const ConnectionPtr& connection) {
    std::string events = connection->sending.feed->take();
    if (events.empty()) return await_quiet(connection);
    send_events(connection, body_of(std::move(events)),
                [this, connection] { send_of_feed(connection); });
  }

  // Sends a comment of an event stream when the feed was without news for limits_.quiet.
  void await_quiet(const ConnectionPtr& connection) {
    connection->deadline.expires_after(limits_.quiet);
    connection->deadline.async_wait([self = shared_from_this(), connection](error_code error) {
      const bool is_old = connection->deadline.expiry() > std::chrono::steady_clock::now();
      if (error || is_old || connection->closed || connection->is_sending) return;
      self->send_events(connection, body_of(": \n\n"),
                        [self, connection] { self->send_of_feed(connection); });
    });
  }

  void send_events(const ConnectionPtr& connection, HttpBody events, std::function<void()> then) {
    connection->sending.body = std::move(events);
    connection->is_sending = true;
    begin_waiting(connection);
    auto written = [self = shared_from_this(), connection,
                    then = std::move(then)](const Result<void>& result) {
      if (connection->closed) return;
      if (!result) return self->close(connection);
      connection->is_sending = false;
      connection->sending.body.reset();
      connection->deadline.cancel();
      then();
    };
    connection->wire->write({asio::buffer(*connection->sending.body)}, std::move(written));
  }

  void forget_edition() {
    if (readers_.empty()) edition_.reset();
  }

  // Starts the timeout for the whole next step, not for single bytes.
  void begin_waiting(const ConnectionPtr& connection) {
    connection->deadline.expires_after(limits_.patience);
    connection->deadline.async_wait([self = shared_from_this(), connection](error_code error) {
      const bool is_old = connection->deadline.expiry() > std::chrono::steady_clock::now();
      if (error || is_old || connection->closed) return;
      self->lose_patience(connection);
    });
  }

  void lose_patience(const ConnectionPtr& connection) {
    if (connection->is_waiting) return;                         // it was cancelled too late
    if (connection->reader && !connection->is_sending) return;  // it was cancelled too late
    if (connection->is_sending || connection->sending.last) return close(connection);
    if (!connection->exchange.has_begun()) return close(connection);
    send(connection, connection->exchange.refuse(408, "the rest of the request did not arrive"));
  }

  void close(const ConnectionPtr& connection) {
    release(*connection);
    connections_.erase(connection);
    if (!connection->reader) return;
    readers_.erase(connection->reader);
    feed_.remove(connection->reader);
    forget_edition();
  }

  static void release(Connection& connection) {
    connection.closed = true;
    connection.sending.feed.reset();
    connection.wire->close();
    connection.deadline.cancel();
  }

  HttpPages pages_;
  HttpLimits limits_;
  MakeEdition make_edition_;
  std::set<ConnectionPtr> connections_;
  std::map<EventFeed::Reader, ConnectionPtr> readers_;
  EventFeed::Reader last_reader_ = 0;
  EventFeed feed_;
  HttpBody edition_;  // the newest one; null: there is no reader
  std::optional<asio::steady_timer> feed_timer_;
  std::optional<TimePoint> armed_;
  HttpCounters counters_;
};

HttpEntry::HttpEntry(HttpPages pages, const HttpLimits& limits, MakeEdition make_edition)
    : impl_(std::make_shared<Impl>(std::move(pages), limits, std::move(make_edition))) {}

HttpEntry::~HttpEntry() { impl_->stop(); }

void HttpEntry::adopt(TransportPtr wire, std::string_view first_bytes) {
  impl_->adopt(std::move(wire), first_bytes);
}

void HttpEntry::changed() { impl_->changed(); }

void HttpEntry::show_last() { impl_->show_last(); }

void HttpEntry::close_readers() { impl_->close_readers(); }

HttpCounters HttpEntry::counters() const { return impl_->counters(); }

}  // namespace ddprun
