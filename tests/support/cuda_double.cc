// A CUDA driver for tests on machines without a GPU. It has the functions that ddprun calls, and
// runs PTX, of which it knows the instructions of gpu_kernels.h, one thread after the other.
// It is loaded as libcuda.so.1 from LD_LIBRARY_PATH. The memory of a GPU is the process's own.
//
// DDPRUN_TEST_GPUS names the GPUs by their PCI bus, such as "1b,9d".
// DDPRUN_TEST_CUDA plants a fault: "bit-at-1", "bit-at-0" (a bit of memory never changes),
// "wrong-product", "slow-copy", "hang" (the first use never returns), "hang-all" (nor does that of
// the other GPUs in its process), "crash", or the name of a function, which then fails.
// "FAULT@1": only on the GPU 1. "FAULT@0,FAULT@1": both. "init=N": cuInit returns N.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidPtx = 218;
constexpr int kNotFound = 500;
constexpr std::size_t kFree = std::size_t{10} << 20;

thread_local int current_device = -1;

std::vector<std::string> buses() {
  std::vector<std::string> found;
  const char* named = std::getenv("DDPRUN_TEST_GPUS");
  std::istringstream list(named ? named : "");
  for (std::string bus; std::getline(list, bus, ',');) found.push_back(bus);
  return found;
}

bool has_fault(std::string_view name, int device = current_device) {
  const char* planted = std::getenv("DDPRUN_TEST_CUDA");
  std::istringstream list(planted ? planted : "");
  const std::string here = std::string(name) + "@" + std::to_string(device);
  for (std::string fault; std::getline(list, fault, ',');) {
    if (fault == name || fault == here) return true;
  }
  return false;
}

[[noreturn]] void pause_forever() {
  while (true) pause();
}

// Returns whether a GPU with "hang-all" is in use in this process. The others wait for it, because
// all are used at about the same time.
bool has_hanging_gpu(int device) {
  static std::mutex mutex;
  static std::condition_variable hung;
  static bool hangs = false;
  const char* planted = std::getenv("DDPRUN_TEST_CUDA");
  if (!planted || !std::string_view(planted).starts_with("hang-all")) return false;
  std::unique_lock lock(mutex);
  if (has_fault("hang-all", device)) {
    hangs = true;
    hung.notify_all();
  }
  return hung.wait_for(lock, std::chrono::seconds(2), [] { return hangs; });
}

// --- PTX

enum class Op {
  kMove,
  kAdd,
  kMultiply,
  kMultiplyAdd,
  kXor,
  kNotBelow,
  kBelow,
  kEqual,
  kLoadParam,
  kLoad,
  kStore,
  kAddInMemory,
  kBranch,
  kReturn
};

struct Instruction {
  Op op;
  bool is_wide = false;                      // the result has 64 bits
  std::size_t condition = 0;                 // the register that must be true
  std::size_t target = 0;                    // of a branch
  std::array<std::size_t, 4> operands = {};  // registers. A constant has one, too
};

struct Kernel {
  std::string name;
  std::vector<bool> parameter_is_wide;
  // Before a thread runs. The first ones: true, and the place in the grid.
  std::vector<std::uint64_t> registers;
  std::vector<Instruction> code;
};

constexpr std::array kPlace{"%ctaid.x", "%ntid.x", "%tid.x"};  // the registers 1 to 3

using Module = std::vector<std::unique_ptr<Kernel>>;

