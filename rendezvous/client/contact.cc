#include "rendezvous/client/contact.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <utility>

#include "base/random_id.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/icmp_error.h"
#include "rendezvous/net/tcp_acceptor.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

Contact::Contact(asio::io_context& io, std::shared_ptr<ContactOwner> owner, std::size_t target,
                 std::vector<Endpoint> endpoints, ContactSecurity security)
    : io_(io),
      owner_(std::move(owner)),
      target_(target),
      rest_(endpoints.rbegin(), endpoints.rend()),
      security_(std::move(security)),
      farewell_(io) {}

std::optional<Contact::Endpoint> Contact::next() const {
  if (rest_.empty()) return std::nullopt;
  return rest_.back();
}

// Returns a handler of an operation of this connection. It does nothing once the connection has
// ended, and keeps the contact and its owner alive.
template <class Then>
auto Contact::in_connection(Then then) {
  return [self = shared_from_this(), queue = queue_, then = std::move(then)](const auto& result) {
    const std::shared_ptr<ContactOwner> alive = self->owner_;
    if (self->goes_on(queue)) then(result);
  };
}

void Contact::close() {
  if (queue_) queue_->wire->close();
  queue_.reset();
  farewell_.cancel();
  when_left_ = nullptr;
  owner_.reset();
}

void Contact::fail(Ending ending) {
  const ContactPtr alive = shared_from_this();
  if (when_left_) return left();
  const std::shared_ptr<ContactOwner> owner = owner_;
  close();
  owner->ended(*this, std::move(ending));
}

// Handles a failed connection. Unless the service says that it is overloaded, a TLS failure is not
// retried, because the next try would fail, too.
void Contact::fail(const Error& error) {
  using enum Ending::How;
  Ending::How how = kBroken;
  if (error.kind == ErrorKind::kResource) how = kPutOff;
  if (error.kind == ErrorKind::kProtocol) how = kNoTls;
  fail(Ending{how, error.message()});
}

// --- connecting ----------------------------------------------------------------------------------

// An endpoint that another contact has is passed over: of two Hellos of an agent, a service keeps
// only the later connection.
void Contact::connect_next() {
  if (queue_) queue_->wire->close();
  queue_.reset();
  std::erase_if(rest_, [this](const Endpoint& one) { return owner_->is_taken(one); });
  if (rest_.empty()) {
    const std::shared_ptr<ContactOwner> owner = owner_;
    close();
    return owner->ended(*this, std::nullopt);
  }
  endpoint_ = rest_.back();
  rest_.pop_back();
  queue_ = std::make_shared<SendQueue>(std::make_shared<Transport>(tcp::socket(io_)));
  queue_->on_sent = [self = shared_from_this()](const Result<std::size_t>& sent) {
    const std::shared_ptr<ContactOwner> alive = self->owner_;
    self->on_sent(sent);
  };
  frames_ = FrameReader();
  handshake_.reset();
  tcp::socket& socket = queue_->wire->socket();
  error_code ignored;  // async_connect() reports the error, too
  socket.open(endpoint_.protocol(), ignored);
  keep_icmp_errors(socket.native_handle());
  socket.async_connect(endpoint_, in_connection([this](error_code failed) {
                         if (!failed) return connected();
                         if (!is_refusal(failed)) was_refused_ = false;
                         if (!rest_.empty()) return connect_next();
                         using enum Ending::How;
                         fail({was_refused_ ? kConnectionRefused : kBroken, failed.message()});
                       }));
}

bool Contact::is_refusal(error_code failed) const {
  return failed == asio::error::connection_refused &&
         !has_icmp_error(queue_->wire->socket().native_handle());
}

void Contact::connected() {
  const Queue queue = queue_;
  const int socket = queue->wire->socket().native_handle();
  ignore_icmp_errors(socket);
  disable_nagle(socket);
  owner_->connected(*this);
  if (!goes_on(queue)) return;
  if (!security_.tls) return introduce();
  queue->wire->start_tls(TlsChannel::agent(security_.tls, security_.name));
  queue->wire->open(in_connection([this](const Result<void>& opened) {
    if (!opened) return fail(opened.error());
    introduce();
  }));
}

// While a cable is cut, TCP retransmits after ever longer pauses. The cable may work again
// long before TCP notices. Therefore the connection ends when the other host has not
// acknowledged sent data for a quarter of the patience. AgentLink then makes a new connection,
// with many tries.
//
// A service that is only slow runs on a host whose kernel acknowledges, once the connection is
// accepted. Before the Welcome that may not be so. When thousands of agents connect at once,
// the accept queue is full, and the host acknowledges nothing.
void Contact::end_when_cut_off(Duration patience) {
  using std::chrono::milliseconds;
  const auto quarter = std::chrono::duration_cast<milliseconds>(patience / 4);
  const unsigned count = static_cast<unsigned>(std::clamp<milliseconds::rep>(
      quarter.count(), 100, milliseconds(std::chrono::minutes(1)).count()));
  setsockopt(queue_->wire->socket().native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &count,
             sizeof count);
}

