#include "launcher/doctor/gpus.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/background_thread.h"
#include "base/small_file.h"
#include "base/worker_env.h"
#include "launcher/machine/nvml.h"
#include "launcher/plan/program.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

// Without persistence mode the driver needs a second or more to wake each GPU.
constexpr Duration kDriverPatience = std::chrono::seconds(10);
constexpr Duration kOpenPatience = std::chrono::seconds(5);  // for a library on a slow network disk

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// --- GPUs ----------------------------------------------------------------------------------------

int count_device_files() {
  int count = 0;
  for (const fs::path& entry : entries_of("/dev")) {
    const std::string name = entry.filename();
    constexpr std::string_view kNvidia = "nvidia";
    if (name.starts_with(kNvidia) && name.size() > kNvidia.size() &&
        name.find_first_not_of("0123456789", kNvidia.size()) == std::string::npos) {
      ++count;
    }
  }
  return count;
}

int count_pci_devices() {
  int count = 0;
  for (const fs::path& entry : entries_of("/sys/bus/pci/devices")) {
    const bool is_display = first_line_of(entry / "class").starts_with("0x03");
    if (is_display && first_line_of(entry / "vendor") == "0x10de") ++count;
  }
  return count;
}

// Returns the first word of digits and dots of "NVRM version: ... 550.54.15  Tue ...".
std::string kernel_driver_version() {
  std::istringstream words(first_line_of("/proc/driver/nvidia/version"));
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  }
  return "";
}

Result<GpuFacts> ask_driver() {
  GpuFacts facts;
  const Result<Nvml> nvml = Nvml::open();
  if (!nvml) {
    facts.has_library = nvml.error().kind != ErrorKind::kNotFound;
    if (facts.has_library) facts.library_error = nvml.error().cause;
    return facts;
  }
  facts.has_library = true;
  facts.count = nvml->count();
  facts.driver_version = nvml->driver_version();
  facts.cuda_version = nvml->cuda_version();
  facts.without_persistence = nvml->count_without_persistence();
  facts.visible = environment_variable("CUDA_VISIBLE_DEVICES");
  facts.visible_count = static_cast<int>(visible_gpus(facts.visible, nvml->gpus()).size());
  return facts;
}

// --- LibTorch ------------------------------------------------------------------------------------

// Returns the installation that this Python belongs to. Empty: unknown without running it.
fs::path prefix_of_python(const fs::path& python) {
  const fs::path directory = python.parent_path();
  if (is_there(directory.parent_path() / "pyvenv.cfg")) return directory.parent_path();
  if (directory.filename() == "shims") {  // of pyenv: a script that chooses
    const std::string chosen = environment_text("PYENV_VERSION");
    const std::string version =
        chosen.empty() ? first_line_of(directory.parent_path() / "version") : chosen;
    return directory.parent_path() / "versions" / version;
  }
  std::error_code error;
  return fs::canonical(python, error).parent_path().parent_path();
}

// Finds torch in <prefix>/lib/python3.N/site-packages, or in Debian's dist-packages.
void find_packages(const fs::path& prefix, std::vector<std::string>& found) {
  for (const fs::path& python : entries_of(prefix / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      if (is_there(python / packages / "torch" / "lib"))
        found.push_back(python / packages / "torch");
    }
  }
}

std::vector<std::string> library_path() {
  std::vector<std::string> directories;
  std::istringstream list(environment_text("LD_LIBRARY_PATH"));
  for (std::string directory; std::getline(list, directory, ':');) {
    directories.push_back(directory.empty() ? "." : directory);
  }
  return directories;
}

// Returns the text in quotes of a line like "cuda: Optional[str] = '13.0'"; empty: none.
std::string quoted_in(const std::string& line) {
  const std::size_t begin = line.find_first_of("'\"", line.find('='));
  if (begin == std::string::npos) return "";
  const std::size_t end = line.find(line[begin], begin + 1);
  return end == std::string::npos ? "" : line.substr(begin + 1, end - begin - 1);
}

// Returns the version that torch's package requires: "Requires-Dist: nvidia-nccl-cu13==2.28.9;
// ...".
std::string nccl_wanted_by(const fs::path& site_packages) {
  for (const fs::path& entry : entries_of(site_packages)) {
    const std::string name = entry.filename();
    if (!name.starts_with("torch-") || !name.ends_with(".dist-info")) continue;
    std::ifstream metadata(entry / "METADATA");
    for (std::string line; std::getline(metadata, line);) {
      const std::size_t at = line.find("==");
      if (line.starts_with("Requires-Dist: nvidia-nccl-") && at != std::string::npos) {
        const std::size_t end = line.find_first_not_of("0123456789.", at + 2);
        return line.substr(at + 2, end == std::string::npos ? end : end - at - 2);
      }
    }
  }
  return "";
}

