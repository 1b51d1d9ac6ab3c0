// The fixture of tests that kill or end ddp-rendezvous, and start it again at its address.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {

class ServiceTest : public RendezvousTest {
 protected:
  void TearDown() override {
    service_.reset();
    RendezvousTest::TearDown();
  }

  // Gives the state directory a past. Then the service need not wait for agents that it might
  // not know of, although its port is known.
  void give_directory_a_past() {
    ASSERT_NO_FATAL_FAILURE(start_service());
    end(*service_);
    address_ = port_.endpoint();
  }
  Arguments service_options() const {
    Arguments options = joined({"--listen=" + address_}, service_flags_);
    if (!state_.empty()) options.push_back("--state-dir=" + state_);
    return options;
  }
  void start_service() { use_service(start_rendezvous(service_options())); }
  // Uses a service process that was started in another way.
  void use_service(std::unique_ptr<ChildProcess> process) {
    service_ = std::move(process);
    const std::string asked = std::exchange(address_, listening_address(*service_));
    ASSERT_NE(address_, "") << service_->err();
    ASSERT_TRUE(asked == address_ || asked == kAnyPort) << address_ << " is not " << asked;
  }
  void kill_service() {
    service_->signal(SIGKILL);
    ASSERT_EQ(service_->wait(), 128 + SIGKILL) << service_->err();
  }

  static constexpr const char* kAnyPort = "127.0.0.1:0";
  const HeldPort port_;  // keeps the port reserved while no service uses it
  std::string address_ = kAnyPort;
  std::string state_ = directory_ / "state";  // if empty, the service keeps no state
  // A lease that is longer than any delay of a busy machine. The agents' patience grows with
  // it.
  Arguments service_flags_{"--lease=60"};
  std::unique_ptr<ChildProcess> service_;
};

}  // namespace ddprun::testing_support
