// DeviceGuard: makes the device this thread's current one while the guard lives. Streams, events
// and NCCL calls belong to the current device, and the caller's may be another. It makes no
// context on the caller's device. One thread.
#pragma once

#include "worker_lib/nccl/api.h"

namespace ddprun {

class DeviceGuard {
 public:
  DeviceGuard(const NcclApi& api, int device) : api_(api), device_(device) {
    if (api_.get_device(&before_) != CudaResult::kSuccess) before_ = device_;
    if (before_ != device_) api_.set_device(device_);
  }
  ~DeviceGuard() {
    if (before_ == device_) return;
    (api_.restore_device ? api_.restore_device : api_.set_device)(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const NcclApi& api_;
  const int device_;
  int before_ = 0;
};

}  // namespace ddprun
