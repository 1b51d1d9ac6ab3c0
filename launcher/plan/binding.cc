#include "launcher/plan/binding.h"

#include <algorithm>
#include <utility>

#include "base/worker_env.h"
#include "launcher/machine/machine.h"
#include "launcher/machine/nvml.h"
#include "launcher/machine/topology.h"
#include "launcher/plan/core/binding_drawing.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {
namespace {

// Asked: the option that asks for the binding or its drawing, and that option with its value.
struct Asked {
  std::string option = "--show-binding";
  std::string words = "--bind none";
};
Asked asked_by(const LaunchOptions& options) {
  if (options.numa_binding) {
    const std::string_view word = enum_name(kNumaBindingWords, *options.numa_binding);
    return {"--numa-binding", "--numa-binding " + std::string(word)};
  }
  if (!options.bind || *options.bind == BindPolicy::kNone) return {};
  return {"--bind", "--bind " + std::string(enum_name(kBindWords, *options.bind))};
}

// Returns a variable as workers see it before ddprun adds its own: from --env, else inherited.
std::optional<std::string> given_variable(const LaunchOptions& options, const std::string& name) {
  const auto given = std::find_if(options.variables.rbegin(), options.variables.rend(),
                                  [&](const auto& variable) { return variable.first == name; });
  if (given != options.variables.rend()) return given->second;
  return environment_variable(name);
}

std::string given_threads(const LaunchOptions& options) {
  return given_variable(options, "OMP_NUM_THREADS").value_or("");
}

struct Placed {
  FoundMachine found;
  Placement placement;
};

enum class Purpose { kStart, kDrawing };

// Places the workers on this machine. The policies numa and core query no GPUs, except for a
// drawing, because the driver may be slow.
Result<Placed> place_here(const LaunchOptions& options, int workers, Purpose purpose) {
  const BindPolicy policy = options.bind_policy();
  const auto [option, words] = asked_by(options);
  TopologyOptions wanted;
  std::vector<std::string> remarks;
  const bool places_by_gpu =
      policy != BindPolicy::kNuma && policy != BindPolicy::kCore && policy != BindPolicy::kNone;
  if (places_by_gpu || purpose == Purpose::kDrawing) {
    const std::vector<PresentGpu> present = present_gpus();
    wanted.gpus = visible_gpus(shared_devices(options), present);
    const std::string order = given_variable(options, "CUDA_DEVICE_ORDER").value_or("");
    if (places_by_gpu && may_be_numbered_otherwise(order, present)) {
      remarks.push_back(option +
                        ": the GPUs are of different models, and CUDA numbers the fastest first; "
                        "set CUDA_DEVICE_ORDER=PCI_BUS_ID for the order used here");
    }
  }
  Result<FoundMachine> found = find_machine(wanted);
  if (!found) return std::move(found).error().within(option);
  Result<Placement> placement = place_workers(found->machine, {policy, words, workers});
  if (!placement) return std::move(placement).error().within(option);
  placement->remarks.insert(placement->remarks.begin(), remarks.begin(), remarks.end());
  return Placed{std::move(*found), std::move(*placement)};
}

}  // namespace

Result<Binding> bind_workers(const LaunchOptions& options, int workers) {
  Binding binding;
  if (options.bind_policy() == BindPolicy::kNone) {
    Seat seat;
    if (given_threads(options).empty()) seat.threads = threads_of_each(count_cores(), workers);
    binding.seats.assign(static_cast<std::size_t>(workers), seat);
    return binding;
  }
  Result<Placed> placed = place_here(options, workers, Purpose::kStart);
  if (!placed) return placed.error();
  if (!placed->found.is_this_one) {
    return invalid_argument(
               "HWLOC_XMLFILE or HWLOC_SYNTHETIC describes another machine, which only "
               "--show-binding can use; set HWLOC_THISSYSTEM=1 if it is this machine")
        .within(asked_by(options).option);
  }
  binding.text = describe(placed->placement);
  binding.seats = std::move(placed->placement.seats);
  binding.remarks = std::move(placed->placement.remarks);
  return binding;
}

Result<std::string> show_binding(const LaunchOptions& options) {
  // Checks only what the drawing needs; a start reports other errors in the options.
  if (const Result<Rendezvous> fits = plan_rendezvous(options); !fits) return fits.error();
  const Result<int> workers = count_slots(options.slots);
  if (!workers) return workers.error();
  Result<Placed> placed = place_here(options, *workers, Purpose::kDrawing);
  if (!placed) return placed.error();
  return draw({.host = host_name(),
               .machine = std::move(placed->found.machine),
               .placement = std::move(placed->placement),
               .threads = given_threads(options)});
}

std::optional<std::string> shared_devices(const LaunchOptions& options) {
  return given_variable(options, "CUDA_VISIBLE_DEVICES");
}

Result<std::vector<std::string>> own_devices(const LaunchOptions& options, int workers) {
  if (options.gpu_visibility != GpuVisibility::kOwn && !options.virtual_local_rank) {
    return std::vector<std::string>();
  }
  const std::optional<std::string> visible = shared_devices(options);
  const int present = visible ? 0 : static_cast<int>(present_gpus().size());
  auto devices = devices_of(visible, workers, present);
  if (devices) return devices;
  return std::move(devices).error().within(options.virtual_local_rank ? "--virtual-local-rank"
                                                                      : "--gpu-visibility");
}

}  // namespace ddprun