std::vector<std::string> words_of(std::string text) {
  for (char& c : text) {
    if (c == ',' || c == ';' || c == '[' || c == ']' || c == '(' || c == ')') c = ' ';
  }
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Reader: reads the text of a module. Throws std::out_of_range or std::invalid_argument for what it
// does not know.
class Reader {
 public:
  Module read(const std::string& text) {
    std::istringstream lines(text);
    std::string statement;
    for (std::string line; std::getline(lines, line);) {
      statement += " " + line;
      const std::vector<std::string> words = words_of(statement);
      const bool is_entry = !words.empty() && words.front() == ".visible";
      if (is_entry && line.find(')') == line.npos) continue;  // goes on in the next line
      statement.clear();
      if (!words.empty()) take(words);
    }
    return std::move(module_);
  }

 private:
  void take(const std::vector<std::string>& words) {
    const std::string& first = words.front();
    if (first == ".version" || first == ".target" || first == ".address_size" || first == ".reg" ||
        first == "{") {
      return;
    }
    if (first == ".visible") return begin(words);
    if (first == "}") return end();
    if (first.back() == ':') {
      labels_[first.substr(0, first.size() - 1)] = kernel().code.size();
      return;
    }
    std::size_t at = 0;
    Instruction instruction{};
    if (first.front() == '@') instruction.condition = register_of(words[at++].substr(1));
    const std::string& name = words.at(at++);
    instruction.op = op_of(name);
    instruction.is_wide = name.find("64") != name.npos || name.find(".wide") != name.npos;
    if (instruction.op == Op::kBranch) {
      branches_[kernel().code.size()] = words.at(at++);
    }
    for (std::size_t i = 0; at < words.size(); ++i) {
      instruction.operands.at(i) = register_of(words[at++]);
    }
    kernel().code.push_back(instruction);
  }

  // ".visible .entry NAME .param .u64 NAME .param .u32 NAME"
  void begin(const std::vector<std::string>& words) {
    module_.push_back(std::make_unique<Kernel>());
    kernel().name = words.at(2);
    kernel().registers = {1};
    numbers_.clear();
    for (const char* place : kPlace) register_of(place);
    parameters_.clear();
    labels_.clear();
    branches_.clear();
    for (std::size_t i = 3; i < words.size(); i += 3) {
      parameters_[words.at(i + 2)] = kernel().parameter_is_wide.size();
      kernel().parameter_is_wide.push_back(words.at(i + 1) == ".u64");
    }
  }
  void end() {
    for (const auto& [at, label] : branches_) kernel().code[at].target = labels_.at(label);
  }

  Kernel& kernel() { return *module_.back(); }

  static Op op_of(const std::string& name) {
    static const std::map<std::string, Op> kOps{{"mov.u32", Op::kMove},
                                                {"cvta.to.global.u64", Op::kMove},
                                                {"add.u32", Op::kAdd},
                                                {"add.u64", Op::kAdd},
                                                {"mul.lo.u32", Op::kMultiply},
                                                {"mul.wide.u32", Op::kMultiply},
                                                {"mad.lo.u32", Op::kMultiplyAdd},
                                                {"xor.b32", Op::kXor},
                                                {"setp.ge.u32", Op::kNotBelow},
                                                {"setp.lt.u32", Op::kBelow},
                                                {"setp.eq.u32", Op::kEqual},
                                                {"ld.param.u32", Op::kLoadParam},
                                                {"ld.param.u64", Op::kLoadParam},
                                                {"ld.global.u32", Op::kLoad},
                                                {"st.global.u32", Op::kStore},
                                                {"red.global.add.u32", Op::kAddInMemory},
                                                {"bra", Op::kBranch},
                                                {"ret", Op::kReturn}};
    return kOps.at(name);
  }

  // Returns the register of a name, a parameter's number or a constant.
  std::size_t register_of(const std::string& word) {
    const auto [place, is_new] = numbers_.try_emplace(word, kernel().registers.size());
    if (is_new) {
      const auto parameter = parameters_.find(word);
      kernel().registers.push_back(parameter != parameters_.end() ? parameter->second
                                   : word.front() == '%'          ? 0
                                                                  : std::stoull(word));
    }
    return place->second;
  }

  Module module_;
  std::map<std::string, std::size_t> numbers_, parameters_, labels_;
  std::map<std::size_t, std::string> branches_;
};

// Runs one thread of a kernel.
void run_thread(const Kernel& kernel, void** arguments, std::vector<std::uint64_t>& registers) {
  const auto word_at = [](std::uint64_t address) {
    return reinterpret_cast<std::uint32_t*>(address);
  };
  for (std::size_t at = 0; at < kernel.code.size();) {
    const Instruction& one = kernel.code[at++];
    if (registers[one.condition] == 0) continue;
    const auto& [first, second, third, fourth] = one.operands;
    std::uint64_t result = 0;
    switch (one.op) {
      case Op::kMove: result = registers[second]; break;
      case Op::kAdd: result = registers[second] + registers[third]; break;
      case Op::kMultiply: result = registers[second] * registers[third]; break;
      case Op::kMultiplyAdd:
        result = registers[second] * registers[third] + registers[fourth];
        break;
      case Op::kXor: result = registers[second] ^ registers[third]; break;
      case Op::kNotBelow: result = registers[second] >= registers[third]; break;
      case Op::kBelow: result = registers[second] < registers[third]; break;
      case Op::kEqual: result = registers[second] == registers[third]; break;
      case Op::kLoadParam:
        std::memcpy(&result, arguments[registers[second]],
                    kernel.parameter_is_wide[registers[second]] ? sizeof(std::uint64_t)
                                                                : sizeof(std::uint32_t));
        break;
      case Op::kLoad: result = *word_at(registers[second]); break;
      case Op::kStore:
        *word_at(registers[first]) = static_cast<std::uint32_t>(registers[second]);
        continue;
      case Op::kAddInMemory:
        *word_at(registers[first]) += static_cast<std::uint32_t>(registers[second]);
        continue;
      case Op::kBranch: at = one.target; continue;
      case Op::kReturn: return;
    }
    registers[first] = one.is_wide ? result : static_cast<std::uint32_t>(result);
  }
}

}  // namespace

