#include "launcher/machine/topology.h"

#if DDPRUN_HAS_HWLOC

#include <dlfcn.h>
#include <hwloc.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/library_function.h"
#include "base/printed.h"
#include "base/usable_cpus.h"

namespace ddprun {
namespace {

// Hwloc: the table through which hwloc's functions are called, because hwloc is never linked.
struct Hwloc {
  decltype(&hwloc_get_api_version) get_api_version = nullptr;
  decltype(&hwloc_topology_init) init = nullptr;
  decltype(&hwloc_topology_set_flags) set_flags = nullptr;
  decltype(&hwloc_topology_set_io_types_filter) set_io_types_filter = nullptr;
  decltype(&hwloc_topology_load) load = nullptr;
  decltype(&hwloc_topology_destroy) destroy = nullptr;
  decltype(&hwloc_topology_is_thissystem) is_thissystem = nullptr;
  decltype(&hwloc_get_type_depth) get_type_depth = nullptr;
  decltype(&hwloc_get_nbobjs_by_depth) get_nbobjs_by_depth = nullptr;
  decltype(&hwloc_get_obj_by_depth) get_obj_by_depth = nullptr;
  decltype(&hwloc_bitmap_next) bitmap_next = nullptr;

  // Fills the table. Returns whether the library has all functions.
  bool find_in(void* library) {
    const auto find = [library](const char* name, auto& function) {
      return find_function(library, name, function);
    };
    return find("hwloc_get_api_version", get_api_version) && find("hwloc_topology_init", init) &&
           find("hwloc_topology_set_flags", set_flags) &&
           find("hwloc_topology_set_io_types_filter", set_io_types_filter) &&
           find("hwloc_topology_load", load) && find("hwloc_topology_destroy", destroy) &&
           find("hwloc_topology_is_thissystem", is_thissystem) &&
           find("hwloc_get_type_depth", get_type_depth) &&
           find("hwloc_get_nbobjs_by_depth", get_nbobjs_by_depth) &&
           find("hwloc_get_obj_by_depth", get_obj_by_depth) &&
           find("hwloc_bitmap_next", bitmap_next);
  }
};

struct Unloaded {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Unloaded>;

Error not_there(std::string cause) {
  return Error{.kind = ErrorKind::kUnsupported,
               .doing = "ask hwloc for this machine's cores",
               .cause = std::move(cause)};
}

// Scan: one scan of the machine.
class Scan {
 public:
  explicit Scan(const Hwloc& hwloc) : hwloc_(hwloc) {}
  ~Scan() {
    if (topology_) hwloc_.destroy(topology_);
  }
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  // Scans the machine. Includes CPUs that this process may not use, because a GPU may be next
  // to them. Scans the PCI bus only if with_pci is set: the bus takes half of the time.
  bool load(bool with_pci) {
    if (hwloc_.init(&topology_) != 0) return false;
    if (with_pci) {
      hwloc_.set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    }
    return hwloc_.set_flags(topology_, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0 &&
           hwloc_.load(topology_) == 0;
  }

  bool is_this_machine() const { return hwloc_.is_thissystem(topology_) != 0; }

  std::vector<ProcessorCore> cores() const {
    std::vector<ProcessorCore> cores;
    std::map<hwloc_uint64_t, std::size_t> by_object;
    std::map<hwloc_uint64_t, int> caches;
    for (const hwloc_obj_t thread : objects(HWLOC_OBJ_PU)) {
      // Virtual machines may have no cores or no caches.
      const hwloc_obj_t core = above(thread, HWLOC_OBJ_CORE, thread);
      const auto [place, is_new] = by_object.emplace(core->gp_index, cores.size());
      if (is_new) {
        const hwloc_obj_t package = above(thread, HWLOC_OBJ_PACKAGE, nullptr);
        const hwloc_obj_t cache = last_cache(thread);
        const int number = static_cast<int>(caches.size());
        cores.push_back({.package = package ? static_cast<int>(package->logical_index) : 0,
                         .numa_node = std::max(0, hwloc_.bitmap_next(thread->nodeset, -1)),
                         .cache = caches.emplace(cache->gp_index, number).first->second,
                         .cpus = {}});
      }
      cores[place->second].cpus.insert(static_cast<int>(thread->os_index));
    }
    return cores;
  }

  // Returns the CPUs nearest to a PCI device. Empty: not known. That includes a device that is
  // equally near to several NUMA nodes because its place is not reported.
  CpuSet near(const std::string& bus_id) const {
    for (const hwloc_obj_t device : objects(HWLOC_OBJ_PCI_DEVICE)) {
      const auto& pci = device->attr->pcidev;
      if (bus_id != printed("%04x:%02x:%02x.%x", unsigned{pci.domain}, unsigned{pci.bus},
                            unsigned{pci.dev}, unsigned{pci.func})) {
        continue;
      }
      hwloc_obj_t place = device;
      while (place && !place->cpuset) place = place->parent;
      const bool says_nothing =
          !place || (!place->parent && objects(HWLOC_OBJ_NUMANODE).size() > 1);
      return says_nothing ? CpuSet{} : cpus_of(place->cpuset);
    }
    return {};
  }

 private:
  std::vector<hwloc_obj_t> objects(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> found;
    const int depth = hwloc_.get_type_depth(topology_, type);
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) return found;
    const unsigned count = hwloc_.get_nbobjs_by_depth(topology_, depth);
    for (unsigned i = 0; i < count; ++i) {
      found.push_back(hwloc_.get_obj_by_depth(topology_, depth, i));
    }
    return found;
  }

