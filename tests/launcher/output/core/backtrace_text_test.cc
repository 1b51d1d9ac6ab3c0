#include "launcher/output/core/backtrace_text.h"

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

TEST(BacktraceText, APlaceHasNoValuesOfArguments) {
  EXPECT_EQ(without_arguments("poll (fds=0x7ffd1234, nfds=1) at poll.c:29"), "poll at poll.c:29");
  EXPECT_EQ(without_arguments("clock_nanosleep () from /lib/libc.so.6"),
            "clock_nanosleep from /lib/libc.so.6");
  EXPECT_EQ(without_arguments("main (train.py:10)"), "main (train.py:10)");
  EXPECT_EQ(without_arguments("main (a=1/train.py:10)"), "main (a=1/train.py:10)");
  EXPECT_EQ(without_arguments("time_sleep (libpython3.11.so.1.0)"),
            "time_sleep (libpython3.11.so.1.0)");
  EXPECT_EQ(without_arguments("0x7f08d7a4524a (libc.so.6)"), "? (libc.so.6)");
  EXPECT_EQ(without_arguments("std::function<void (int)>::operator() (this=0x1, s=\"(\") at f.h:9"),
            "std::function<void (int)>::operator() (this=0x1, s=\"(\") at f.h:9")
      << "a bracket in a string: the frame stays whole";
  EXPECT_EQ(without_arguments("std::function<void (int)>::operator() (this=0x1) at /a (b)/f.h:9"),
            "std::function<void (int)>::operator() at /a (b)/f.h:9");
  EXPECT_EQ(without_arguments("std::_Function_handler<void (), A>::_M_invoke () from /lib/a.so"),
            "std::_Function_handler<void (), A>::_M_invoke from /lib/a.so");
  EXPECT_EQ(without_arguments("do_syscall_64"), "do_syscall_64");
  EXPECT_EQ(without_arguments("cut (off"), "cut (off");
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

TEST(BacktraceText, AFrameOfTorchDistributedIsACallThatWaits) {
  EXPECT_EQ(distributed_call_in(
                {"<module> (train.py:9)",
                 "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
                 "all_reduce (torch/distributed/distributed_c10d.py:3075)"}),
            "torch.distributed.all_reduce");
  EXPECT_EQ(distributed_call_in(
                {"<module> (train.py:9)", "wrapper (/venv/lib/torch/distributed/c10d_logger.py:83)",
                 "all_gather_object (/venv/lib/torch/distributed/distributed_c10d.py:1)",
                 "wrapper (/venv/lib/torch/distributed/c10d_logger.py:83)",
                 "all_gather (/venv/lib/torch/distributed/distributed_c10d.py:2)"}),
            "torch.distributed.all_gather_object")
      << "what the program has called";
  EXPECT_EQ(
      distributed_call_in({"_engine_run_backward (torch/autograd/graph.py:829)",
                           "c10d::Work::wait (libtorch_cpu.so)", "pthread_cond_wait (libc.so.6)"}),
      "c10d::Work::wait")
      << "a backward pass, by py-spy --native";
  EXPECT_EQ(
      distributed_call_in({"main () at train.cc:9",
                           "c10d::Work::wait(std::chrono::duration<long>) () from libtorch_cpu.so",
                           "___pthread_cond_wait (cond=0x1) at ./nptl/x.c:618"}),
      "c10d::Work::wait")
      << "by gdb";
}

TEST(BacktraceText, WhoWorksOrWaitsElsewhereIsInNoCallOfTorchDistributed) {
  EXPECT_EQ(distributed_call_in({}), "");
  EXPECT_EQ(distributed_call_in({"<module> (train.py:9)", "load (data.py:3)"}), "");
  EXPECT_EQ(distributed_call_in({"save (torch/distributed/checkpoint/state_dict_saver.py:1)",
                                 "write (torch/distributed/checkpoint/filesystem.py:9)"}),
            "")
      << "it waits for a disk";
  EXPECT_EQ(distributed_call_in({"all_reduce (torch/distributed/distributed_c10d.py:3075)",
                                 "my_hook (train.py:4)"}),
            "")
      << "a hook of the program";
  EXPECT_EQ(distributed_call_in({"c10d::PythonCommHook::runHook(c10d::GradBucket&) () from x.so",
                                 "_PyEval_EvalFrameDefault (tstate=0x1) at ceval.c:1",
                                 "time_sleep (self=0x1) at timemodule.c:383"}),
            "")
      << "the same, by gdb";
}

}  // namespace
}  // namespace ddprun
