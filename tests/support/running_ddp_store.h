// RunningDdpStore: the program ddp-store on a free port, until the test says otherwise.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/support/child_process.h"

namespace ddprun::testing_support {

class RunningDdpStore {
 public:
  // limits: what the shell says before it becomes the program, like "ulimit -n 20".
  explicit RunningDdpStore(const std::string& limits = "true",
                           const std::string& host = "127.0.0.1", const std::string& options = "")
      : process({"sh", "-c",
                 limits + " && exec '" DDPRUN_BIN_DIR "/ddp-store' --listen '" + host + ":0' " +
                     options}) {
    EXPECT_TRUE(process.wait_for_out("\n")) << process.err();
    const std::string line = process.out();
    port = static_cast<std::uint16_t>(std::atoi(line.substr(line.rfind(':') + 1).c_str()));
  }

  ChildProcess process;
  std::uint16_t port = 0;
};

}  // namespace ddprun::testing_support
