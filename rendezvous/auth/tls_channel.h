// TlsChannel: the TLS of one connection, without its socket. Bytes from the wire and plain bytes
// come in, plain bytes and bytes for the wire come out (rendezvous/transport/transport.h carries them).
//
//   opening --(handshake is over)--> open --(the peer has said goodbye)--> ended
//      \---------------------- (an error) ----------------------> broken
//
// TLS 1.2 or 1.3, no renegotiation, no resumption. Before it is open the peer may send
// kMaxHandshakeBytes; after that nothing is held back but the part of a record that has come (at
// most 16 KiB), and what take_plain() and take_wire() have not taken. How the bytes were cut never
// matters.
//
// One owner thread; the context may be shared.
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

// What a peer who begins with TLS is told where there is none: an alert, which he can read as TLS.
inline constexpr std::string_view kNoTlsHere("\x15\x03\x03\x00\x02\x02\x46", 7);

// What a peer is told whose handshake does not get its turn: the alert internal_error (RFC 8446,
// 6.2). To an agent it means: try later.
inline constexpr std::string_view kTryLater("\x15\x03\x03\x00\x02\x02\x50", 7);

class TlsChannel {
 public:
  // Client hellos and certificates, generously.
  static constexpr std::size_t kMaxHandshakeBytes = 64 * 1024;

  // The side that accepts.
  static TlsChannel service(TlsContextPtr context);
  // The side that connects; the peer's certificate has to be for this host name or numeric address.
  // The first bytes for the wire are there at once. Where this system's configuration of OpenSSL
  // leaves no version or cipher to offer, receive() says so, even when nothing has come.
  static TlsChannel agent(TlsContextPtr context, const std::string& host);

  // Bytes that have come. kProtocol: they are no TLS, or the two sides cannot agree, with the
  // reason in one line. kResource, of an agent's channel: the service has no room for this
  // handshake now, and has answered with kTryLater alone. The channel is broken then, and
  // take_wire() may have a last word for the peer. REQUIRES: it is not broken.
  Result<void> receive(std::string_view wire);
  // Turns these into bytes for the wire. REQUIRES: is_open().
  void send(std::string_view plain);
  // Says goodbye: nothing is sent after it. Harmless at any time.
  void close();

  // What has been said since the last call; what is to be put on the wire.
  std::string take_plain() { return std::exchange(plain_, {}); }
  std::string take_wire();

  // The peers have agreed, and each has shown what the other wanted to see.
  bool is_open() const { return is_open_; }
  // The peer has said that nothing follows.
  bool is_ended() const { return is_ended_; }

  // What both ends of this connection know and nobody else does, not even somebody in the middle
  // who has a connection to each: RFC 9266's tls-exporter, 32 bytes. REQUIRES: is_open().
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
  std::string host_;             // of the peer, for messages; empty at the service
  std::optional<Error> cannot_;  // begin
  std::string first_bytes_;      // that came, at most as many as kTryLater has
  std::string plain_;
  std::size_t handshake_bytes_ = 0;
  bool is_open_ = false;
  bool is_ended_ = false;
};

}  // namespace ddprun
