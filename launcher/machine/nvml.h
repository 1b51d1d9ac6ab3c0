// Nvml: the NVIDIA driver's own library, which comes with the driver and not with us: it is opened
// when GPUs are to be counted, and never linked. One owner thread; a call may take seconds where
// the driver has to wake a GPU, and for ever where one has failed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/machine/core/visible_devices.h"

namespace ddprun {

class Nvml {
 public:
  // kNotFound: there is no such library. kSystem: the driver's word.
  static Result<Nvml> open();

  // GPUs of this host, whatever CUDA_VISIBLE_DEVICES says; 0 where the driver does not say.
  int count() const;
  // The same, by their place on the PCI bus. Of each what the driver says.
  std::vector<PresentGpu> gpus() const;
  // "550.54.15"; empty where the driver does not say.
  std::string driver_version() const;
  // The newest CUDA that it can do: 13000 for 13.0; 0 where it does not say.
  int cuda_version() const;
  // GPUs that the driver sets up anew when nobody has used them.
  int count_without_persistence() const;

 private:
  struct Library;
  explicit Nvml(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  std::shared_ptr<const Library> library_;
};

}  // namespace ddprun
