#include "rendezvous/net/name_service.h"

#include <boost/asio/post.hpp>
#include <mutex>
#include <utility>

namespace ddprun {

using Addresses = std::vector<SocketAddress>;

// Receiver: where look-up threads deliver their results. They may outlive the io_context.
struct NameService::Receiver : std::enable_shared_from_this<Receiver> {
  std::mutex mutex;
  boost::asio::io_context* io = nullptr;  // null: results are not wanted any more

  void deliver(ResolveHandler then, Result<Addresses> found) {
    const std::lock_guard lock(mutex);
    if (!io) return;
    boost::asio::post(*io, [self = shared_from_this(), then = std::move(then),
                            found = std::move(found)]() mutable {
      if (self->is_awaited()) then(std::move(found));
    });
  }
  bool is_awaited() {
    const std::lock_guard lock(mutex);
    return io != nullptr;
  }
};

NameService::NameService(boost::asio::io_context& io, LookUp look_up)
    : look_up_(std::move(look_up)), receiver_(std::make_shared<Receiver>()) {
  receiver_->io = &io;
}

void NameService::end() {
  const std::lock_guard lock(receiver_->mutex);
  receiver_->io = nullptr;
}

void NameService::ask(const HostPort& address, ResolveHandler then) {
  look_up_(address, [receiver = receiver_, then = std::move(then)](Result<Addresses> found) {
    receiver->deliver(then, std::move(found));
  });
}

void NameService::find(const HostPort& address, ResolveHandler then) {
  const std::string key = to_text(address);
  Known& known = known_[key];
  if (known.addresses.empty()) {
    known.waiting.push_back(std::move(then));
  } else {
    receiver_->deliver(std::move(then), known.addresses);
    if (BootClock::now() < known.fresh_until) return;
  }
  if (std::exchange(known.is_asking, true)) return;
  ask(address, [this, key](const Result<Addresses>& found) {
    Known& asked = known_[key];
    asked.is_asking = false;
    asked.fresh_until = BootClock::now() + kFresh;
    if (found) asked.addresses = *found;
    for (const ResolveHandler& one : std::exchange(asked.waiting, {})) one(found);
  });
}

}  // namespace ddprun
