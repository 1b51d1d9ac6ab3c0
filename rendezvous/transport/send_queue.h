// SendQueue: sends bytes over a Transport in their order, one write at a time.
//
// One thread, that of the transport. The owner closes the transport at its end. There is no
// callback after wire->close().
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/transport/transport.h"

namespace ddprun {

class SendQueue : public std::enable_shared_from_this<SendQueue> {
 public:
  explicit SendQueue(TransportPtr to) : wire(std::move(to)) {}

  void add(std::string_view bytes) { unsent_ += bytes; }

  // Sends what was added. Calls on_sent when all is sent, or with an error, also from within.
  void flush() {
    if (!sending_.empty()) return;
    const auto self = shared_from_this();
    if (!unsent_.empty()) {
      const std::size_t now = wire->write_now(unsent_);
      unsent_.erase(0, now);
      sent_bytes_ += now;
    }
    if (unsent_.empty()) return on_sent(std::exchange(sent_bytes_, 0));
    sending_.swap(unsent_);
    wire->write({boost::asio::buffer(sending_)}, [self](const Result<void>& written) {
      if (!written) return self->on_sent(written.error());
      self->sent_bytes_ += self->sending_.size();
      self->sending_.clear();
      self->flush();
    });
  }

  std::size_t unsent_bytes() const { return unsent_.size(); }
  bool has_sent_all() const { return unsent_.empty() && sending_.empty(); }

  const TransportPtr wire;
  // Gets the number of bytes that were sent since its last call.
  std::function<void(const Result<std::size_t>& bytes)> on_sent;

 private:
  std::size_t sent_bytes_ = 0;
  std::string unsent_;
  std::string sending_;
};

}  // namespace ddprun
