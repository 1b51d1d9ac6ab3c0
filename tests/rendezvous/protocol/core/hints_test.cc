#include "rendezvous/protocol/core/hints.h"

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

TEST(Hints, AnEarlyExitFromALoopIsNamed) {
  EXPECT_THAT(hint_for(exited(1, {"all_reduce #3: the ranks disagree: rank 0 called barrier #3"})),
              HasSubstr("leaves a loop early"));
  EXPECT_THAT(hint_for(exited(1, {"Attempted to get a new DataLoader iterator while another "
                                  "iterator is not yet exhausted"})),
              HasSubstr("make a new loader in each epoch"));
}

TEST(Hints, CodesAndSignalsAreToldApart) {
  EXPECT_THAT(hint_for(exited(126)), HasSubstr("chmod +x"));
  EXPECT_THAT(hint_for(exited(135)), HasSubstr("/dev/shm"));
  EXPECT_THAT(hint_for(exited(137)), HasSubstr("128+9"));
  EXPECT_THAT(hint_for({.kind = EndKind::kSignaled, .code = SIGBUS}), HasSubstr("/dev/shm"));
  EXPECT_THAT(hint_for({.kind = EndKind::kSignaled, .code = SIGKILL}), HasSubstr("memory"));
  EXPECT_EQ(hint_for({.kind = EndKind::kExited, .code = SIGBUS}), "") << "an exit code of 7";
}

TEST(Hints, WhatIsKnownIsNotAskedFor) {
  WorkerEnd killed{.kind = EndKind::kSignaled, .code = SIGKILL};
  EXPECT_THAT(hint_for(killed), HasSubstr("or by kill -9"));
  killed.out_of_memory = OutOfMemory::kSure;
  EXPECT_THAT(hint_for(killed), HasSubstr("give it more memory"));
}

TEST(Hints, KnowsTheTextsOfNcclAndPyTorchAsTheyAre) {
  const std::pair<const char*, const char*> cases[] = {
      {"unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9",
       "NCCL_SOCKET_IFNAME"},
      {"ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
       "device error. ",
       "NCCL_SOCKET_IFNAME"},
      {"unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9",
       "an error of CUDA"},
      {"ncclUnhandledCudaError: Call to CUDA function failed.", "an error of CUDA"},
      {"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
       "prematurely.",
       "another rank is gone"},
      {"remote process exited or there was a network error, NCCL version 2.28.9",
       "another rank is gone"},
      {"ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "NCCL_DEBUG=WARN"},
      {"invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9",
       "NCCL_DEBUG=WARN"},
      {"torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
       "CUDA_LAUNCH_BLOCKING"},
      {"RuntimeError: No CUDA GPUs are available", "no GPU is visible"},
      {"RuntimeError: Found no NVIDIA driver on your system. Please check", "no driver"},
      {"RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
       "older than this CUDA needs"},
      {"RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible "
       "that "
       "dataloader's workers are out of shared memory.",
       "/dev/shm"},
      {"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", "want of memory"},
  };
  for (const auto& [line, hint] : cases) {
    EXPECT_THAT(hint_for(exited(1, {"Traceback", line})), HasSubstr(hint)) << line;
  }
}

TEST(Hints, TheKindOfAnInvalidUsageIsSurerThanThatItIsOne) {
  EXPECT_THAT(hint_for(exited(1, {"ncclInvalidUsage: This usually reflects invalid usage",
                                  "Duplicate GPU detected : rank 0 and rank 1 both on CUDA"})),
              HasSubstr("two ranks use one GPU"));
  EXPECT_THAT(hint_for(exited(1, {"ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not "
                                  "found (required by /x.so)"})),
              HasSubstr("libstdc++"));
}

TEST(Hints, ALibraryThatIsNotFoundIsNamed) {
  const std::string words = ": cannot open shared object file: No such file or directory";
  for (const std::string& line :
       {"ImportError: libcudnn.so.9" + words, "libcudnn.so.9" + words,
        "./train: error while loading shared libraries: libcudnn.so.9" + words}) {
    EXPECT_THAT(hint_for(exited(1, {line})), HasSubstr("the library libcudnn.so.9 is not found"))
        << line;
  }
}

TEST(Hints, NothingIsSaidOfWhatNobodyKnowsOrDdprunDid) {
  EXPECT_EQ(hint_for(exited(3, {"loss is NaN"})), "");
  EXPECT_EQ(hint_for({.kind = EndKind::kSignaled, .code = SIGKILL, .after_stop = true}), "");
  WorkerEnd killed{.kind = EndKind::kSignaled, .code = SIGKILL, .on_request = true};
  EXPECT_EQ(hint_for(killed), "") << "ddprun signal KILL";
  EXPECT_EQ(hint_for({.kind = EndKind::kNodeLost, .message = "No space left on device"}), "");
}

TEST(Hints, AHangWithoutAStackSaysWhatToInstall) {
  WorkerEnd hung{.kind = EndKind::kHung, .frames = {"do_syscall_64", "hrtimer_nanosleep"}};
  EXPECT_THAT(hint_for(hung), HasSubstr("pip install py-spy (Python programs) or install gdb"));
  hung.frames = {"_PyEval_EvalFrameDefault (tstate=0x1) at ceval.c:1", "time_sleep (self=0x1)"};
  EXPECT_THAT(hint_for(hung), HasSubstr("pip install py-spy"));
  hung.frames = {"main () at train.cc:3"};
  EXPECT_EQ(hint_for(hung), "");
  hung.frames = {"<module> (train.py:3)"};
  EXPECT_EQ(hint_for(hung), "");
}

TEST(Hints, AnAbortOfPyTorchAtExitIsNamed) {
  WorkerEnd end{.kind = EndKind::kSignaled, .code = SIGABRT};
  EXPECT_THAT(hint_for(end), HasSubstr("an assertion"));
  EXPECT_THAT(hint_for(end), HasSubstr("without torch.distributed.destroy_process_group()"));
  end.stderr_tail = {"done", "terminate called without an active exception"};
  EXPECT_THAT(hint_for(end), HasSubstr("destroy_process_group()"));
}

TEST(Hints, AnAbortThatSaysWhyIsNotCalledAnAssertion) {
  WorkerEnd end{
      .kind = EndKind::kSignaled, .code = SIGABRT, .message = "DistError: rank 1 is gone"};
  EXPECT_EQ(hint_for(end), "");
  end = {.kind = EndKind::kSignaled, .code = SIGABRT, .blames = 1};
  EXPECT_EQ(hint_for(end), "");
  EXPECT_THAT(hint_for(exited(0)), HasSubstr("before the others were done"));
}

TEST(Hints, AFaultHandlerThatHasSpokenIsNotRecommended) {
  WorkerEnd end{.kind = EndKind::kSignaled, .code = SIGSEGV};
  EXPECT_THAT(hint_for(end), HasSubstr("PYTHONFAULTHANDLER"));
  for (const char* line : {"Fatal Python error: Segmentation fault",
                           "Current thread 0x00007f (most recent call first):",
                           "Extension modules: numpy.core (total: 1)"}) {
    end.stderr_tail = {line, "  File \"train.py\", line 3 in main"};
    EXPECT_THAT(hint_for(end), testing::AllOf(HasSubstr("has printed"),
                                              testing::Not(HasSubstr("PYTHONFAULTHANDLER"))));
  }
}

}  // namespace
}  // namespace ddprun
