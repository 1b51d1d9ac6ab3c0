#include "launcher/machine/core/visible_devices.h"

#include <algorithm>

#include "base/counted.h"
#include "base/parse_number.h"
#include "base/split.h"

namespace ddprun {
namespace {

// Returns the entries up to the first one that is invalid on any machine.
std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  for (const std::string_view entry : split(list, ',')) {
    const std::size_t begin = entry.find_first_not_of(' ');
    if (begin == std::string::npos || entry[begin] == '-') break;
    entries.emplace_back(entry.substr(begin, entry.find_last_not_of(' ') + 1 - begin));
  }
  return entries;
}

// Returns the GPU that an entry names. nullopt: CUDA would not find it either.
std::optional<VisibleGpu> meant_gpu(const std::string& entry,
                                    const std::vector<PresentGpu>& present) {
  if (entry.starts_with("MIG-")) return VisibleGpu{entry, ""};
  if (const std::optional<std::size_t> number = parse_number<std::size_t>(entry)) {
    if (*number >= present.size()) return std::nullopt;
    return VisibleGpu{entry, present[*number].bus_id};
  }
  for (const PresentGpu& gpu : present) {
    if (gpu.uuid.starts_with(entry)) return VisibleGpu{entry, gpu.bus_id};
  }
  return std::nullopt;
}

}  // namespace

std::vector<VisibleGpu> visible_gpus(const std::optional<std::string>& visible,
                                     const std::vector<PresentGpu>& present) {
  std::vector<VisibleGpu> gpus;
  if (!visible) {
    for (std::size_t i = 0; i < present.size(); ++i) {
      gpus.push_back({std::to_string(i), present[i].bus_id});
    }
    return gpus;
  }
  if (present.empty()) return gpus;
  for (const std::string& entry : entries_of(*visible)) {
    std::optional<VisibleGpu> gpu = meant_gpu(entry, present);
    if (!gpu) break;
    gpus.push_back(std::move(*gpu));
  }
  return gpus;
}

Result<std::vector<std::string>> devices_of(const std::optional<std::string>& visible, int workers,
                                            int present) {
  const auto wanted = static_cast<std::size_t>(workers);
  std::vector<std::string> devices;
  if (visible) {
    devices = entries_of(*visible);
  } else {
    const int known = present > 0 ? present : workers;
    for (int i = 0; i < known; ++i) devices.push_back(std::to_string(i));
  }
  if (devices.size() < wanted) {
    const std::string whose = visible ? "CUDA_VISIBLE_DEVICES=" + *visible : "this machine";
    return invalid_argument(whose + " has " + counted(devices.size(), "GPU") + " for " +
                            counted(workers, "worker") + ": each needs its own");
  }
  devices.resize(wanted);
  return devices;
}

bool may_be_numbered_otherwise(const std::string& order, const std::vector<PresentGpu>& present) {
  return order != "PCI_BUS_ID" && std::ranges::any_of(present, [&](const PresentGpu& gpu) {
           return gpu.model != present.front().model;
         });
}

}  // namespace ddprun
