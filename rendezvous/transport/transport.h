// Transport: a TCP connection of the control port, with TLS on it or without.
//
// It carries plain bytes to and from its owner; what TLS has to say for itself
// (rendezvous/auth/tls_channel.h) it answers alone. One owner at a time, who may hand it on while nothing is being
// read or written, and who has to close() or release() it: a handler that waits keeps what it holds
// alive until then. One thread, that of the socket's io_context; handlers are called from there,
// never from within the call that began the operation.
#pragma once

#include <array>
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
  // How much of what TLS itself has to say waits for a peer who does not read.
  static constexpr std::size_t kMaxOwedBytes = 256 * 1024;

  // kConnection: the connection is over. kProtocol: what came is no TLS, or the two sides of it
  // cannot agree.
  using ReadHandler = std::function<void(const Result<std::string_view>& plain)>;
  using Handler = std::function<void(const Result<void>&)>;

  explicit Transport(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  // To be connected, and for what only a socket knows; nobody else reads, writes or closes it.
  boost::asio::ip::tcp::socket& socket() { return socket_; }

  // From now on TLS; come: what has been read that belongs to it. An error is read() next.
  // REQUIRES: nothing is being read or written.
  void start_tls(TlsChannel channel, std::string_view come = {});
  bool is_tls() const { return tls_.has_value(); }
  // TlsChannel::binding(), or empty without TLS. REQUIRES: something was read, or it is open.
  std::string binding() const { return tls_ ? tls_->binding() : ""; }

  // Waits until the two sides of TLS have agreed; errors are as with read(). REQUIRES: is_tls(),
  // nothing is being read.
  void open(Handler then);
  // Waits for plain bytes, a few KiB at most; they are valid inside the handler. While it waits,
  // without TLS, nothing has been taken from the socket: release() gives it on as it is. REQUIRES:
  // nothing is being read.
  void read(ReadHandler then);
  // Writes these, which stay valid until the handler is called. REQUIRES: at least one byte,
  // nothing is being written, and with TLS something was read or it is open.
  void write(std::vector<boost::asio::const_buffer> plain, Handler then);
  // How much of it the socket has taken, without waiting; what it has not is write()'s, which also
  // tells of trouble. Nothing with TLS. REQUIRES: nothing is being written.
  std::size_t write_now(std::string_view plain);
  // Nothing is written after this; the peer is told. Reading goes on. REQUIRES: nothing is being
  // written.
  void end_writing();

  // Closes at once; with TLS the peer is told why, if the kernel takes that at once. Handlers that
  // wait are let go without being called.
  void close();
  bool is_open() const { return socket_.is_open(); }
  // The same, but gives the socket to somebody who speaks something else. REQUIRES: no TLS, nothing
  // is being written.
  boost::asio::ip::tcp::socket release();

 private:
  void wait_for_bytes();
  bool never_waits(boost::system::error_code& error);
  void take(std::string_view bytes);
  void receive(std::string_view bytes);
  void tell_reader();
  void fail(const Error& error);
  void pump();
  void encrypt_some();
  void let_go();

  boost::asio::ip::tcp::socket socket_;
  std::optional<TlsChannel> tls_;
  std::optional<Error> broken_;  // TLS is
  std::array<char, 4096> buffer_;
  std::string received_;  // plain, by TLS, not read yet
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
