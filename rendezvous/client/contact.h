// Contact: one connection of an agent to one service, from the first try to connect until its end.
//
// It tries the service's endpoints one after another. It starts TLS, performs the handshake, says
// Hello, and passes each message that comes to its owner. It decides nothing about the job.
//
// Owner: RemoteLink, on the thread of the io_context. All calls of the owner are made there, from
// within a function of the contact or later. A pending operation keeps the contact alive, and its
// owner as long as the contact is open. No call of the owner follows close() or leave().
// The owner closes the contact at the end.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/auth/async_munge.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/client/targets.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/protocol/core/handshake.h"
#include "rendezvous/transport/send_queue.h"

namespace ddprun {

class Contact;

// ContactOwner: decides what a contact may do, and receives its events. Each function that is not
// const may close the contact.
class ContactOwner {
 public:
  virtual ~ContactOwner() = default;

  // Returns whether another contact has a connection to this endpoint.
  virtual bool is_taken(const boost::asio::ip::tcp::endpoint& endpoint) const = 0;
  // Reports that the connection is established. TLS and the handshake follow.
  virtual void connected(Contact& contact) = 0;
  // Returns the Hello to send now. local_address: of the connection, numeric.
  virtual Hello hello(const std::string& local_address) = 0;
  // Returns whether a service must prove its identity by munge.
  virtual bool demands_proof() const = 0;
  // Reports a valid message of the handshake.
  virtual void heard() = 0;
  // Reports that the service has proved its identity in the handshake.
  virtual void proved() = 0;
  // Reports a refusal within the handshake. Any peer can send it: it proves nothing.
  virtual void refused_unproven(Contact& contact, const std::string& reason) = 0;
  // Reports a message after the handshake, or a Silence within it.
  virtual void received(Contact& contact, const ServiceMessage& message) = 0;
  // Reports the end of the contact, which is closed. nullopt: other contacts have each endpoint
  // that is left, so the contact has no answer of its own.
  virtual void ended(Contact& contact, std::optional<Ending> ending) = 0;
};

// ContactSecurity: how the agent and the service prove their identities. key and munge must live
// until the contact is closed.
struct ContactSecurity {
  const Secret& key;            // of the job; empty: by munge, if there is one
  AsyncMunge* munge = nullptr;  // null: there is none
  TlsContextPtr tls = nullptr;  // null: no TLS
  std::string name = {};        // that the service's certificate must have
};

class Contact : public std::enable_shared_from_this<Contact> {
 public:
  using Endpoint = boost::asio::ip::tcp::endpoint;

  // A message leaves a host that works within this time. leave() does not wait longer.
  static constexpr Duration kFarewellTime = std::chrono::seconds(1);

  // target: the owner's number of the service. endpoints: of the service, in the order in which
  // they are tried. io must outlive the contact.
  Contact(boost::asio::io_context& io, std::shared_ptr<ContactOwner> owner, std::size_t target,
          std::vector<Endpoint> endpoints, ContactSecurity security);

  // Begins to connect to the next endpoint that no other contact has. An open connection is closed
  // first. Without such an endpoint the contact ends. Call it at first, and again to leave an
  // endpoint for the next one.
  void connect_next();

  // Sends the message. Does nothing if the contact is closed.
  void send(const AgentMessage& message);

  // Ends the connection when the peer's host has not acknowledged sent data for a quarter of
  // `patience`. Call it when the service has welcomed this agent. REQUIRES: the connection is
  // established.
  void end_when_cut_off(Duration patience);

  // Closes the contact when all messages are sent, or cannot be sent. Calls `then` once after that,
  // also from within; never after close().
  void leave(std::function<void()> then);

  // Closes the contact at once. May be called at any time, also twice.
  void close();

  std::size_t target() const { return target_; }
  bool is_open() const { return queue_ != nullptr; }
  // Returns the endpoint of the connection, or of the last one.
  const Endpoint& endpoint() const { return endpoint_; }
  // Returns the endpoint that connect_next() would try; nullopt: there is none.
  std::optional<Endpoint> next() const;

 private:
  using Queue = std::shared_ptr<SendQueue>;

  template <class Then>
  auto in_connection(Then then);
  bool goes_on(const Queue& queue) const { return queue_ == queue && !when_left_; }
  void fail(Ending ending);
  void fail(const Error& error);
  bool is_refusal(boost::system::error_code failed) const;
  void connected();
  void introduce();
  void begin_handshake();
  void take_handshake(std::string_view frame);
  void carry_out(const Result<AgentHandshake::Step>& step);
  void ask_munge(const MungeTask& task);
  Hello hello() const;
  void read();
  void take_frames();
  template <class Message>
  void transmit(const Message& message);
  void on_sent(const Result<std::size_t>& sent);
  void left();

  boost::asio::io_context& io_;
  std::shared_ptr<ContactOwner> owner_;  // null: closed
  const std::size_t target_;
  std::vector<Endpoint> rest_;  // to be tried if this one fails, the next one last
  const ContactSecurity security_;
  bool was_refused_ = true;  // by each endpoint that was tried
  Endpoint endpoint_;
  Queue queue_;  // of the connection; null: there is none
  FrameReader frames_;
  std::optional<AgentHandshake> handshake_;  // with a key or munge
  boost::asio::steady_timer farewell_;
  std::function<void()> when_left_;  // null: leave() was not called
};
using ContactPtr = std::shared_ptr<Contact>;

}  // namespace ddprun
