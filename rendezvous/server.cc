#include "rendezvous/server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <map>
#include <optional>

#include "rendezvous/control_codec.h"
#include "rendezvous/store_server.h"
#include "rendezvous/tcp_address.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// One agent on TCP. Lives as long as an operation of its socket does.
struct Session : std::enable_shared_from_this<Session> {
  Session(tcp::socket the_socket, ConnectionId number)
      : socket(std::move(the_socket)), id(number), hello_timer(socket.get_executor()) {}

  tcp::socket socket;
  ConnectionId id;
  asio::steady_timer hello_timer;
  std::string peer;             // numeric
  std::string service_address;  // our end, numeric
  std::array<char, 4096> buffer;
  FrameReader frames;
  std::string unsent;
  std::string sending;
  bool identified = false;  // its first byte was read: it is an agent
  bool close_when_sent = false;
};
using SessionPtr = std::shared_ptr<Session>;

}  // namespace

class RendezvousServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, Logger& log, ServiceOptions options, std::vector<UniqueFd> listeners)
      : io_(io), log_(log), quiet_(options.embedded), table_(std::move(options)), timer_(io) {
    for (UniqueFd& listener : listeners) {
      const bool v6 = local_address_of(listener.get()).family() == AF_INET6;
      acceptors_.emplace_back(io, v6 ? tcp::v6() : tcp::v4(), listener.release());
    }
  }

  void start() {
    for (tcp::acceptor& acceptor : acceptors_) accept(acceptor);
  }

  void stop() {
    stopped_ = true;
    error_code ignored;
    for (tcp::acceptor& acceptor : acceptors_) acceptor.close(ignored);
    timer_.cancel();
    for (auto& [id, session] : sessions_) {
      session->socket.close(ignored);
      session->hello_timer.cancel();
    }
    sessions_.clear();
    locals_.clear();
    store_ = nullptr;
  }

  // --- agents in this process -----------------------------------------------------------------

  ConnectionId attach(std::function<void(const ServiceMessage&)> deliver) {
    const ConnectionId id = next_id_++;
    locals_[id] = std::make_shared<std::function<void(const ServiceMessage&)>>(std::move(deliver));
    return id;
  }

  void receive_local(ConnectionId id, const AgentMessage& message) {
    perform(table_.receive({.connection = id, .local = true, .service_address = {}}, message,
                           BootClock::now()));
  }

  void detach(ConnectionId id) {
    locals_.erase(id);
    gone(id);
  }

  void share_port_with(StoreServer* store) { store_ = store; }

  void when_idle(std::function<void()> then) {
    when_idle_ = std::move(then);
    check_idle();
  }

  const JobTable& jobs() const { return table_; }

 private:
  void accept(tcp::acceptor& acceptor) {
    acceptor.async_accept(
        [self = shared_from_this(), &acceptor](error_code error, tcp::socket socket) {
          if (self->stopped_) return;
          if (error) {
            // Out of descriptors, most likely: others must end before there is room.
            self->log_.warning("cannot accept a connection: " + error.message());
            self->accept_later(acceptor);
            return;
          }
          self->welcome(std::move(socket));
          self->accept(acceptor);
        });
  }

  void accept_later(tcp::acceptor& acceptor) {
    auto pause = std::make_shared<asio::steady_timer>(io_, std::chrono::milliseconds(100));
    pause->async_wait([self = shared_from_this(), &acceptor, pause](error_code) {
      if (!self->stopped_) self->accept(acceptor);
    });
  }

  void welcome(tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    auto session = std::make_shared<Session>(std::move(socket), next_id_++);
    session->peer = to_text(peer_address_of(session->socket.native_handle()));
    session->service_address = local_address_of(session->socket.native_handle()).host();
    sessions_[session->id] = session;
    session->hello_timer.expires_after(kHelloTimeout);
    session->hello_timer.async_wait([self = shared_from_this(), session](error_code error) {
      if (error || !self->sessions_.contains(session->id)) return;
      self->drop(session, "no hello within " + to_text(kHelloTimeout));
    });
    read(session);
  }

  void read(const SessionPtr& session) {
    session->socket.async_read_some(
        asio::buffer(session->buffer),
        [self = shared_from_this(), session](error_code error, std::size_t size) {
          if (self->stopped_ || !self->sessions_.contains(session->id)) return;
          if (error) return self->drop(session, "");
          self->take(session, std::string_view(session->buffer.data(), size));
        });
  }

  void take(const SessionPtr& session, std::string_view bytes) {
    if (!session->identified && bytes.front() != kControlMagic.front()) {
      return hand_over(session, bytes);
    }
    session->identified = true;
    session->frames.append(bytes);
    while (sessions_.contains(session->id)) {
      const auto frame = session->frames.next();
      if (!frame) return drop(session, frame.error().message());
      if (!*frame) break;
      const Result<AgentMessage> message = decode_agent_message(**frame);
      if (!message) return drop(session, message.error().message());
      session->hello_timer.cancel();
      perform(table_.receive(
          {.connection = session->id, .local = false, .service_address = session->service_address},
          *message, BootClock::now()));
    }
    if (sessions_.contains(session->id)) read(session);
  }

  // A connection that is no agent's: in static mode a client of the store.
  void hand_over(const SessionPtr& session, std::string_view bytes) {
    if (!store_) return drop(session, "it speaks no control protocol");
    sessions_.erase(session->id);
    session->hello_timer.cancel();
    store_->adopt(std::move(session->socket), bytes);
  }

  void perform(ServiceOutput out) {
    for (const std::string& line : out.log) {
      if (quiet_) {
        log_.debug(line);
      } else {
        log_.info(line);
      }
    }
    for (ServiceOutput::Send& send : out.sends) {
      if (const auto local = locals_.find(send.connection); local != locals_.end()) {
        asio::post(io_, [self = shared_from_this(), id = send.connection, deliver = local->second,
                         message = std::move(send.message)] {
          if (self->locals_.contains(id)) (*deliver)(message);
        });
      } else if (const auto remote = sessions_.find(send.connection); remote != sessions_.end()) {
        this->send(remote->second, encode(send.message));
      }
    }
    for (const ConnectionId id : out.closes) {
      const auto remote = sessions_.find(id);
      if (remote == sessions_.end()) continue;
      remote->second->close_when_sent = true;
      flush(remote->second);
    }
    arm();
  }

  void send(const SessionPtr& session, const std::string& bytes) {
    session->unsent += bytes;
    if (session->unsent.size() > kMaxUnsentBytes) {
      return drop(session, "it does not read what it is sent");
    }
    flush(session);
  }

  void flush(const SessionPtr& session) {
    if (!session->sending.empty()) return;
    if (session->unsent.empty()) {
      if (session->close_when_sent) drop(session, "");
      return;
    }
    session->sending.swap(session->unsent);
    asio::async_write(session->socket, asio::buffer(session->sending),
                      [self = shared_from_this(), session](error_code error, std::size_t) {
                        if (self->stopped_ || !self->sessions_.contains(session->id)) return;
                        session->sending.clear();
                        if (error) return self->drop(session, "");
                        self->flush(session);
                      });
  }

  // `why` is empty where the peer has simply gone.
  void drop(const SessionPtr& session, const std::string& why) {
    if (!why.empty()) log_.warning("closing the connection of " + session->peer + ": " + why);
    error_code ignored;
    session->socket.close(ignored);
    session->hello_timer.cancel();
    sessions_.erase(session->id);
    gone(session->id);
  }

  void gone(ConnectionId id) {
    table_.disconnected(id);
    arm();
    check_idle();
  }

  void check_idle() {
    if (!when_idle_ || !table_.is_idle()) return;
    asio::post(io_, std::exchange(when_idle_, nullptr));
  }

  // Heartbeats only move deadlines back, so an earlier alarm is left as it is; it finds out by
  // itself.
  void arm() {
    const std::optional<TimePoint> due = table_.deadline();
    if (!due || (armed_ && *armed_ <= *due)) return;
    armed_ = *due;
    timer_.expires_after(std::max(Duration(0), *due - BootClock::now()));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error || self->stopped_) return;
      self->armed_.reset();
      self->perform(self->table_.tick(BootClock::now()));
    });
  }

  asio::io_context& io_;
  Logger& log_;
  bool quiet_;  // inside an agent, the agents themselves say what there is to say
  JobTable table_;
  asio::steady_timer timer_;
  std::optional<TimePoint> armed_;
  std::vector<tcp::acceptor> acceptors_;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, SessionPtr> sessions_;
  std::map<ConnectionId, std::shared_ptr<std::function<void(const ServiceMessage&)>>> locals_;
  StoreServer* store_ = nullptr;
  std::function<void()> when_idle_;
  bool stopped_ = false;
};

RendezvousServer::RendezvousServer(asio::io_context& io, Logger& log, ServiceOptions options,
                                   std::vector<UniqueFd> listeners)
    : impl_(std::make_shared<Impl>(io, log, std::move(options), std::move(listeners))) {}

RendezvousServer::~RendezvousServer() { impl_->stop(); }

void RendezvousServer::start() { impl_->start(); }
ConnectionId RendezvousServer::attach(std::function<void(const ServiceMessage&)> deliver) {
  return impl_->attach(std::move(deliver));
}
void RendezvousServer::receive(ConnectionId connection, const AgentMessage& message) {
  impl_->receive_local(connection, message);
}
void RendezvousServer::detach(ConnectionId connection) { impl_->detach(connection); }
void RendezvousServer::share_port_with(StoreServer* store) { impl_->share_port_with(store); }
void RendezvousServer::when_idle(std::function<void()> then) { impl_->when_idle(std::move(then)); }
const JobTable& RendezvousServer::jobs() const { return impl_->jobs(); }

}  // namespace ddprun
