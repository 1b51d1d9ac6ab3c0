#include "rendezvous/service/pending_connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <utility>
#include <variant>

#include "base/random_id.h"
#include "rendezvous/auth/core/failure_rate.h"
#include "rendezvous/net/core/first_bytes.h"
#include "rendezvous/protocol/core/handshake.h"
#include "rendezvous/service/core/handshake_queue.h"
#include "rendezvous/service/server.h"
#include "rendezvous/store/server.h"

namespace ddprun {

using boost::asio::ip::tcp;

namespace {

struct Pending {
  Pending(SessionPtr of, const Keyring& keys, std::optional<UserId> munge_user)
      : session(std::move(of)),
        hello_timer(session->wire->socket().get_executor()),
        handshake(keys, random_hex(kNonceBytes), munge_user) {
    if (handshake.is_closed()) session->frames.set_limit(kMaxHandshakeBytes);
  }

  const SessionPtr session;
  boost::asio::steady_timer hello_timer;
  ServiceHandshake handshake;
  std::string first_bytes;  // too few yet to show the kind of client, or to be used later
  bool identified = false;  // its first bytes are an agent's
  bool has_turn = false;    // its TLS handshake has begun (HandshakeQueue)
};

using PendingPtr = std::shared_ptr<Pending>;

// Returns whether the peer has closed its side. No other code reads this socket now.
bool has_ended(int socket) {
  char byte = 0;
  return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

class Connections final : public PendingConnections,
                          public std::enable_shared_from_this<Connections> {
 public:
  Connections(boost::asio::io_context& io, LimitedLog& log, ServiceCounters& counters,
              Duration hello_timeout, std::size_t turns, PendingConnectionsEvents events)
      : log_(log),
        counters_(counters),
        hello_timeout_(hello_timeout),
        events_(std::move(events)),
        queue_(turns),
        queue_timer_(io) {}

  void welcome(tcp::socket socket, const SocketAddress& peer, AgentConnectionId id) override {
    if (pending_.size() >= RendezvousServer::kMaxPending) make_room();
    const auto one =
        std::make_shared<Pending>(std::make_shared<Session>(std::move(socket), id, peer), keys,
                                  munge ? std::optional(munge->munge().user()) : std::nullopt);
    one->session->on_sent = [this, id](const Result<std::size_t>& sent) {
      counters_.bytes_sent += sent ? *sent : 0;
      const PendingPtr found = find(id);
      if (found && (!sent || found->session->close_when_sent)) drop(found, "");
      events_.sent();
    };
    pending_[id] = one;
    after(one->hello_timer, hello_timeout_, [this, weak = std::weak_ptr(one)] {
      const PendingPtr silent = weak.lock();
      if (!silent || !is_here(silent)) return;
      if (may_be_silent(*silent)) return give_to_store(silent, {});
      drop(silent, "no hello within " + to_text(hello_timeout_));
    });
    read(one);
  }

  void drain() override { is_draining_ = true; }

  void close() override {
    queue_timer_.cancel();
    munge.reset();
    for (const auto& [id, one] : pending_) one->session->wire->close();
    pending_.clear();
  }

  std::size_t size() const override { return pending_.size(); }

  bool has_sent_all() const override {
    return std::ranges::all_of(
        pending_, [](const auto& entry) { return entry.second->session->has_sent_all(); });
  }

 private:
  // Calls `then` after that time, unless the timer is cancelled or this object has ended.
  template <class Then>
  void after(boost::asio::steady_timer& timer, Duration time, Then then) {
    timer.expires_after(time);
    timer.async_wait(
        [weak = weak_from_this(), then = std::move(then)](const boost::system::error_code& error) {
          if (const auto alive = weak.lock(); alive && !error) then();
        });
  }

  PendingPtr find(AgentConnectionId id) const {
    const auto found = pending_.find(id);
    return found == pending_.end() ? nullptr : found->second;
  }

  bool is_here(const PendingPtr& one) const { return pending_.contains(one->session->id); }

  // Returns whether it may be a store's client. Such a client may be silent for any time
  // (StoreServer).
  bool may_be_silent(const Pending& one) const {
    return store && !one.identified && one.first_bytes.empty() && !one.session->wire->is_tls();
  }

  // Makes room for a new connection. The oldest one has the smallest number.
  void make_room() {
    const PendingPtr oldest = pending_.begin()->second;
    if (may_be_silent(*oldest)) return give_to_store(oldest, {});
    drop(oldest, "no hello yet, and " + std::to_string(RendezvousServer::kMaxPending) +
                     " other connections wait");
  }

  void read(const PendingPtr& one) {
    one->session->wire->read([this, one](const Result<std::string_view>& bytes) {
      if (!is_here(one)) return;
      if (!bytes) {
        const bool is_invalid = bytes.error().kind == ErrorKind::kProtocol;
        return drop(one, is_invalid ? bytes.error().message() : "");
      }
      if (is_draining_ || one->session->close_when_sent) return read(one);  // ignores the bytes
      if (one->identified) return take(one, *bytes);
      identify(one, *bytes);
    });
  }

  void take(const PendingPtr& one, std::string_view bytes) {
    counters_.bytes_received += bytes.size();
    one->session->frames.append(bytes);
    while (is_here(one) && !one->session->close_when_sent) {
      const auto frame = one->session->frames.next();
      if (!frame) return drop(one, frame.error().message());
      if (!*frame) break;
      if (const Result<void> taken = take_frame(one, **frame); !taken) {
        return drop(one, taken.error().message());
      }
    }
    if (is_here(one)) read(one);
  }

  Result<void> take_frame(const PendingPtr& one, std::string_view frame) {
    const Result<AgentHandshakeMessage> opening = decode<AgentHandshakeMessage>(frame);
    if (!opening) return opening.error();
    ServiceHandshake::Step step = one->handshake.receive(*opening);
    if (step.what != ServiceHandshake::Step::What::kPass) {
      if (std::holds_alternative<NoHandshake>(*opening)) mark_refusal(step, frame);
      carry_out(one, step);
      return {};
    }
    const Result<AgentMessage> message = decode<AgentMessage>(frame);
    if (!message) return message.error();
    const Hello* hello = std::get_if<Hello>(&*message);
    const UserRequest* request = std::get_if<UserRequest>(&*message);
    if (hello || request) {
      const std::string& job = hello ? hello->job.id : request->job;
      if (!one->handshake.may_join(job)) {
        turn_away(one, Refused{"the key was proved for a job other than '" + job + "'"});
        return {};
      }
    }
    one->session->user = one->handshake.proven_user();
    release(one);
    events_.agent(one->session, *message);
    return {};
  }

  // Says in a refusal whether this service runs for the job of the Hello alone. An agent that can
  // prove its identity begins with a Knock. It does not believe a refusal without proof.
  void mark_refusal(ServiceHandshake::Step& step, std::string_view frame) const {
    Refused* refused = std::get_if<Refused>(&step.answer);
    if (!refused) return;
    const Result<AgentMessage> message = decode<AgentMessage>(frame);
    const Hello* hello = message ? std::get_if<Hello>(&*message) : nullptr;
    refused->is_of_job = hello && events_.is_own(*hello);
  }

  void carry_out(const PendingPtr& one, const ServiceHandshake::Step& step) {
    using What = ServiceHandshake::Step::What;
    switch (step.what) {
      case What::kPass: return;
      case What::kRefuse:
        if (step.is_wrong_proof) return refuse_proof(one, step.answer);
        return turn_away(one, step.answer);
      case What::kPutOff: return turn_away(one, step.answer);
      case What::kAskMunge:
        return munge->ask(step.task,
                          [this, weak = std::weak_ptr(one)](const MungeOutcome& outcome) {
                            const PendingPtr asker = weak.lock();
                            if (!asker || !is_here(asker) || asker->session->close_when_sent)
                              return;
                            carry_out(asker, asker->handshake.answered(outcome));
                          });
      case What::kAnswer:
        if (!one->handshake.is_closed()) one->session->frames.set_limit(kMaxControlFrameBytes);
        return send(one, step.answer);
    }
  }

  // Refuses a wrong proof. After too many wrong proofs the answer is "try later", so that guessing
  // keys yields nothing more. Right proofs never come here.
  void refuse_proof(const PendingPtr& one, const ServiceHandshakeMessage& answer) {
    const std::string& job = one->handshake.job();
    const std::string& host = one->session->peer_host;
    const std::string who = host + " " + job;
    const bool too_often = failures_.is_blocked(who, BootClock::now());
    failures_.note(who, BootClock::now());
    if (!too_often) return turn_away(one, answer);
    ++counters_.blocked;
    ++counters_.closed_before_hello;
    turn_away(one, Silence{"too many wrong proofs for job '" + job + "' came from " + host +
                           ": try later"});
  }

  // Sends the last message: Refused, or Silence for a peer that is to try later. Only a refused
  // peer is counted, because otherwise the reason may be no fault of the peer.
  void turn_away(const PendingPtr& one, const ServiceHandshakeMessage& answer) {
    const Refused* refused = std::get_if<Refused>(&answer);
    if (refused) ++counters_.closed_before_hello;
    one->session->warn(log_, refused ? refused->reason : std::get<Silence>(answer).reason);
    one->session->close_when_sent = true;
    send(one, answer);
  }

  void send(const PendingPtr& one, const ServiceHandshakeMessage& message) {
    if (const Result<void> said = one->session->say(message); !said) {
      return drop(one, said.error().message());
    }
    one->session->flush();
  }

  void identify(const PendingPtr& one, std::string_view bytes) {
    const SessionPtr& session = one->session;
    // Bytes from inside TLS show that its handshake is complete.
    if (std::exchange(one->has_turn, false)) {
      carry_out(queue_.complete(session->peer_host, BootClock::now(), is_connected()));
    }
    one->first_bytes += bytes;
    const std::optional<ClientKind> kind = client_kind_of(one->first_bytes);
    if (!kind) return read(one);
    const std::string first_bytes = std::exchange(one->first_bytes, {});
    one->identified = true;
    const bool is_tls = session->wire->is_tls();
    switch (*kind) {
      case ClientKind::kAgent:
        if (is_tls || !tls) {
          if (is_tls) one->handshake.bind_to(session->wire->binding());
          return take(one, first_bytes);
        }
        turn_away(one, Refused{"this service requires TLS: give this node --rdzv-tls-ca"});
        if (is_here(one)) read(one);
        return;
      case ClientKind::kHttp: release(one); return events_.http(session->wire, first_bytes);
      case ClientKind::kTls:
        if (!is_tls) return start_tls(one, first_bytes);
        break;
      case ClientKind::kStoreClient:
        if (store && !is_tls) return give_to_store(one, first_bytes);
        break;
    }
    drop(one, "it does not speak the control protocol");
  }

  // Begins TLS. The first bytes inside TLS then show the kind of client.
  void start_tls(const PendingPtr& one, const std::string& first_bytes) {
    const SessionPtr& session = one->session;
    if (!tls) {
      session->wire->write({boost::asio::buffer(kNoTlsHere)}, [](const Result<void>&) {});
      return drop(one, "it speaks TLS, but this service has no --rdzv-tls-cert");
    }
    one->identified = false;
    one->first_bytes = first_bytes;
    carry_out(queue_.add(session->peer_host, session->id, BootClock::now(), is_connected()));
  }

  HandshakeQueue::IsHere is_connected() const {
    return [this](AgentConnectionId id) {
      const PendingPtr one = find(id);
      return one && !has_ended(one->session->wire->socket().native_handle());
    };
  }

  // Clients that are put off get the alert, so that an agent retries and does not report another
  // program.
  void carry_out(const HandshakeQueue::Step& step) {
    for (const AgentConnectionId id : step.gone) {
      if (const PendingPtr one = find(id)) drop(one, "");
    }
    for (const AgentConnectionId id : step.put_off) {
      const PendingPtr one = find(id);
      if (!one) continue;
      one->session->wire->write_now(kTryLater);
      drop(one, "too many TLS handshakes from its address are in progress: it must try later");
    }
    for (const AgentConnectionId id : step.begin) {
      const PendingPtr one = find(id);
      if (!one) continue;
      one->has_turn = true;
      one->session->wire->start_tls(TlsChannel::service(tls), std::exchange(one->first_bytes, {}));
      read(one);
    }
    if (!step.next) return;
    after(queue_timer_, *step.next - BootClock::now(),
          [this] { carry_out(queue_.serve(BootClock::now(), is_connected())); });
  }

  void give_to_store(const PendingPtr& one, std::string_view first_bytes) {
    release(one);
    store->adopt(one->session->wire->release(), first_bytes);
  }

  // Lets the connection go, because it moves to another owner.
  void release(const PendingPtr& one) {
    one->hello_timer.cancel();
    pending_.erase(one->session->id);
  }

  // Closes the connection. `why` becomes a warning. It is empty if the peer has disconnected, or
  // has got its last message.
  void drop(const PendingPtr& one, const std::string& why) {
    if (!why.empty()) {
      one->session->warn(log_, why);
      ++counters_.closed_before_hello;
    }
    one->session->wire->close();
    release(one);
    events_.sent();
  }

  LimitedLog& log_;
  ServiceCounters& counters_;
  const Duration hello_timeout_;
  const PendingConnectionsEvents events_;
  FailureRate failures_;  // wrong proofs, by address and job
  HandshakeQueue queue_;
  boost::asio::steady_timer queue_timer_;
  std::map<AgentConnectionId, PendingPtr> pending_;  // the oldest first
  bool is_draining_ = false;
};

}  // namespace

std::shared_ptr<PendingConnections> PendingConnections::make(
    boost::asio::io_context& io, LimitedLog& log, ServiceCounters& counters, Duration hello_timeout,
    std::size_t turns, PendingConnectionsEvents events) {
  return std::make_shared<Connections>(io, log, counters, hello_timeout, turns, std::move(events));
}

}  // namespace ddprun
