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

TEST(Hints, NothingIsSaidOfWhatNobodyKnowsOrDdprunDid) {
  EXPECT_EQ(hint_for(exited(3, {"loss is NaN"})), "");
  EXPECT_EQ(hint_for({.kind = EndKind::kSignaled, .code = SIGKILL, .after_stop = true}), "");
  EXPECT_EQ(hint_for({.kind = EndKind::kNodeLost, .message = "No space left on device"}), "");
}

}  // namespace
}  // namespace ddprun
