#include "launcher/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/worker_env.h"

namespace ddprun {

// Declared here, because nvml.h is not there on most machines that we are built on.
struct Nvml::Library {
  void* handle = nullptr;
  bool is_ready = false;

  Library() : handle(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (const auto shut_down = function<int (*)()>("nvmlShutdown"); is_ready && shut_down)
      shut_down();
    if (handle) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Null where the library does not have it.
  template <class Function>
  Function function(const char* name) const {
    return handle ? reinterpret_cast<Function>(dlsym(handle, name)) : nullptr;
  }
};

Result<Nvml> Nvml::open() {
  const auto library = std::make_shared<Library>();
  const std::string doing = "open libnvidia-ml.so.1";
  if (!library->handle)
    return Error{.kind = ErrorKind::kNotFound, .doing = doing, .cause = dlerror()};
  const auto init = library->function<int (*)()>("nvmlInit_v2");
  const int status = init ? init() : -1;
  if (status != 0) {
    const auto words = library->function<const char* (*)(int)>("nvmlErrorString");
    return Error{.doing = doing, .cause = words ? words(status) : "it is no NVML"};
  }
  library->is_ready = true;
  return Nvml(library);
}

int Nvml::count() const {
  const auto get = library_->function<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  unsigned count = 0;
  return get && get(&count) == 0 ? static_cast<int>(count) : 0;
}

std::string Nvml::driver_version() const {
  const auto get = library_->function<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  std::array<char, 128> text{};
  return get && get(text.data(), text.size()) == 0 ? text.data() : "";
}

int Nvml::cuda_version() const {
  const auto get = library_->function<int (*)(int*)>("nvmlSystemGetCudaDriverVersion_v2");
  int version = 0;
  return get && get(&version) == 0 ? version : 0;
}

int Nvml::count_without_persistence() const {
  const auto handle_of =
      library_->function<int (*)(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
  const auto mode_of = library_->function<int (*)(void*, int*)>("nvmlDeviceGetPersistenceMode");
  int off = 0;
  for (int i = 0; handle_of && mode_of && i < count(); ++i) {
    void* device = nullptr;
    int mode = 1;
    if (handle_of(static_cast<unsigned>(i), &device) == 0 && mode_of(device, &mode) == 0 &&
        mode == 0)
      ++off;
  }
  return off;
}

int visible_gpus(int present) {
  const std::optional<std::string> visible = environment_variable("CUDA_VISIBLE_DEVICES");
  if (!visible || present == 0) return present;
  int count = 0;
  std::istringstream list(*visible);
  for (std::string device; std::getline(list, device, ',');) {
    if (device.empty() || device.starts_with('-'))
      break;  // CUDA, too, stops at the first invalid one
    ++count;
  }
  return std::min(count, present);
}

}  // namespace ddprun
