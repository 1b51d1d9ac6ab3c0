// RawTlsClient: a RawTcpClient over TLS, for tests of a server. The test sends and receives
// plain text. error() has the error of TLS. One owner thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/auth/tls_channel.h"
#include "tests/support/raw_tcp_client.h"

namespace ddprun::testing_support {

class RawTlsClient {
 public:
  // Connects to localhost and does the handshake. pieces_of: the number of bytes that are sent
  // at a time; 0: all at once.
  RawTlsClient(std::uint16_t port, TlsContextPtr context, std::size_t pieces_of = 0)
      : tcp_(port),
        channel_(TlsChannel::agent(std::move(context), "localhost")),
        pieces_of_(pieces_of) {
    flush();
    while (!channel_.is_open() && take_some()) {
    }
  }

  bool is_open() const { return channel_.is_open(); }
  const std::string& error() const { return error_; }
  TlsChannel& channel() { return channel_; }
  RawTcpClient& tcp() { return tcp_; }

  void send(std::string_view plain) {
    channel_.send(plain);
    flush();
  }

  // As those of RawTcpClient.
  std::string receive(std::size_t count) {
    while (plain_.size() < count && take_some()) {
    }
    std::string bytes = plain_.substr(0, count);
    plain_.erase(0, bytes.size());
    return bytes;
  }
  bool is_closed() { return receive(1).empty(); }

 private:
  // Returns false if the peer has closed, TLS has failed, or the time is over.
  bool take_some() {
    if (!error_.empty() || channel_.is_ended()) return false;
    const std::string byte = tcp_.receive_some();
    if (byte.empty()) return false;
    const Result<void> taken = channel_.receive(byte);
    if (!taken) error_ = taken.error().message();
    plain_ += channel_.take_plain();
    flush();
    return true;
  }

  void flush() {
    const std::string wire = channel_.take_wire();
    const std::size_t step = pieces_of_ > 0 ? pieces_of_ : std::max<std::size_t>(wire.size(), 1);
    for (std::size_t at = 0; at < wire.size(); at += step) {
      if (!tcp_.offer(std::string_view(wire).substr(at, step))) return;
    }
  }

  RawTcpClient tcp_;
  TlsChannel channel_;
  std::size_t pieces_of_;
  std::string plain_;
  std::string error_;
};

}  // namespace ddprun::testing_support
