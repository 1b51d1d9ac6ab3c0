#include "worker_lib/context/core/backend_choice.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/concat.h"
#include "base/joined.h"

namespace ddprun {
namespace {

Error unsupported(std::string cause) {
  return {.kind = ErrorKind::kUnsupported, .doing = {}, .cause = std::move(cause)};
}

const CustomBackend* find_custom_backend(const BackendEnvironment& around, std::string_view name) {
  const auto found = std::ranges::find(around.custom_backends, name, &CustomBackend::name);
  return found == around.custom_backends.end() ? nullptr : &*found;
}

// Checks that the backend exists and that this program has it.
Result<void> find_backend(const std::string& name, const BackendEnvironment& around) {
  if (name == "cpu" || find_custom_backend(around, name)) return {};
  if (name == "nccl") {
    if (around.has_nccl) return {};
    return unsupported(
        "backend nccl needs a program that is linked with ddprun::worker_cuda; this one is linked "
        "with ddprun::worker");
  }
  std::vector<std::string> known{"cpu", "nccl"};
  for (const CustomBackend& one : around.custom_backends) known.push_back(one.name);
  return invalid_argument("there is no backend '" + name + "'; there are " +
                          joined_with_and(known));
}

bool has_type(const std::vector<BackendChoice::Server>& servers, std::string_view type) {
  return std::ranges::count(servers, type, &BackendChoice::Server::device_type) > 0;
}

// Returns the types of devices that a backend supports. cpu also accepts tensors of every other
// device.
std::vector<std::string> types_for(const std::string& name, const BackendEnvironment& around) {
  if (name == "nccl") return {"cuda"};
  if (const CustomBackend* const custom = find_custom_backend(around, name)) {
    return custom->device_types;
  }
  return {"cpu"};
}

bool takes(const std::string& name, const std::string& type, const BackendEnvironment& around) {
  return name == "cpu" || std::ranges::count(types_for(name, around), type) > 0;
}

// Parses "cpu:cpu,cuda:nccl".
Result<std::vector<BackendChoice::Server>> read_list(std::string_view list,
                                                     const BackendEnvironment& around) {
  std::vector<BackendChoice::Server> servers;
  while (true) {
    const std::string_view one = list.substr(0, list.find(','));
    const std::size_t colon = one.find(':');
    if (colon == 0 || colon == one.npos || colon + 1 == one.size()) {
      return invalid_argument(concat("invalid backend part '", one,
                                     "' (expected DEVICE:BACKEND, as in cpu:cpu,cuda:nccl)"));
    }
    const std::string type(one.substr(0, colon));
    const std::string name(one.substr(colon + 1));
    const Result<void> found = find_backend(name, around);
    if (!found) return found.error();
    if (!takes(name, type, around)) {
      return invalid_argument("backend " + name + " is for device " +
                              joined_with_and(types_for(name, around)) + ", not " + type);
    }
    if (has_type(servers, type)) {
      return invalid_argument("device " + type + " is given two backends");
    }
    servers.push_back({type, name});
    if (one.size() == list.size()) return servers;
    list.remove_prefix(one.size() + 1);
  }
}

// Returns the backends that the program asks for, or the default ones.
Result<std::vector<BackendChoice::Server>> wanted(const BackendRequest& request,
                                                  const BackendEnvironment& around) {
  if (!request.backend) {
    std::vector<BackendChoice::Server> servers{{"cpu", "cpu"}};
    // Without nccl, a GPU's tensors are copied through the host.
    const bool on_gpu =
        request.device ? request.device->type == "cuda" : around.has_nccl && around.gpus > 0;
    if (on_gpu) servers.push_back({"cuda", around.has_nccl ? "nccl" : "cpu"});
    return servers;
  }
  if (request.backend->find_first_of(":,") != std::string::npos) {
    return read_list(*request.backend, around);
  }
  const Result<void> found = find_backend(*request.backend, around);
  if (!found) return found.error();
  std::vector<BackendChoice::Server> servers;
  for (const std::string& type : types_for(*request.backend, around)) {
    servers.push_back({type, *request.backend});
  }
  if (*request.backend != "cpu") return servers;
  std::string other = around.gpus > 0 ? "cuda" : "";
  if (request.device && request.device->type != "cpu") other = request.device->type;
  if (!other.empty()) servers.push_back({other, *request.backend});
  return servers;
}

// Returns the device type of a rank that names none: a GPU before the CPU, unless the only named
// backend is cpu.
std::string default_type(const BackendRequest& request,
                         const std::vector<BackendChoice::Server>& servers) {
  if (request.backend != "cpu" && has_type(servers, "cuda")) return "cuda";
  return has_type(servers, "cpu") ? "cpu" : servers.front().device_type;
}

Result<DeviceChoice> place_on_gpu(DeviceChoice device, const BackendEnvironment& around) {
  if (around.gpus == 0) return unsupported("there is no GPU here, or no driver for it");
  if (!device.index) device.index = around.local_rank.value % around.gpus;
  if (*device.index < 0 || *device.index >= around.gpus) {
    return invalid_argument(concat("device cuda:", *device.index, " does not exist; there are ",
                                   around.gpus, " GPUs, cuda:0 to cuda:", around.gpus - 1));
  }
  return device;
}

}  // namespace

const std::string& BackendChoice::main_backend() const {
  const auto found = std::ranges::find(servers, device.type, &Server::device_type);
  DDPRUN_ASSERT(found != servers.end(), "the device's tensors have a backend");
  return found->backend;
}

Result<BackendChoice> choose_backends(const BackendRequest& request,
                                      const BackendEnvironment& environment) {
  Result<std::vector<BackendChoice::Server>> servers = wanted(request, environment);
  if (!servers) return servers.error();
  BackendChoice choice{.device = request.device.value_or(
                           DeviceChoice{.type = default_type(request, *servers), .index = {}}),
                       .servers = std::move(*servers)};
  const std::string& type = choice.device.type;
  if (!has_type(choice.servers, type)) {
    if (request.backend) {
      std::vector<std::string> types;
      for (const BackendChoice::Server& one : choice.servers) types.push_back(one.device_type);
      return invalid_argument("backend " + *request.backend + " is for device " +
                              joined_with_and(types) + ", not " + type);
    }
    return invalid_argument("device " + type + " is not known here; there are cpu and cuda");
  }
  if (type != "cuda") return choice;
  const Result<DeviceChoice> placed = place_on_gpu(choice.device, environment);
  if (!placed) return placed.error();
  choice.device = *placed;
  return choice;
}

}  // namespace ddprun
