// RunningDdpStore: the program ddp-store on a free port, while this object lives. One owner
// thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/host_port.h"
#include "tests/support/child_process.h"
#include "tests/support/program.h"

namespace ddprun::testing_support {

class RunningDdpStore {
 public:
  // limits: a shell command that runs before the program starts, such as "ulimit -n 20".
  explicit RunningDdpStore(const std::string& limits = "true",
                           const std::string& host = "127.0.0.1", const std::string& options = "")
      : process({"sh", "-c",
                 limits + " && exec '" + program("ddp-store") + "' --listen '" + host + ":0' " +
                     options}) {
    const auto address = parse_host_port(listening_address(process));
    EXPECT_TRUE(address) << process.err();
    if (address) port = address->port;
  }

  ChildProcess process;
  std::uint16_t port = 0;
};

}  // namespace ddprun::testing_support
