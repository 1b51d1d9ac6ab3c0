// PacedWake: tells the reader of an HttpFeed of news, at most once in kPause.
//
// Owner: the feed, on the thread of the io_context, which outlives it. wake() is not called
// after its destruction.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "base/clock.h"

namespace ddprun {

class PacedWake {
 public:
  static constexpr Duration kPause = std::chrono::milliseconds(100);

  // wake: as HttpFeed::begin() is given it.
  PacedWake(boost::asio::io_context& io, std::function<void()> wake);
  ~PacedWake();
  PacedWake(const PacedWake&) = delete;
  PacedWake& operator=(const PacedWake&) = delete;

  // Calls wake() at once, or at the end of the pause after the last call.
  void notify();

 private:
  struct State;
  static void notify(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace ddprun
