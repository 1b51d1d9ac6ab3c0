// The frame of tests where nodes of this host meet: at a ddp-rendezvous, or at one of themselves.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/launcher_frame.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {

class MeetingTest : public LauncherTest {
 protected:
  std::unique_ptr<ChildProcess> start_rendezvous(const Arguments& options,
                                                 Variables more = {}) const {
    return std::make_unique<ChildProcess>(joined({program("ddp-rendezvous")}, options),
                                          environment(std::move(more)));
  }
  // Ends it as its user would, and well.
  static void end(ChildProcess& service) {
    service.signal(SIGTERM);
    EXPECT_EQ(service.wait(), 0) << service.err();
  }

  // ddprun's arguments for one of two nodes of a job whose workers run a line of shell. Of options
  // that are given twice the later one counts.
  static Arguments node(const std::string& endpoint, const Arguments& options,
                        const std::string& script) {
    return joined({"--rdzv-endpoint=" + endpoint, "--rdzv-id=job", "--nnodes=2"}, options,
                  {"sh", "-c", script});
  }
  // A node that fails at once: its exit code, and the one line that it says.
  std::pair<int, std::string> failure_of_node(const Arguments& options) const {
    const HeldPort held;
    auto job = start(node(held.endpoint(), options, "true"));
    const int code = job->wait().value_or(-1);
    EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
    return {code, job->err()};
  }
};

}  // namespace ddprun::testing_support
