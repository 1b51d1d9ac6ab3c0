#include "launcher/core/backtrace_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BacktraceText, OfPySpyTheFirstThreadInnermostLast) {
  EXPECT_THAT(
      frames_in("Process 4711: python train.py\n"
                "Python v3.11.7 (/usr/bin/python3.11)\n\n"
                "Thread 4711 (idle): \"MainThread\"\n"
                "    wait (threading.py:327)\n"
                "    main (train.py:10)\n"
                "    <module> (train.py:20)\n"
                "Thread 4712 (idle): \"Thread-1\"\n"
                "    other (x.py:1)\n"),
      ElementsAre("<module> (train.py:20)", "main (train.py:10)", "wait (threading.py:327)"));
}

TEST(BacktraceText, OfGdbWithoutNumbersAndAddresses) {
  EXPECT_THAT(frames_in("[New LWP 12]\n"
                        "warning: 44 x.c: No such file\n"
                        "#0  0x00007f12 in clock_nanosleep () from /lib/libc.so.6\n"
                        "#1  load (path=0x0) at train.cc:12\n"
                        "#12 0x0000abcd in main () at train.cc:99\n"
                        "[Inferior 1 (process 12) detached]\n"),
              ElementsAre("main () at train.cc:99", "load (path=0x0) at train.cc:12",
                          "clock_nanosleep () from /lib/libc.so.6"));
}

TEST(BacktraceText, OfTheKernelTheFunctions) {
  EXPECT_THAT(frames_in("[<0>] hrtimer_nanosleep+0x9b/0x130\n[<0>] do_syscall_64+0x5c/0x90\n"),
              ElementsAre("do_syscall_64", "hrtimer_nanosleep"));
}

TEST(BacktraceText, OfAnythingElseNothing) {
  EXPECT_THAT(frames_in(""), IsEmpty());
  EXPECT_THAT(frames_in("Error: permission denied\n"), IsEmpty());
  EXPECT_THAT(frames_in("ptrace: Operation not permitted.\n    indented\n#\n"), IsEmpty());
}

}  // namespace
}  // namespace ddprun
