#include "rendezvous/transport/transport.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "base/assert.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Encrypts this much at a time, so that a large page is not held twice.
constexpr std::size_t kSliceBytes = 64 * 1024;

// Returns the buffer of this thread's reads. Its bytes are used before the next read begins, so an
// idle connection needs none of its own.
asio::mutable_buffer read_buffer() {
  thread_local const auto bytes = std::make_unique_for_overwrite<char[]>(Transport::kReadBytes);
  return asio::buffer(bytes.get(), Transport::kReadBytes);
}

Error lost(const error_code& why) {
  const bool is_closed = why == asio::error::eof;
  return Error{.kind = ErrorKind::kConnection,
               .doing = "",
               .cause = is_closed ? "it closed the connection" : why.message()};
}

}  // namespace

void Transport::start_tls(TlsChannel channel, std::string_view come) {
  tls_.emplace(std::move(channel));
  receive(come);
}

void Transport::open(Handler then) {
  on_open_ = std::move(then);
  notify_reader();
}

void Transport::read(ReadHandler then) {
  on_read_ = std::move(then);
  if (!tls_) return wait_for_bytes();
  notify_reader();
}

// Bytes may be there already. They are posted, because no handler may run within the call that
// set it.
void Transport::notify_reader() {
  const bool is_known = broken_ || tls_->is_ended() || (on_open_ && tls_->is_open());
  if (!is_known && received_.empty()) return wait_for_bytes();
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->take({}); });
}

void Transport::wait_for_bytes() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    if (!self->on_read_ && !self->on_open_) return;  // it was closed
    const asio::mutable_buffer buffer = read_buffer();
    std::size_t size = 0;
    if (!error && self->never_waits(error)) size = self->socket_.read_some(buffer, error);
    if (error == asio::error::would_block) return self->wait_for_bytes();
    if (error) return self->fail(lost(error));
    self->take({static_cast<const char*>(buffer.data()), size});
  });
}

// Makes the socket non-blocking, for calls that must return at once.
bool Transport::never_waits(error_code& error) {
  if (!socket_.non_blocking()) socket_.non_blocking(true, error);
  return !error;
}

void Transport::take(std::string_view bytes) {
  if (!tls_) return std::exchange(on_read_, nullptr)(bytes);
  if (!bytes.empty()) receive(bytes);
  if (broken_) return fail(*broken_);
  if (on_open_ && tls_->is_open()) return std::exchange(on_open_, nullptr)({});
  if (on_read_ && !received_.empty()) {
    const std::string plain = std::exchange(received_, {});
    return std::exchange(on_read_, nullptr)(std::string_view(plain));
  }
  if (tls_->is_ended()) return fail(lost(asio::error::eof));
  if (on_read_ || on_open_) wait_for_bytes();
}

void Transport::receive(std::string_view bytes) {
  const Result<void> received = tls_->receive(bytes);
  received_ += tls_->take_plain();
  if (!received) broken_ = received.error();
  pump();
  if (owed_.size() > kMaxOwedBytes && !broken_) {
    broken_ = Error{.kind = ErrorKind::kProtocol,
                    .doing = "TLS",
                    .cause = "the peer does not read its messages"};
  }
}

void Transport::fail(const Error& error) {
  const Handler open = std::exchange(on_open_, nullptr);
  const ReadHandler read = std::exchange(on_read_, nullptr);
  if (open) open(error.doing.empty() ? Error(error).within("TLS handshake") : error);
  if (read) read(error);
}

void Transport::write(std::vector<asio::const_buffer> plain, Handler then) {
  on_written_ = std::move(then);
  if (tls_) {
    plain_ = std::move(plain);
    return pump();
  }
  asio::async_write(socket_, plain, [self = shared_from_this()](error_code error, std::size_t) {
    const Handler written = std::exchange(self->on_written_, nullptr);
    if (written) written(error ? Result<void>(lost(error)) : Result<void>());
  });
}

std::size_t Transport::write_now(std::string_view plain) {
  error_code error;
  if (tls_ || !never_waits(error)) return 0;
  return socket_.write_some(asio::buffer(plain), error);
}

// Sends the messages of TLS itself before those of the owner.
void Transport::pump() {
  if (is_sending_) return;
  owed_ += tls_->take_wire();
  if (owed_.empty()) encrypt_some();
  if (owed_.empty()) {
    error_code ignored;
    if (ends_) socket_.shutdown(tcp::socket::shutdown_send, ignored);
    if (!on_written_) return;
    return asio::post(socket_.get_executor(),
                      [self = shared_from_this(), written = std::exchange(on_written_, nullptr)] {
                        // The owner may have closed it meanwhile.
                        if (self->socket_.is_open()) written({});
                      });
  }
  is_sending_ = true;
  sending_.swap(owed_);
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](error_code error, std::size_t) {
                      self->is_sending_ = false;
                      self->sending_.clear();
                      if (!error) return self->pump();
                      const Handler written = std::exchange(self->on_written_, nullptr);
                      if (written) written(lost(error));
                    });
}

void Transport::encrypt_some() {
  std::size_t room = kSliceBytes;
  while (room > 0 && !plain_.empty()) {
    asio::const_buffer& first = plain_.front();
    const std::size_t size = std::min(room, first.size());
    tls_->send({static_cast<const char*>(first.data()), size});
    first += size;
    room -= size;
    if (first.size() == 0) plain_.erase(plain_.begin());
  }
  owed_ += tls_->take_wire();
}

void Transport::end_writing() {
  error_code ignored;
  if (!tls_) {
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    return;
  }
  tls_->close();
  ends_ = true;
  pump();
}

void Transport::close() {
  error_code ignored;
  if (tls_ && !is_sending_ && socket_.is_open()) {
    tls_->close();
    owed_ += tls_->take_wire();
    socket_.non_blocking(true, ignored);
    socket_.write_some(asio::buffer(owed_), ignored);
  }
  // Lets the peer read what was sent before the reset.
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  socket_.close(ignored);
  let_go();
}

tcp::socket Transport::release() {
  DDPRUN_ASSERT(!tls_, "a connection in TLS cannot be handed over");
  error_code ignored;
  socket_.cancel(ignored);
  let_go();
  return std::move(socket_);
}

void Transport::let_go() {
  on_open_ = nullptr;
  on_read_ = nullptr;
  on_written_ = nullptr;
  plain_.clear();
}

}  // namespace ddprun
