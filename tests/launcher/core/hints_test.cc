#include "launcher/core/hints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

using testing::HasSubstr;

WorkerEnd exited(int code, std::vector<std::string> lines = {}) {
  return {.kind = EndKind::kExited, .code = code, .stderr_tail = std::move(lines)};
}

TEST(Hints, WhatIsSaidIsSurerThanACode) {
  EXPECT_THAT(hint_for(exited(1, {"Traceback", "ModuleNotFoundError: No module named 'torch'"})),
              HasSubstr("virtual environment"));
  EXPECT_THAT(hint_for(exited(127, {"bind: Address already in use"})),
              HasSubstr("a port is taken"));
  EXPECT_THAT(hint_for(exited(127)), HasSubstr("command was not found"));
}

TEST(Hints, TheErrorFilesMessageCountsAsSaid) {
  WorkerEnd end = exited(1);
  end.message = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB";
  EXPECT_THAT(hint_for(end), HasSubstr("the GPU's memory is full"));
}

TEST(Hints, CodesAndSignalsAreToldApart) {
  EXPECT_THAT(hint_for(exited(126)), HasSubstr("chmod +x"));
  EXPECT_THAT(hint_for(exited(137)), HasSubstr("128+9"));
  EXPECT_THAT(hint_for({.kind = EndKind::kSignaled, .code = SIGBUS}), HasSubstr("/dev/shm"));
  EXPECT_THAT(hint_for({.kind = EndKind::kSignaled, .code = SIGKILL}), HasSubstr("memory"));
  EXPECT_EQ(hint_for({.kind = EndKind::kExited, .code = SIGBUS}), "") << "an exit code of 7";
}

// As NCCL 2.28 and PyTorch 2.11 write them.
TEST(Hints, NcclsOwnWordsAreKnown) {
  for (const char* words :
       {"NCCL error in: ../ProcessGroupNCCL.cpp:94, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.28.9",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed"}) {
    EXPECT_THAT(hint_for(exited(1, {words})), HasSubstr("NCCL_SOCKET_IFNAME")) << words;
  }
  EXPECT_THAT(hint_for(exited(1, {"unhandled cuda error (run with NCCL_DEBUG=INFO for details)"})),
              HasSubstr("an error of CUDA"));
  EXPECT_THAT(
      hint_for(exited(1, {"ncclRemoteError: A call failed possibly due to a network error"})),
      HasSubstr("its victim"));
  EXPECT_THAT(
      hint_for(exited(1, {"RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus "
                          "error. It is possible that dataloader's workers are out of "
                          "shared memory."})),
      HasSubstr("--shm-size"));
}

// ddprun signal KILL is one of those who may have done it.
TEST(Hints, WhatIsKnownIsNotAskedFor) {
  WorkerEnd killed{.kind = EndKind::kSignaled, .code = SIGKILL};
  EXPECT_THAT(hint_for(killed), HasSubstr("ddprun signal KILL"));
  killed.out_of_memory = OutOfMemory::kSure;
  EXPECT_THAT(hint_for(killed), HasSubstr("give it more memory"));
}

TEST(Hints, NothingIsSaidOfWhatNobodyKnowsOrDdprunDid) {
  EXPECT_EQ(hint_for(exited(3, {"loss is NaN"})), "");
  EXPECT_EQ(hint_for({.kind = EndKind::kSignaled, .code = SIGKILL, .after_stop = true}), "");
  EXPECT_EQ(hint_for({.kind = EndKind::kNodeLost, .message = "No space left on device"}), "");
}

}  // namespace
}  // namespace ddprun