// --- Hello and handshake -------------------------------------------------------------------------

Hello Contact::hello() const {
  return owner_->hello(local_address_of(queue_->wire->socket().native_handle()).host());
}

void Contact::introduce() {
  if (security_.key.empty() && !security_.munge) {
    transmit(AgentMessage(hello()));
  } else {
    begin_handshake();
  }
  if (is_open()) read();
}

void Contact::begin_handshake() {
  const Hello own = hello();
  if (!is_open()) return;
  MungeProof by_munge{.demands_proof = owner_->demands_proof()};
  if (security_.munge) by_munge.own = security_.munge->munge().user();
  handshake_.emplace(
      security_.key,
      Knock{.version = own.version, .job = own.job.id, .nonce = random_hex(kNonceBytes)},
      queue_->wire->binding(), by_munge);
  transmit(AgentHandshakeMessage(handshake_->knock()));
}

void Contact::take_handshake(std::string_view frame) {
  const Result<ServiceHandshakeMessage> message = decode<ServiceHandshakeMessage>(frame);
  if (!message) return fail({Ending::How::kGarbled, message.error().message()});
  owner_->heard();
  if (is_open()) carry_out(handshake_->receive(*message));
}

void Contact::carry_out(const Result<AgentHandshake::Step>& step) {
  using enum Ending::How;
  if (!step) {
    const Error& why = step.error();
    if (why.kind == ErrorKind::kProtocol) return fail({kGarbled, why.message()});
    if (why.kind == ErrorKind::kUnsupported) return fail({kDistrusted, why.cause});
    return fail({kBroken, why.message()});
  }
  if (const MungeTask* task = std::get_if<MungeTask>(&*step)) return ask_munge(*task);
  if (const Refused* refused = std::get_if<Refused>(&*step))
    return owner_->refused_unproven(*this, refused->reason);
  if (const Silence* silence = std::get_if<Silence>(&*step))
    return owner_->received(*this, ServiceMessage(*silence));
  if (const Proof* proof = std::get_if<Proof>(&*step)) transmit(AgentHandshakeMessage(*proof));
  if (std::holds_alternative<Proven>(*step)) owner_->proved();
  if (is_open() && handshake_->is_time_for_hello()) transmit(AgentMessage(hello()));
}

void Contact::ask_munge(const MungeTask& task) {
  security_.munge->ask(task, in_connection([this](const MungeOutcome& outcome) {
                         carry_out(handshake_->answered(outcome));
                       }));
}

// --- messages ------------------------------------------------------------------------------------

void Contact::read() {
  queue_->wire->read(in_connection([this](const Result<std::string_view>& bytes) {
    if (!bytes) return fail(bytes.error());
    frames_.append(*bytes);
    take_frames();
  }));
}

void Contact::take_frames() {
  const Queue queue = queue_;
  while (goes_on(queue)) {
    const auto frame = frames_.next();
    if (!frame) return fail({Ending::How::kGarbled, frame.error().message()});
    if (!*frame) return read();
    if (handshake_ && !handshake_->is_over()) {
      take_handshake(**frame);
      continue;
    }
    const Result<ServiceMessage> message = decode<ServiceMessage>(**frame);
    if (message) {
      owner_->received(*this, *message);
    } else if (message.error().kind != ErrorKind::kUnsupported) {
      // A service of a later version may send messages that this agent does not know.
      return fail({Ending::How::kGarbled, message.error().message()});
    }
  }
}

template <class Message>
void Contact::transmit(const Message& message) {
  if (!is_open()) return;
  const Result<std::string> bytes = encode(message);
  if (!bytes) return fail({Ending::How::kBroken, bytes.error().message()});
  queue_->add(*bytes);
  queue_->flush();
}

void Contact::send(const AgentMessage& message) { transmit(message); }

void Contact::on_sent(const Result<std::size_t>& sent) {
  if (when_left_) return left();
  if (!sent) fail({Ending::How::kBroken, sent.error().message()});
}

void Contact::leave(std::function<void()> then) {
  when_left_ = std::move(then);
  if (!queue_ || !queue_->wire->is_open() || queue_->has_sent_all()) return left();
  farewell_.expires_after(kFarewellTime);
  farewell_.async_wait([self = shared_from_this()](error_code) {
    const std::shared_ptr<ContactOwner> alive = self->owner_;
    if (self->when_left_) self->left();
  });
}

void Contact::left() {
  const std::function<void()> then = std::exchange(when_left_, nullptr);
  close();
  then();
}

}  // namespace ddprun
