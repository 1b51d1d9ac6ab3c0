// Doubles of a driver's library and of an NCCL: the functions of libnvidia-ml.so.1 and
// libnccl.so.2 that ddprun calls. FAKE_DRIVER sets the state of the driver: "well" (two GPUs,
// one without persistence mode, CUDA 12.8), "mismatch" or "hangs".
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

extern "C" {

int nvmlInit_v2() {
  const char* how = std::getenv("FAKE_DRIVER");
  const std::string_view text = how ? how : "";
  while (text == "hangs") pause();
  constexpr int kMismatch = 18;  // NVML_ERROR_LIB_RM_VERSION_MISMATCH
  return text == "well" ? 0 : kMismatch;
}
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "Driver/library version mismatch"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "570.99");
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12080;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(std::size_t{index} + 1);
  return 0;
}
int nvmlDeviceGetPersistenceMode(void* device, int* mode) {
  *mode = device == reinterpret_cast<void*>(std::size_t{1}) ? 1 : 0;
  return 0;
}

int ncclGetVersion(int* version) {
  *version = 21801;
  return 0;
}

}  // extern "C"
