// The fixture of tests in which nodes of this host form a job: with a ddp-rendezvous, or with
// a service in one of them.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {

class RendezvousTest : public LauncherTest {
 protected:
  std::unique_ptr<ChildProcess> start_rendezvous(const Arguments& options,
                                                 Variables more = {}) const {
    return std::make_unique<ChildProcess>(joined({program("ddp-rendezvous")}, options),
                                          environment(std::move(more)));
  }
  // Ends the service as its user would. Expects success.
  static void end(ChildProcess& service) {
    service.signal(SIGTERM);
    EXPECT_EQ(service.wait(), 0) << service.err();
  }

  // Returns ddprun's arguments for one of two nodes of a job whose workers run a line of
  // shell. If an option is given twice, the later one counts.
  static Arguments node(const std::string& endpoint, const Arguments& options,
                        const std::string& script) {
    return joined({"--rdzv-endpoint=" + endpoint, "--rdzv-id=job", "--nnodes=2"}, options,
                  {"sh", "-c", script});
  }
  // Starts a node that fails at once. Returns its exit code and the one line that it prints.
  std::pair<int, std::string> failure_of_node(const Arguments& options) const {
    const HeldPort held;
    auto job = start(node(held.endpoint(), options, "true"));
    const int code = job->wait().value_or(-1);
    EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
    return {code, job->err()};
  }
};

}  // namespace ddprun::testing_support
