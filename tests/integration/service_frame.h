// The frame of tests whose ddp-rendezvous is killed, or told to end, and is started again at its
// address.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "tests/integration/meeting_frame.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {

class ServiceTest : public MeetingTest {
 protected:
  void TearDown() override {
    service_.reset();
    MeetingTest::TearDown();
  }

  // With a past it need not wait for agents that it might not know of, although its port is known.
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
  // For a process that has been started in another way.
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
  const HeldPort port_;  // while no service has it, nobody else may get it
  std::string address_ = kAnyPort;
  std::string state_ = directory_ / "state";  // empty: it forgets
  // A lease that no load of the machine uses up; its agents' patience is as much longer.
  Arguments service_flags_{"--lease=60"};
  std::unique_ptr<ChildProcess> service_;
};

}  // namespace ddprun::testing_support
