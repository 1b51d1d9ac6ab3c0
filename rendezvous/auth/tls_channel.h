// TlsChannel: TLS of one connection, without its socket. Its input is bytes from the network and
// plain bytes. Its output is plain bytes and bytes for the network
// (rendezvous/transport/transport.h carries them).
//
//   opening --(handshake is over)--> open --(the peer sent close_notify)--> ended
//      \---------------------- (an error) ----------------------> broken
//
// It speaks TLS 1.2 or 1.3, without renegotiation and resumption. During the handshake the peer
// may send kMaxHandshakeBytes. After that it buffers at most the received part of a record (16
// KiB), and what take_plain() and take_wire() have not taken. The result never depends on how
// the bytes were split.
//
// It has one owner thread; its context may be shared.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "rendezvous/auth/tls_context.h"

namespace ddprun {

// Reply to a peer that begins with TLS at a port without TLS: an alert, which a TLS client
// understands.
inline constexpr std::string_view kNoTlsHere("\x15\x03\x03\x00\x02\x02\x46", 7);

// Reply to a peer whose handshake gets no turn: the alert internal_error (RFC 8446, 6.2). An
// agent then tries later.
inline constexpr std::string_view kTryLater("\x15\x03\x03\x00\x02\x02\x50", 7);

class TlsChannel {
 public:
  // A generous limit for a client hello and certificates.
  static constexpr std::size_t kMaxHandshakeBytes = 64 * 1024;

  // Makes the side that accepts.
  static TlsChannel service(TlsContextPtr context);
  // Makes the side that connects. The peer's certificate must be for this host name or numeric
  // address. The first bytes for the network are available at once. If OpenSSL's configuration
  // on this system allows no version or cipher, receive() returns the error, even without any
  // input.
  static TlsChannel agent(TlsContextPtr context, const std::string& host);

  // Takes bytes from the network.
  // - kProtocol: they are not TLS, or the two sides found no common parameters; the cause is on
  //   one line.
  // - kResource, only on the agent's side: the service has no capacity for this handshake now,
  //   and has answered with kTryLater alone.
  //
  // After an error the channel is broken; take_wire() may still have an alert for the peer.
  // REQUIRES: it is not broken.
  Result<void> receive(std::string_view wire);
  // Encrypts plain bytes for the network. REQUIRES: is_open().
  void send(std::string_view plain);
  // Sends close_notify; nothing is sent after it. It may be called at any time.
  void close();

  // Return and remove the plain bytes received so far, and the bytes to send on the network.
  std::string take_plain() { return std::exchange(plain_, {}); }
  std::string take_wire();

  // Returns true if the handshake is over and each side has accepted the certificate of the
  // other, as far as it demands one.
  bool is_open() const { return is_open_; }
  // Returns true if the peer has sent close_notify.
  bool is_ended() const { return is_ended_; }

  // Returns a value that only the two ends of this connection know. An attacker with one
  // connection to each end does not know it: RFC 9266's tls-exporter, 32 bytes. REQUIRES:
  // is_open().
  std::string binding() const;

 private:
  struct Free {
    void operator()(ssl_st* ssl) const;
  };

  explicit TlsChannel(TlsContextPtr context);
  Result<void> shake_hands();
  Result<void> read_plain();
  Error failure(int code);

  TlsContextPtr context_;
  std::unique_ptr<ssl_st, Free> ssl_;
  std::string host_;             // of the peer, for messages; empty on the service's side
  std::optional<Error> cannot_;  // why the handshake could not begin
  std::string first_bytes_;      // received, at most as many as kTryLater has
  std::string plain_;
  std::size_t handshake_bytes_ = 0;
  bool is_open_ = false;
  bool is_ended_ = false;
};

}  // namespace ddprun
