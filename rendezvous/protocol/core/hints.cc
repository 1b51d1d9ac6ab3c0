#include "rendezvous/protocol/core/hints.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <string_view>

namespace ddprun {
namespace {

// A rule for a text in the message or in the last lines of stderr.
struct TextHint {
  std::string_view text;
  std::string_view hint;  // kSubject stands for the word before `text`
};

// A rule matches when all its conditions hold.
struct Hint {
  std::optional<int> exit_code = {};
  std::optional<int> signal = {};
  bool out_of_memory = false;  // the kernel killed it because memory ran out, as far as is known
  std::string_view text = {};  // as above; empty: any
  std::string_view hint;
};

constexpr std::string_view kSubject = "%";

// Hints that several rules share.
constexpr std::string_view kNoGpu =
    "no GPU is visible here: CUDA_VISIBLE_DEVICES, the driver (nvidia-smi), the container's --gpus";
constexpr std::string_view kOldDriver =
    "the driver is older than this CUDA needs: update it, or use a PyTorch for an older CUDA";
constexpr std::string_view kNcclOfCuda = "NCCL had an error of CUDA: NCCL_DEBUG=INFO shows which";
constexpr std::string_view kNcclSystem =
    "NCCL had an error of the system, mostly its network or /dev/shm: NCCL_DEBUG=INFO shows which; "
    "NCCL_SOCKET_IFNAME chooses the interface";
constexpr std::string_view kNcclRemote =
    "another rank is gone, or the network between them: look at the others' last lines first";
constexpr std::string_view kNcclUsage =
    "the ranks call NCCL differently or with arguments that it does not accept: NCCL_DEBUG=WARN "
    "shows which";
constexpr std::string_view kPortTaken =
    "a port is taken, perhaps by an earlier run: use port 0, or leave --master-port out; "
    "ss -ltnp shows who uses it";
constexpr std::string_view kVictim =
    "another rank is gone: this one is its victim, look at the others' last lines";

// PyTorch's threads sometimes outlive the interpreter.
constexpr std::string_view kNotDestroyed =
    "PyTorch sometimes aborts at exit if a script ends without "
    "torch.distributed.destroy_process_group(): call it at the end (in C++: a std::thread was not "
    "joined)";
// Python's fault handler has already printed its lines.
constexpr std::string_view kBelowPython =
    "a fault in native code, below the Python lines that its fault handler has printed: ulimit -c "
    "unlimited keeps a core, gdb shows where";
constexpr std::string_view kLeftEarly =
    "it ended before the others were done: look for an early exit, return or break in it, or for "
    "batches that differ in number";
constexpr std::string_view kCrashedAtTheEnd =
    "the training is done, so ddprun does not restart: look at what runs after the Context (an "
    "export, destructors of global objects, threads that still run)";
constexpr std::string_view kOtherCalls =
    "the ranks make different calls: look for a rank that leaves a loop early (break, return), for "
    "batches that differ in number, or for a call that not all ranks make";
constexpr std::string_view kNoStack =
    "no debugger has shown where it is: pip install py-spy (Python programs) or install gdb "
    "(others) "
    "on the nodes; ddprun doctor says whether they may attach";
constexpr std::string_view kNoPythonStack =
    "pip install py-spy on the nodes: the next report then shows the lines of the script";

// A text is stronger evidence than an exit code. So these rules come before the others.
constexpr std::array kTextHints = std::to_array<TextHint>({
    // Python
    {"ModuleNotFoundError: No module named",
     "this Python lacks the module: is it the right virtual environment? ddprun takes the "
     "python of PATH, or PYTHON_EXEC"},
    {"SyntaxError: ", "the script does not fit this version of Python"},
    // Memory
    {"is killed by signal: Killed",
     "a process of the DataLoader was killed, mostly for want of memory: fewer workers, a "
     "smaller prefetch_factor; dmesg, or the cgroup's memory.events"},
    {"Bus error",  // also of a process of the DataLoader
     "mostly /dev/shm is full or small: docker run --shm-size=8g, or --ipc=host"},
    {"CUDA out of memory",
     "the GPU's memory is full: a smaller batch, or look for other processes on it with "
     "nvidia-smi"},
    {"CUDA error: out of memory",
     "the GPU's memory is full: look for other processes on it with nvidia-smi"},
    {"std::bad_alloc", "no memory was left for it: see ulimit -v and the cgroup's limit"},
    {"unable to mmap", "/dev/shm may be too small: docker run --shm-size=8g, or --ipc=host"},
    {"No space left on device",
     "a disk or /dev/shm is full: df -h, and where checkpoints and TMPDIR lead"},
    // CUDA and NCCL
    {"no CUDA-capable device is detected", kNoGpu},
    {"No CUDA GPUs are available", kNoGpu},
    {"Found no NVIDIA driver",
     "no driver of NVIDIA is here: nvidia-smi; in a container docker run --gpus all"},
    {"CUDA error: invalid device ordinal",
     "there are fewer GPUs than workers: --nproc-per-node=gpu starts one for each"},
    {"CUDA driver version is insufficient", kOldDriver},
    {"The NVIDIA driver on your system is too old", kOldDriver},
    {"no kernel image is available for execution",
     "the program was not built for this kind of GPU (TORCH_CUDA_ARCH_LIST)"},
    {"CUDA error: device-side assert triggered",
     "an index is out of range on the GPU, mostly a label: CUDA_LAUNCH_BLOCKING=1 shows where"},
    {"CUDA error: an illegal memory access",
     "a kernel has accessed memory that is not its own: CUDA_LAUNCH_BLOCKING=1 shows which "
     "call, compute-sanitizer which kernel"},
    {"uncorrectable ECC error",
     "the GPU's memory is broken: nvidia-smi -q; take the node out of service"},
    // NCCL also calls this an invalid usage.
    {"Duplicate GPU detected",
     "two ranks use one GPU: take cuda:LOCAL_RANK, and no more workers than GPUs"},
    {"unhandled cuda error", kNcclOfCuda},
    {"ncclUnhandledCudaError", kNcclOfCuda},
    {"unhandled system error", kNcclSystem},
    {"ncclSystemError", kNcclSystem},
    {"ncclRemoteError", kNcclRemote},
    {"remote process exited or there was a network error", kNcclRemote},
    {"ncclInvalidUsage", kNcclUsage},
    {"invalid usage (run with NCCL_DEBUG", kNcclUsage},
    {"Watchdog caught collective operation timeout",
     "a rank did not come to a collective: the ranks must call the same ones in the same "
     "order; look for the one that waits elsewhere"},
    // Rendezvous
    // "build" in older versions, "built" in newer ones.
    {"use_libuv was requested but PyTorch was buil",
     "this PyTorch has no libuv: set USE_LIBUV=0 in the environment, and give "
     "--worker-store=rank0"},
    {"EADDRINUSE", kPortTaken},
    {"Address already in use", kPortTaken},
    {"Too many open files", "the limit of open files is too low: ulimit -n"},
    {"Connection reset by peer", kVictim},
    {"Connection closed by peer", kVictim},
    // Loops
    {"the ranks disagree: ", kOtherCalls},
    {"another iterator is not yet exhausted",
     "LibTorch's data loader does not begin again after a loop over it was left with "
     "break: make a new loader in each epoch"},
    // Loading
    {": cannot open shared object file",
     "the library % is not found: ldd shows what a program or module lacks, LD_LIBRARY_PATH "
     "says where to look"},
    {"error while loading shared libraries",
     "a library of the program is not found: ldd shows which, LD_LIBRARY_PATH says where"},
    {"GLIBCXX_", "the program was built with a newer compiler than this host's libstdc++"},
    {"ImportError: ",
     "a module does not fit this Python or its libraries: try the import by itself with the "
     "same python"},
});

constexpr std::array kHints = std::to_array<Hint>({
    {.exit_code = 127, .hint = "a command was not found: the program, or what its script calls"},
    {.exit_code = 126,
     .hint = "a command was found and is not executable: chmod +x, or it is for another CPU"},
    {.exit_code = 135,
     .hint = "128+7: something that it started had a bus error, mostly because /dev/shm is full or "
             "small: docker run --shm-size=8g, or --ipc=host"},
    {.exit_code = 137,
     .hint = "128+9: something that it started was killed, mostly for want of memory"},
    {.exit_code = 139, .hint = "128+11: something that it started had a segmentation fault"},
    {.out_of_memory = true,
     .hint =
         "give it more memory (Slurm's --mem, the container's limit), or take a smaller batch and "
         "fewer DataLoader workers"},
    {.signal = SIGKILL,
     .hint = "it was killed by the kernel for want of memory (dmesg, the cgroup's memory.events), "
             "or by kill -9"},
    {.signal = SIGBUS,
     .hint =
         "mostly /dev/shm is full or small: docker run --shm-size=8g, or --ipc=host; else a file "
         "that was cut while it was mapped"},
    {.signal = SIGABRT,
     .text = "terminate called without an active exception",
     .hint = kNotDestroyed},
    {.signal = SIGABRT, .text = "destroy_process_group() was not called", .hint = kNotDestroyed},
    {.signal = SIGABRT, .text = "process group has NOT been destroyed", .hint = kNotDestroyed},
    {.signal = SIGABRT, .text = "Fatal Python error: PyGILState", .hint = kNotDestroyed},
    {.signal = SIGSEGV, .text = "Fatal Python error", .hint = kBelowPython},
    {.signal = SIGSEGV, .text = "(most recent call first)", .hint = kBelowPython},
    {.signal = SIGSEGV, .text = "Extension modules: ", .hint = kBelowPython},
    {.signal = SIGSEGV,
     .hint =
         "a fault in native code: ulimit -c unlimited keeps a core, gdb shows where; in Python, "
         "PYTHONFAULTHANDLER=1"},
    {.signal = SIGILL,
     .hint = "an instruction that this CPU does not have: built with -march=native elsewhere?"},
    {.signal = SIGABRT,
     .hint = "it ended itself: an assertion, or an uncaught exception; in a Python script that "
             "was done: PyTorch at exit without torch.distributed.destroy_process_group()"},
    {.signal = SIGXCPU, .hint = "the limit of CPU time: ulimit -t"},
});

// Returns the line, or the message, that contains the text; nullptr: none.
const std::string* saying(const WorkerEnd& end, std::string_view text) {
  const auto has = [&](const std::string& line) { return line.find(text) != std::string::npos; };
  if (has(end.message)) return &end.message;
  const auto found = std::ranges::find_if(end.stderr_tail, has);
  return found == end.stderr_tail.end() ? nullptr : &*found;
}

std::string word_before(const std::string& line, std::size_t at) {
  const std::size_t blank = at == 0 ? std::string::npos : line.find_last_of(" \t\n", at - 1);
  const std::size_t begin = blank == std::string::npos ? 0 : blank + 1;
  return line.substr(begin, at - begin);
}

bool fits(const Hint& hint, const WorkerEnd& end) {
  if (hint.exit_code && (end.kind != EndKind::kExited || end.code != *hint.exit_code)) return false;
  if (hint.signal && (end.kind != EndKind::kSignaled || end.code != *hint.signal)) return false;
  // For an abort, its message or the rank it blames says more than this hint.
  const bool has_details = !end.message.empty() || end.blames >= 0;
  if (hint.signal == SIGABRT && hint.text.empty() && has_details) return false;
  if (hint.out_of_memory && end.out_of_memory == OutOfMemory::kNo) return false;
  return hint.text.empty() || saying(end, hint.text) != nullptr;
}

// Returns which tool would show where a rank hangs, if its stack does not.
std::string_view hint_for_hang(const WorkerEnd& end) {
  const auto is_of_debugger = [](const std::string& frame) {
    return frame.find('(') != std::string::npos;
  };
  const auto is_of_interpreter = [](const std::string& frame) {
    return frame.starts_with("_Py") || frame.starts_with("Py");
  };
  if (std::ranges::none_of(end.frames, is_of_debugger)) return kNoStack;
  return std::ranges::any_of(end.frames, is_of_interpreter) ? kNoPythonStack : "";
}

}  // namespace

std::string hint_for(const WorkerEnd& end) {
  if (end.after_stop || end.on_request || end.kind == EndKind::kNodeLost ||
      end.kind == EndKind::kNotStarted)
    return "";
  if (end.finished) return std::string(kCrashedAtTheEnd);
  if (end.kind == EndKind::kExited && end.code == 0) return std::string(kLeftEarly);
  if (end.kind == EndKind::kHung) return std::string(hint_for_hang(end));
  for (const TextHint& rule : kTextHints) {
    const std::string* const line = saying(end, rule.text);
    if (!line) continue;
    std::string text(rule.hint);
    if (const std::size_t at = text.find(kSubject); at != std::string::npos) {
      text.replace(at, kSubject.size(), word_before(*line, line->find(rule.text)));
    }
    return text;
  }
  const auto found =
      std::ranges::find_if(kHints, [&](const Hint& hint) { return fits(hint, end); });
  return std::string(found == kHints.end() ? "" : found->hint);
}

}  // namespace ddprun