// --- NCCL ----------------------------------------------------------------------------------------

// Opens NCCL and asks for its version. name: a path, or a name for the loader. The result has
// the path where it was found.
NcclLibrary open_nccl(const std::string& name) {
  const std::string path = name.find('/') != std::string::npos ? name : "";
  const auto opened =
      result_within<NcclLibrary>(kOpenPatience, "nccl", [name, path]() -> Result<NcclLibrary> {
        NcclLibrary library{.path = path};
        // Never closed: NCCL's threads and exit handlers would run code that is no longer
        // mapped.
        void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
        if (!handle) {
          library.why = dlerror();
          return library;
        }
        const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(handle, "ncclGetVersion"));
        Dl_info info{};
        if (get_version && dladdr(reinterpret_cast<void*>(get_version), &info) != 0 &&
            info.dli_fname) {
          library.path = info.dli_fname;
        }
        int version = 0;
        if (get_version && get_version(&version) == 0) {
          library.version = nccl_version_text(version);
        } else {
          library.why = "it does not report its version";
        }
        return library;
      });
  if (!opened)
    return {.path = path, .why = "it could not be opened within " + to_text(kOpenPatience)};
  if (!*opened) return {.path = path, .why = opened->error().message()};
  return **opened;
}

}  // namespace

GpuFacts look_at_gpus() {
  const auto asked = result_within<GpuFacts>(kDriverPatience, "nvml", ask_driver);
  GpuFacts facts;
  if (!asked) {
    facts.library_hangs = true;
  } else if (!*asked) {
    facts.library_error = asked->error().message();
  } else {
    facts = **asked;
  }
  facts.device_files = count_device_files();
  facts.pci_devices = count_pci_devices();
  facts.kernel_driver_version = kernel_driver_version();
  return facts;
}

std::vector<std::string> libtorch_directories(const std::string& given) {
  std::vector<std::string> found;
  if (!given.empty()) {
    if (is_there(fs::path(given) / "lib")) found.push_back(given);
    return found;
  }
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = environment_text(variable);
    if (!prefix.empty()) find_packages(prefix, found);
  }
  if (const Result<std::string> python = find_python()) {
    const fs::path prefix = prefix_of_python(*python);
    if (!prefix.empty()) find_packages(prefix, found);
    if (prefix == "/usr") find_packages("/usr/local", found);
  }
  find_packages(".venv", found);
  for (const fs::path directory : library_path()) {
    if (is_there(directory / "libtorch.so")) found.push_back(directory.parent_path());
  }
  return found;
}

LibTorchFacts read_libtorch(const std::string& root) {
  LibTorchFacts facts{.root = root};
  std::ifstream file(fs::path(root) / "version.py");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("__version__")) facts.version = quoted_in(line);
    if (line.starts_with("cuda:") || line.starts_with("cuda =")) facts.cuda = quoted_in(line);
  }
  if (facts.version.empty()) {
    facts.version =
        first_line_of(fs::path(root) / "build-version");  // of the archive without Python
    // "2.11.0+cu130"
    const std::size_t at = facts.version.find("+cu");
    if (at != std::string::npos && facts.version.size() > at + 4) {
      const std::string digits = facts.version.substr(at + 3);
      facts.cuda = digits.substr(0, digits.size() - 1) + "." + digits.substr(digits.size() - 1);
    }
  }
  facts.nccl = nccl_wanted_by(fs::path(root).parent_path());
  return facts;
}

NcclFacts look_at_nccl(const std::string& given) {
  NcclFacts facts;
  const std::vector<std::string> directories = libtorch_directories(given);
  if (!directories.empty()) facts.torch = read_libtorch(directories.front());
  // The loader's library is opened first: of two with the same name, the loader returns the open
  // one.
  facts.of_loader = open_nccl("libnccl.so.2");
  for (const std::string& directory : library_path()) {
    std::error_code error;
    const fs::path here = fs::path(directory) / "libnccl.so.2";
    if (!is_there(here)) continue;
    facts.of_loader.by_variable = fs::equivalent(here, facts.of_loader.path, error);
    break;
  }
  if (facts.torch.root.empty()) return facts;
  const fs::path in_wheel =
      fs::path(facts.torch.root).parent_path() / "nvidia/nccl/lib/libnccl.so.2";
  if (is_there(in_wheel)) facts.beside_torch = open_nccl(in_wheel);
  return facts;
}

std::string nccl_version_text(int version) {
  const int major_unit = version >= 10000 ? 10000 : 1000;  // since 2.9
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / 100) +
         "." + std::to_string(version % 100);
}

}  // namespace ddprun
