#include "rendezvous/store/server.h"

#include <malloc.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <new>
#include <unordered_map>

#include "base/concat.h"
#include "base/random_id.h"
#include "base/usable_cpus.h"
#include "rendezvous/net/connection_owner.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// After this many bytes of replies, or this many requests, a connection yields to the others.
// For a client that does not read, at most these bytes and one value are held.
constexpr std::size_t kTurnBytes = 256 * 1024;
constexpr int kTurnRequests = 256;

constexpr int kLogLines = 10;
constexpr auto kLogPeriod = std::chrono::seconds(10);

// One client. Its handlers keep it alive. `closed` tells them that the server has closed it or
// is gone.
struct Connection {
  Connection(StoreConnectionId number, tcp::socket from, const SocketAddress& address,
             const StoreServerOptions& options)
      : id(number),
        socket(std::move(from)),
        peer(address),
        parser(options.request, options.legacy_dialect) {}

  StoreConnectionId id;
  tcp::socket socket;
  SocketAddress peer;
  RequestParser parser;
  const Request* request = nullptr;  // the one that is being performed
  KvState::Progress progress;        // of that request
  ByteBuffer unsent;
  bool stalled = false;  // not served before `unsent` has been sent
  bool closed = false;
};
using ConnectionPtr = std::shared_ptr<Connection>;

}  // namespace

class StoreServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, Warn warn, const StoreServerOptions& options)
      : io_(io),
        log_([warn = std::move(warn)](LogLevel, const std::string& text) { warn(text); }, kLogLines,
             kLogPeriod),
        options_(options),
        state_(options.state, random_hex(kIdentityBytes / 2)) {
    // With one CPU, polling would keep the clients on this host from running.
    if (usable_cpus().size() == 1) options_.alertness = Duration(0);
    // By default, glibc keeps freed small chunks in lists of their own, and joins them all at
    // once when a large chunk is freed. After a hundred thousand keys that takes 12 ms. This
    // setting is for the whole process. Chunks that a thread freed last are still reused
    // quickly.
    if (options_.owns_process) mallopt(M_MXFAST, 0);
  }

  // The acceptor is a member; it ends with this object or at stop().
  void listen_on(UniqueFd listener) {
    acceptor_.emplace(
        io_, std::move(listener),
        TcpAcceptorEvents{
            .client = [this](tcp::socket socket,
                             const SocketAddress& peer) { add(std::move(socket), peer, {}); },
            .cannot_accept = [this](const std::string& why) { log_.warning("store: " + why); }});
  }

  void start() {
    if (acceptor_) acceptor_->open();
  }

  void add(tcp::socket socket, const SocketAddress& peer, std::string_view initial_bytes) {
    if (options_.allow && !is_loopback_address(peer) && !options_.allow->contains(peer)) {
      return note(peer, {Refusal::kNotAllowed,
                         "not an address of a node of this job, and not in --store-allow"});
    }
    if (const std::string why = why_not_this_user(socket, peer); !why.empty()) {
      return note(peer, {Refusal::kNotAllowed, why});
    }
    if (connections_.size() >= options_.connections) {
      return note(peer, {Refusal::kTooManyConnections,
                         concat("at most ", options_.connections, " connections are served")});
    }
    error_code ignored;  // a dead socket reports its error at the next read
    socket.non_blocking(true, ignored);
    const StoreConnectionId id(next_id_++);
    const auto connection = std::make_shared<Connection>(id, std::move(socket), peer, options_);
    connections_.emplace(id.value, connection);
    ++counters_.accepted;
    connection->parser.feed(initial_bytes);
    counters_.bytes_received += initial_bytes.size();
    serve(connection);
  }

  void stop() {
    acceptor_.reset();
    for (const auto& [id, connection] : connections_) {
      connection->closed = true;
      error_code ignored;
      connection->socket.close(ignored);
    }
    connections_.clear();
  }

  StoreCounters counters() const {
    StoreCounters now = counters_;
    now.connections = connections_.size();
    now.waiting = state_.parked_count();
    now.keys = state_.key_count();
    now.held_bytes = state_.held_bytes();
    return now;
  }

 private:
  // Returns why the client may not connect; empty: it may.
  std::string why_not_this_user(tcp::socket& socket, const SocketAddress& peer) const {
    if (!options_.this_user_only) return "";
    return ddprun::why_not_this_user("store", peer, local_address_of(socket.native_handle()));
  }

  // --- one connection: read, serve, and again ---

  // Reads only from a connection that has taken all its replies. So a client that has closed its
  // sending side still gets its answers. But its wait is dropped: most likely the client is
  // dead, and must not get a queue item that another client needs.
  void read(const ConnectionPtr& connection) {
    const std::span<char> space = connection->parser.space();
    connection->socket.async_read_some(
        asio::buffer(space.data(), space.size()),
        [this, connection](const error_code& error, std::size_t count) {
          if (connection->closed) return;
          if (error) return close(connection);
          connection->parser.commit(count);
          counters_.bytes_received += count;
          serve(connection);
          stay_alert();
        });
  }

  // Polls for the next request. Other clients are served as usual in the meantime.
  void stay_alert() {
    if (options_.alertness == Duration(0)) return;
    alert_until_ = BootClock::now() + options_.alertness;
    if (!std::exchange(is_alert_, true)) look_again();
  }
  void look_again() {
    later([this] {
      is_alert_ = BootClock::now() < alert_until_;
      if (is_alert_) look_again();
    });
  }

  // Calls `then` in a later turn of the loop, if this object still exists.
  template <class Then>
  void later(Then then) {
    asio::post(io_, [weak = weak_from_this(), then = std::move(then)] {
      if (const auto self = weak.lock()) then();
    });
  }

  void serve(const ConnectionPtr& connection) {
    try {
      if (serve_turn(connection)) read(connection);
    } catch (const std::bad_alloc&) {
      // The incomplete reply is that of this connection; the replies to others are complete.
      connection->request = nullptr;
      if (!connection->closed) refuse(connection, {Refusal::kOutOfMemory, "out of memory"});
      deliver();
    }
  }

  // Performs requests that have come, or a slice of one. Returns false if the connection is
  // closed or continues later.
  bool serve_turn(const ConnectionPtr& connection) {
    int requests = 0;
    while (const Request* request = next_request(connection)) {
      const auto refusal = state_.handle(connection->id, *request, connection->progress, replies_);
      const bool done = refusal || connection->progress.done();
      if (done && !refusal) notify_if_watched(*request);
      if (done) connection->request = nullptr;
      if (done && !refusal && replies_.bytes() < kTurnBytes && ++requests < kTurnRequests) continue;
      deliver();
      if (must_go_on(connection)) return serve_later(connection);
      if (connection->closed) return false;
      if (refusal) return refuse(connection, *refusal);
      return !stall(connection) && serve_later(connection);
    }
    heed_silent_cancel(connection);
    deliver();
    if (connection->closed) return false;
    if (const auto& refusal = connection->parser.refusal()) return refuse(connection, *refusal);
    return !stall(connection);
  }

  const Request* next_request(const ConnectionPtr& connection) {
    if (connection->request) return connection->request;
    if (connection->closed) return nullptr;
    connection->request = connection->parser.next();
    if (!connection->request) return nullptr;
    connection->progress = {};
    ++counters_.requests[static_cast<std::size_t>(connection->request->command)];
    heed_silent_cancel(connection);
    return connection->request;
  }

  void notify_if_watched(const Request& request) {
    if (request.command != Command::kSet || !options_.watched_key_set) return;
    if (request.key() == options_.watched_key) options_.watched_key_set();
  }

  // Returns true if a MULTI_SET or a long SET has begun. It is performed to its end, even if its
  // client does not read or is gone.
  static bool must_go_on(const ConnectionPtr& connection) {
    return connection->request && connection->progress.must_go_on();
  }

  void heed_silent_cancel(const ConnectionPtr& connection) {
    if (connection->parser.gives_up_wait()) state_.give_up_wait(connection->id);
  }

  // Stops serving a client that does not take its replies; flush() resumes it.
  static bool stall(const ConnectionPtr& connection) {
    return connection->stalled = !connection->unsent.empty();
  }

  bool serve_later(const ConnectionPtr& connection) {
    later([this, connection] {
      work();  // otherwise many connections that continue would pile up work
      if (!connection->closed || must_go_on(connection)) serve(connection);
    });
    return false;
  }

  // Schedules deferred work between the turns of the connections.
  void work_later() {
    if (is_working_ || !state_.has_work()) return;
    is_working_ = true;
    later([this] {
      is_working_ = false;
      work();
    });
  }

  void work() {
    try {
      state_.work(replies_);
    } catch (const std::bad_alloc&) {
      // It continues there later, after other clients were served.
    }
    deliver();
  }

  // --- sending ---

  void deliver() {
    for (std::size_t i = 0; i < replies_.pieces(); ++i) {
      const Replies::Piece piece = replies_.piece(i);
      const auto found = connections_.find(piece.to.value);
      if (found != connections_.end()) send(ConnectionPtr(found->second), piece.bytes);
    }
    replies_.clear();
    work_later();
  }

  void send(const ConnectionPtr& connection, std::string_view bytes) {
    if (connection->unsent.empty() && !write(connection, bytes)) return;
    if (bytes.empty()) return;
    const bool is_flushing = !connection->unsent.empty();
    try {
      connection->unsent.append(bytes);
    } catch (const std::bad_alloc&) {
      refuse(connection, {Refusal::kOutOfMemory, "out of memory"});
      return;
    }
    if (!is_flushing) flush_when_writable(connection);
  }

  // Writes what the socket takes at once and removes it from `bytes`. Returns false if the
  // connection is broken.
  bool write(const ConnectionPtr& connection, std::string_view& bytes) {
    error_code error;
    const std::size_t sent =
        connection->socket.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    if (error && error != asio::error::would_block) {
      close(connection);
      return false;
    }
    counters_.bytes_sent += sent;
    bytes.remove_prefix(sent);
    return true;
  }

  void flush_when_writable(const ConnectionPtr& connection) {
    connection->socket.async_wait(tcp::socket::wait_write,
                                  [this, connection](const error_code& error) {
                                    if (connection->closed) return;
                                    if (error) return close(connection);
                                    flush(connection);
                                  });
  }

  void flush(const ConnectionPtr& connection) {
    std::string_view rest = connection->unsent.bytes();
    if (!write(connection, rest)) return;
    connection->unsent.consume(connection->unsent.size() - rest.size());
    if (!connection->unsent.empty()) return flush_when_writable(connection);
    if (std::exchange(connection->stalled, false)) serve(connection);
  }

  // --- ending ---

  bool refuse(const ConnectionPtr& connection, const Refusal& refusal) {
    note(connection->peer, refusal);
    close(connection);
    return false;
  }

  void note(const SocketAddress& peer, const Refusal& refusal) {
    ++counters_.refusals[refusal.kind];
    log_.warning(concat("store: closed the connection of ", peer, ": ", refusal.reason));
  }

  void close(const ConnectionPtr& connection) {
    connection->closed = true;
    error_code ignored;
    connection->socket.close(ignored);
    state_.give_up_wait(connection->id);
    work_later();
    connections_.erase(connection->id.value);
  }

  asio::io_context& io_;
  LimitedLog log_;
  StoreServerOptions options_;
  KvState state_;
  Replies replies_;
  bool is_working_ = false;  // work_later() has scheduled work
  bool is_alert_ = false;    // the loop polls instead of sleeping
  TimePoint alert_until_;
  std::optional<TcpAcceptor> acceptor_;
  std::unordered_map<std::uint64_t, ConnectionPtr> connections_;
  std::uint64_t next_id_ = 1;
  StoreCounters counters_;
};

StoreServer::StoreServer(asio::io_context& io, Warn warn, UniqueFd listener,
                         const StoreServerOptions& options)
    : impl_(std::make_shared<Impl>(io, std::move(warn), options)) {
  if (listener.valid()) impl_->listen_on(std::move(listener));
}

StoreServer::~StoreServer() { stop(); }

void StoreServer::start() { impl_->start(); }

void StoreServer::adopt(tcp::socket socket, std::string_view initial_bytes) {
  const SocketAddress peer = peer_address_of(socket.native_handle());
  impl_->add(std::move(socket), peer, initial_bytes);
}

void StoreServer::stop() { impl_->stop(); }

StoreCounters StoreServer::counters() const { return impl_->counters(); }

}  // namespace ddprun
