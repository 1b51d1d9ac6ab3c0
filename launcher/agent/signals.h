// AgentSignals: tells an agent of the signals that come to its process, and of the loss of its
// guardian or its keeper.
//
// Owner: Agent, on its one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/process/signal_source.h"

namespace ddprun {

class AgentSignals {
 public:
  struct Events {
    std::function<void(const TakenSignal&)> taken;  // a signal other than the next two
    std::function<void()> resized;                  // SIGWINCH
    std::function<void()> child_ended;  // SIGCHLD, after all signals that have come are taken
    std::function<void()> guard_lost;   // called once
  };

  // The descriptors become readable when the guardian, or the keeper, has ended.
  AgentSignals(boost::asio::io_context& io, UniqueFd guardian_alive, UniqueFd keeper_alive,
               Events events);

  // Begins to take these signals and those of Events. They must be blocked in all threads. Returns
  // an error if the system has no source of signals.
  Result<void> begin(const std::vector<int>& signals);

  // Returns the descriptor that is readable when a signal has come.
  int descriptor() { return source_.native_handle(); }

 private:
  void take();
  void watch(boost::asio::posix::stream_descriptor& guard);

  const Events events_;
  boost::asio::posix::stream_descriptor source_;
  boost::asio::posix::stream_descriptor guardian_alive_;
  boost::asio::posix::stream_descriptor keeper_alive_;
  bool is_guard_lost_ = false;
};

}  // namespace ddprun
