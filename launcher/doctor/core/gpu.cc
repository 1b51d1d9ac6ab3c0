// Checks of GPUs, their driver, and NCCL. See launcher/doctor/core/doctor.h.

#include "base/counted.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "launcher/doctor/core/doctor.h"

namespace ddprun {
namespace {

using enum Level;

std::string gpus_text(int count) { return counted(count, "GPU"); }

// Returns the text of the driver's CUDA version number: "13.0" for 13000.
std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Finding without_gpus(const DoctorFacts& facts) {
  const GpuFacts& gpus = facts.gpus;
  Finding finding{.seen = "there is no GPU", .details = {{"count", 0}}};
  if (gpus.library_hangs) {
    finding.seen = "the driver's library (NVML) does not answer";
    finding.rate(
        kProblem, "programs that use the GPUs hang when they start",
        "a GPU has most likely failed: `dmesg | grep -i xid`; remove the node from service and "
        "reboot it");
  } else if (!gpus.library_error.empty() && gpus.device_files + gpus.pci_devices > 0) {
    finding.seen = "the driver's library (NVML) fails: " + gpus.library_error;
    finding.rate(
        kProblem, "no program can use a GPU",
        "after an update of the driver reboot the machine; `nvidia-smi` shows the same error");
  } else if (gpus.device_files > 0 && !gpus.has_library) {
    finding.seen =
        "/dev has " + gpus_text(gpus.device_files) + ", but libnvidia-ml.so.1 is missing";
    finding.rate(kProblem, "no program can use a GPU",
                 "start the container with the NVIDIA container toolkit: docker run --gpus all");
  } else if (gpus.pci_devices > 0) {
    finding.seen = "the machine has " + gpus_text(gpus.pci_devices) + " of NVIDIA, but " +
                   (gpus.kernel_driver_version.empty()
                        ? "no driver is loaded"
                        : "the driver " + gpus.kernel_driver_version + " shows none here");
    finding.rate(kProblem, "no program can use a GPU",
                 "install the driver (`modprobe nvidia`); in a container: docker run --gpus all");
  } else if (facts.job.wants_gpus) {
    finding.rate(kProblem, "--nproc-per-node=gpu finds no GPU: exit code 2",
                 "start the job on a node with GPUs, or give a number, cpu or auto");
  } else {
    finding.seen += ": workers use the cpu backend or gloo";
  }
  return finding;
}

std::optional<Finding> judge_gpus(const DoctorFacts& facts) {
  const GpuFacts& gpus = facts.gpus;
  if (gpus.count == 0) return without_gpus(facts);
  Finding finding{.seen = gpus_text(gpus.count), .details = {{"count", gpus.count}}};
  if (gpus.visible) {
    finding.seen += ", of these " + std::to_string(gpus.visible_count) +
                    " by CUDA_VISIBLE_DEVICES=" + *gpus.visible;
    finding.details.emplace_back("visible", gpus.visible_count);
  }
  const int usable = gpus.visible ? gpus.visible_count : gpus.count;
  if (usable == 0) {
    finding.rate(facts.job.wants_gpus ? kProblem : kWarning, "programs see no GPU at all",
                 "unset CUDA_VISIBLE_DEVICES, or ask the scheduler for GPUs");
  } else if (facts.job.workers_here > usable) {
    finding.rate(kWarning,
                 counted(facts.job.workers_here, "worker") +
                     " share them: NCCL refuses two ranks on one GPU",
                 "--nproc-per-node=gpu starts one worker for each");
  } else if (gpus.without_persistence > 0) {
    finding.seen += "; " + std::to_string(gpus.without_persistence) + " without persistence mode";
    finding.rate(kNote, "the driver initialises an unused GPU again, which takes seconds",
                 "start nvidia-persistenced, or nvidia-smi -pm 1");
  }
  return finding;
}

// Returns the number before the first dot of "13.0"; 0 if there is none.
int major_of(const std::string& version) {
  return parse_number<int>(version.substr(0, version.find('.'))).value_or(0);
}

std::optional<Finding> judge_driver(const DoctorFacts& facts) {
  const GpuFacts& gpus = facts.gpus;
  if (gpus.count == 0) {
    const std::string& loaded = gpus.kernel_driver_version;
    return Finding{.seen = loaded.empty() ? "NVIDIA's driver is not loaded"
                                          : "NVIDIA's driver " + loaded + " is loaded"};
  }
  const LibTorchFacts& torch = facts.nccl.torch;
  Finding finding{
      .seen = "NVIDIA's driver is " + gpus.driver_version + ", for CUDA up to " +
              cuda_text(gpus.cuda_version),
      .details = {{"driver", gpus.driver_version}, {"cuda", cuda_text(gpus.cuda_version)}}};
  if (torch.root.empty()) return finding;
  finding.seen += torch.cuda.empty()
                      ? "; LibTorch " + torch.version + " is built without CUDA"
                      : "; LibTorch " + torch.version + " is built with " + torch.cuda;
  if (torch.cuda.empty()) {
    finding.rate(kWarning, "its programs do not use the GPUs",
                 "install a LibTorch that is built with CUDA");
  } else if (gpus.cuda_version / 1000 < major_of(torch.cuda)) {
    finding.rate(kProblem, "its programs see no GPU: the driver is older than their CUDA",
                 "update the driver, or install a LibTorch that is built with CUDA " +
                     std::to_string(gpus.cuda_version / 1000) + " or older");
  }
  return finding;
}

// --- NCCL ----------------------------------------------------------------------------------------

// Returns 22809 for 2.28.9, so that versions can be compared; 0 for text that is not a version.
int number_of(const std::string& version) {
  const std::vector<std::string_view> parts = split(version, '.');
  if (parts.size() < 3) return 0;
  int number = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto value = parse_number<int>(parts[i]);
    if (!value) return 0;
    number = number * 100 + *value;
  }
  return number;
}

std::string library_text(const NcclLibrary& library) {
  return "NCCL " +
         (library.version.empty() ? "of an unknown version (" + library.why + ")"
                                  : library.version) +
         " at " + library.path;
}

std::string install_text(const LibTorchFacts& torch, const std::string& version) {
  return "pip install nvidia-nccl-cu" + std::to_string(major_of(torch.cuda)) + "==" + version;
}

Finding without_nccl(const DoctorFacts& facts) {
  const LibTorchFacts& torch = facts.nccl.torch;
  const bool has_gpus = facts.gpus.count > 0;
  if (!torch.nccl.empty()) {
    return {.level = has_gpus ? kProblem : kNote,
            .seen = "LibTorch " + torch.version + " needs NCCL " + torch.nccl +
                    ", and it was not found",
            .effect = "programs that link libtorch_cuda do not start: libnccl.so.2 is missing",
            .advice = install_text(torch, torch.nccl)};
  }
  if (!torch.root.empty()) {
    return {.seen = "no libnccl.so.2 was found; LibTorch " + torch.version +
                    (torch.cuda.empty() ? " is built without CUDA" : " may have NCCL inside")};
  }
  if (!has_gpus)
    return {.seen = "neither NCCL nor LibTorch was found; without a GPU none is needed"};
  return {.level = kWarning,
          .seen = "neither libnccl.so.2 nor a LibTorch was found",
          .effect = "programs with their own copy run; others do not start",
          .advice =
              "activate the virtual environment with PyTorch, or give its directory: "
              "--libtorch=DIR; LD_LIBRARY_PATH and ldconfig set where libraries are found"};
}

std::string comparison_text(const LibTorchFacts& torch) {
  if (torch.root.empty()) return "no LibTorch was found to compare it with";
  if (torch.nccl.empty()) return "LibTorch " + torch.version + " does not record its NCCL version";
  return "LibTorch " + torch.version + " was built with " + torch.nccl;
}

// Fills in what it means that this library's version is not the one that LibTorch was built
// with.
void judge_version(const NcclLibrary& library, const DoctorFacts& facts, std::string advice,
                   Finding& finding) {
  const bool older = number_of(library.version) < number_of(facts.nccl.torch.nccl);
  finding.rate(!older                 ? kNote
               : facts.gpus.count > 0 ? kProblem
                                      : kWarning,
               older ? "it lacks functions that LibTorch calls ('undefined symbol: nccl...'), or "
                       "workers hang if nodes have different versions"
                     : "newer versions usually work if all nodes have the same",
               std::move(advice));
}

std::optional<Finding> judge_nccl(const DoctorFacts& facts) {
  const NcclFacts& nccl = facts.nccl;
  const LibTorchFacts& torch = nccl.torch;
  if (nccl.hangs) {
    return Finding{.level = kProblem,
                   .seen = "a file system hangs while NCCL and LibTorch are searched on it",
                   .effect = "workers that load them from there also hang, and cannot be killed",
                   .advice =
                       "check the disks of PATH, LD_LIBRARY_PATH and the virtual environment: `df` "
                       "hangs at the same one"};
  }
  // LibTorch uses the NCCL that is installed next to it.
  const NcclLibrary& used = nccl.beside_torch.path.empty() ? nccl.of_loader : nccl.beside_torch;
  if (used.path.empty()) return without_nccl(facts);
  Finding finding{.seen = library_text(used) + "; " + comparison_text(torch),
                  .details = {{"nccl", used.version},
                              {"libtorch", torch.version},
                              {"libtorch_nccl", torch.nccl},
                              {"path", used.path}}};
  const auto differs = [&](const NcclLibrary& library) {
    return !library.version.empty() && number_of(torch.nccl) > 0 && library.version != torch.nccl;
  };
  if (used.version.empty()) {
    finding.rate(
        facts.gpus.count > 0 ? kProblem : kWarning, "programs that link libtorch_cuda do not start",
        "install it again" + (torch.nccl.empty() ? "" : ": " + install_text(torch, torch.nccl)));
  } else if (nccl.of_loader.by_variable && differs(nccl.of_loader)) {
    if (&used != &nccl.of_loader) {
      finding.seen += "; but LD_LIBRARY_PATH contains " + library_text(nccl.of_loader);
    }
    judge_version(
        nccl.of_loader, facts,
        "remove its directory from LD_LIBRARY_PATH: programs that link NCCL themselves load that "
        "one, and LibTorch then uses it, too",
        finding);
  } else if (differs(used)) {
    judge_version(used, facts, install_text(torch, torch.nccl), finding);
  }
  return finding;
}

}  // namespace

std::vector<Check> gpu_checks() {
  return {{"gpus", judge_gpus}, {"driver", judge_driver}, {"nccl", judge_nccl}};
}

}  // namespace ddprun
