#include "rendezvous/http/paced_wake.h"

#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace ddprun {

struct PacedWake::State {
  std::function<void()> wake;
  boost::asio::steady_timer pause;
  bool is_resting = false;
  bool has_news = false;
};

PacedWake::PacedWake(boost::asio::io_context& io, std::function<void()> wake)
    : state_(std::make_shared<State>(State{std::move(wake), boost::asio::steady_timer(io)})) {}

PacedWake::~PacedWake() { state_->pause.cancel(); }

void PacedWake::notify() { notify(state_); }

void PacedWake::notify(const std::shared_ptr<State>& state) {
  state->has_news = true;
  if (state->is_resting) return;
  state->has_news = false;
  state->is_resting = true;
  state->pause.expires_after(kPause);
  state->pause.async_wait([weak = std::weak_ptr(state)](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->is_resting = false;
    if (self->has_news) notify(self);
  });
  state->wake();
}

}  // namespace ddprun
