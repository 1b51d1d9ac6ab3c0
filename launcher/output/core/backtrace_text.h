// Reads the frames of a process out of what py-spy and gdb print. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Returns the frames of the first thread, the innermost last. Empty where the text has none.
// The text may come from:
//   py-spy dump:       "    wait (threading.py:327)" below "Thread 4711 (idle): "MainThread""
//   gdb's bt:          "#0  0x00007f... in clock_nanosleep () from /lib/libc.so.6"
//   /proc/<pid>/stack: "[<0>] hrtimer_nanosleep+0x9b/0x130"
std::vector<std::string> frames_in(std::string_view text);

// Returns the frame without the values of its arguments and without addresses, which differ between
// processes at the same place. Frames of Python stay as they are.
std::string without_arguments(std::string_view frame);

// Returns the call of torch.distributed that a process waits in, judged by its frames (the
// innermost last). Example: "torch.distributed.all_reduce", or "c10d::Work::wait" where only
// native frames are known. Returns "" if the innermost Python frame is not in torch.distributed
// and no c10d or gloo frame lies inside it.
std::string distributed_call_in(const std::vector<std::string>& frames);

}  // namespace ddprun