  static hwloc_obj_t above(hwloc_obj_t object, hwloc_obj_type_t type, hwloc_obj_t otherwise) {
    for (; object; object = object->parent) {
      if (object->type == type) return object;
    }
    return otherwise;
  }

  static hwloc_obj_t last_cache(hwloc_obj_t thread) {
    hwloc_obj_t cache = nullptr;
    for (hwloc_obj_t object = thread; object; object = object->parent) {
      const bool holds_data =
          object->type >= HWLOC_OBJ_L1CACHE && object->type <= HWLOC_OBJ_L5CACHE;
      if (holds_data) cache = object;
      if (!cache && !object->parent) cache = object;  // the machine
    }
    return cache;
  }

  CpuSet cpus_of(hwloc_const_bitmap_t bitmap) const {
    CpuSet cpus;
    for (int cpu = hwloc_.bitmap_next(bitmap, -1); cpu >= 0;
         cpu = hwloc_.bitmap_next(bitmap, cpu)) {
      cpus.insert(cpu);
    }
    return cpus;
  }

  const Hwloc& hwloc_;
  hwloc_topology_t topology_ = nullptr;
};

}  // namespace

Result<FoundMachine> find_machine(const TopologyOptions& options) {
  const Library library(dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    const char* why = dlerror();
    return not_there((why ? why : options.library) +
                     std::string(": install libhwloc15 (hwloc-libs on Red Hat's systems)"));
  }
  Hwloc hwloc;
  if (!hwloc.find_in(library.get()) || hwloc.get_api_version() >> 16 != HWLOC_API_VERSION >> 16) {
    return not_there(options.library + " is not hwloc version 2: install libhwloc15");
  }
  Scan scan(hwloc);
  if (!scan.load(!options.gpus.empty())) {
    return not_there("hwloc cannot read them (check HWLOC_XMLFILE and HWLOC_SYNTHETIC)");
  }
  FoundMachine found;
  found.machine.cores = scan.cores();
  for (const VisibleGpu& gpu : options.gpus) {
    found.machine.gpus.push_back({gpu.name, gpu.bus_id, scan.near(gpu.bus_id)});
  }
  found.is_this_one = scan.is_this_machine();
  if (found.is_this_one) {
    const std::vector<int> usable = usable_cpus();
    found.machine.usable = {usable.begin(), usable.end()};
  } else {
    for (const ProcessorCore& core : found.machine.cores) {
      found.machine.usable.insert(core.cpus.begin(), core.cpus.end());
    }
  }
  return found;
}

}  // namespace ddprun

#else

namespace ddprun {

Result<FoundMachine> find_machine(const TopologyOptions&) {
  return Error{
      .kind = ErrorKind::kUnsupported,
      .doing = "ask hwloc for this machine's cores",
      .cause = "this ddprun was built without hwloc: install libhwloc-dev and build again"};
}

}  // namespace ddprun

#endif
