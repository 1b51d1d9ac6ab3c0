// Transport: a TCP connection of the control port, with or without TLS.
//
// It carries plain bytes to and from its owner. It answers the messages of TLS itself
// (rendezvous/auth/tls_channel.h) without its owner. It has one owner at a time, which may pass
// it on while no read or write is in progress. The owner must call close() or release(): until
// then a pending handler keeps alive what it captured.
//
// It runs on one thread, that of the socket's io_context. Handlers run there, and never within
// the call that began the operation.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rendezvous/auth/tls_channel.h"

namespace ddprun {

class Transport : public std::enable_shared_from_this<Transport> {
 public:
  // Limit for encrypted bytes that wait to be sent while the peer does not read.
  static constexpr std::size_t kMaxOwedBytes = 256 * 1024;

  // The most that a read takes from the socket. All connections of a thread share one buffer.
  static constexpr std::size_t kReadBytes = 16 * 1024;

  // kConnection: the connection has ended. kProtocol: the peer sent bytes that are not TLS, or
  // the two sides found no common TLS parameters.
  using ReadHandler = std::function<void(const Result<std::string_view>& plain)>;
  using Handler = std::function<void(const Result<void>&)>;

  explicit Transport(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  // Returns the socket, to connect it and to query it. No other code may read, write or close
  // it.
  boost::asio::ip::tcp::socket& socket() { return socket_; }

  // Uses TLS from now on. `come` has the bytes of TLS that were read already. An error in them
  // is returned by read(). REQUIRES: no read or write is in progress.
  void start_tls(TlsChannel channel, std::string_view come = {});
  bool is_tls() const { return tls_.has_value(); }
  // Returns TlsChannel::binding(), or an empty text without TLS. REQUIRES: TLS is off, something
  // was read, or the handshake is over.
  std::string binding() const { return tls_ ? tls_->binding() : ""; }

  // Waits until the TLS handshake is over. Errors are those of read(). REQUIRES: is_tls(), no
  // read is in progress.
  void open(Handler then);
  // Waits for plain bytes, and passes those that have come: at most about kReadBytes. They are
  // valid inside the handler. Without TLS, a waiting read has taken no bytes from the socket, so
  // release() loses none. REQUIRES: no read is in progress.
  void read(ReadHandler then);
  // Writes `plain`, which must stay valid until the handler runs. REQUIRES: there is at least
  // one byte; no write is in progress; with TLS, something was read or the handshake is over.
  void write(std::vector<boost::asio::const_buffer> plain, Handler then);
  // Writes as much as the socket takes without waiting, and returns how much that was. Pass the
  // rest to write(), which also reports errors. With TLS it writes nothing. REQUIRES: no write
  // is in progress.
  std::size_t write_now(std::string_view plain);
  // Ends the direction of writing and notifies the peer. Reading goes on. REQUIRES: no write is
  // in progress.
  void end_writing();

  // Closes at once. With TLS it notifies the peer, if the kernel takes these bytes at once.
  // Pending handlers are never called. They are destroyed now, or when the io_context runs next.
  void close();
  bool is_open() const { return socket_.is_open(); }
  // Ends this object as close() does, but returns the open socket, for code that speaks another
  // protocol. REQUIRES: no TLS, no write is in progress.
  boost::asio::ip::tcp::socket release();

 private:
  void wait_for_bytes();
  bool never_waits(boost::system::error_code& error);
  void take(std::string_view bytes);
  void receive(std::string_view bytes);
  void notify_reader();
  void fail(const Error& error);
  void pump();
  void encrypt_some();
  void let_go();

  boost::asio::ip::tcp::socket socket_;
  std::optional<TlsChannel> tls_;
  std::optional<Error> broken_;  // error of the TLS channel, after which it cannot be used
  std::string received_;         // plain bytes from TLS, not read yet
  Handler on_open_;
  ReadHandler on_read_;
  Handler on_written_;
  std::vector<boost::asio::const_buffer> plain_;  // to be encrypted
  std::string owed_;                              // encrypted, to be sent
  std::string sending_;
  bool is_sending_ = false;
  bool ends_ = false;  // end_writing() was called
};
using TransportPtr = std::shared_ptr<Transport>;

}  // namespace ddprun