extern "C" {

int cuGetErrorName(int status, const char** name) {
  switch (status) {
    case kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case kInvalidPtx: *name = "CUDA_ERROR_INVALID_PTX"; return 0;
  }
  return kInvalidValue;
}

int cuInit(unsigned) {
  const char* planted = std::getenv("DDPRUN_TEST_CUDA");
  if (planted && std::string_view(planted).starts_with("init=")) return std::atoi(planted + 5);
  return buses().empty() ? kNoDevice : 0;
}
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(buses().size());
  return has_fault("cuDeviceGetCount") ? kInvalidValue : 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%s:00.0",
                buses().at(static_cast<std::size_t>(device)).c_str());
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (has_fault("hang", device)) pause_forever();
  if (has_hanging_gpu(device)) pause_forever();
  if (has_fault("crash", device)) std::raise(SIGKILL);
  *context = reinterpret_cast<void*>(static_cast<std::size_t>(device) + 1);
  return has_fault("cuDevicePrimaryCtxRetain", device) ? kInvalidValue : 0;
}
int cuCtxSetCurrent(void* context) {
  current_device = static_cast<int>(reinterpret_cast<std::size_t>(context)) - 1;
  return 0;
}
int cuCtxSynchronize() { return has_fault("cuCtxSynchronize") ? kInvalidValue : 0; }

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *free = *total = kFree;
  return 0;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  if (bytes == 0 || bytes > kFree || has_fault("cuMemAlloc")) return kOutOfMemory;
  *address = reinterpret_cast<std::uint64_t>(new std::uint64_t[bytes / 8 + 1]);
  return 0;
}
int cuMemsetD32_v2(std::uint64_t to, unsigned value, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) reinterpret_cast<std::uint32_t*>(to)[i] = value;
  return 0;
}
int cuMemcpyDtoD_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  if (has_fault("slow-copy")) poll(nullptr, 0, 20);
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return has_fault("cuMemcpyDtoH") ? kInvalidValue : 0;
}

int cuModuleLoadData(void** module, const void* text) {
  try {
    *module = new Module(Reader().read(static_cast<const char*>(text)));
    return 0;
  } catch (const std::exception&) {
    return kInvalidPtx;
  }
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  for (const auto& kernel : *static_cast<Module*>(module)) {
    *function = kernel.get();
    if (kernel->name == name) return 0;
  }
  return kNotFound;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, void*, void** arguments, void**) {
  const auto& kernel = *static_cast<const Kernel*>(function);
  if (blocks == 0 || threads == 0 || threads > 1024) return kInvalidValue;
  std::vector<std::uint64_t> registers = kernel.registers;
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < threads; ++thread) {
      registers[1] = block;
      registers[2] = threads;
      registers[3] = thread;
      run_thread(kernel, arguments, registers);
    }
  }
  std::uint64_t address = 0;  // of what the kernel has written
  std::memcpy(&address, arguments[kernel.name == "multiply" ? 2 : 0], sizeof address);
  auto* const word = reinterpret_cast<std::uint32_t*>(address) + 5;
  if (kernel.name == "fill" && has_fault("bit-at-1")) *word |= 1U << 7;
  if (kernel.name == "fill" && has_fault("bit-at-0")) *word &= ~(1U << 7);
  if (kernel.name == "multiply" && has_fault("wrong-product")) *word ^= 1;
  return 0;
}

}  // extern "C"
