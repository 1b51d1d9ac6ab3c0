// The table of the real functions, in the library of ddprun::worker_cuda.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "ddprun/nccl_backend.h"
#include "worker_lib/nccl/api.h"
#include "worker_lib/nccl/backend_nccl.h"

namespace ddprun {
namespace {

constexpr NcclResult ours(ncclResult_t result) { return static_cast<NcclResult>(result); }
constexpr CudaResult ours(cudaError_t result) { return static_cast<CudaResult>(result); }
constexpr ncclDataType_t theirs(NcclType type) { return static_cast<ncclDataType_t>(type); }
constexpr ncclRedOp_t theirs(NcclOp op) { return static_cast<ncclRedOp_t>(op); }

static_assert(ours(ncclSuccess) == NcclResult::kSuccess);
static_assert(ours(ncclUnhandledCudaError) == NcclResult::kUnhandledCudaError);
static_assert(ours(ncclSystemError) == NcclResult::kSystemError);
static_assert(ours(ncclInternalError) == NcclResult::kInternalError);
static_assert(ours(ncclInvalidArgument) == NcclResult::kInvalidArgument);
static_assert(ours(ncclInvalidUsage) == NcclResult::kInvalidUsage);
static_assert(ours(ncclRemoteError) == NcclResult::kRemoteError);
static_assert(ours(ncclInProgress) == NcclResult::kInProgress);

static_assert(theirs(NcclType::kInt8) == ncclInt8);
static_assert(theirs(NcclType::kUint8) == ncclUint8);
static_assert(theirs(NcclType::kInt32) == ncclInt32);
static_assert(theirs(NcclType::kInt64) == ncclInt64);
static_assert(theirs(NcclType::kFloat16) == ncclFloat16);
static_assert(theirs(NcclType::kFloat32) == ncclFloat32);
static_assert(theirs(NcclType::kFloat64) == ncclFloat64);
static_assert(theirs(NcclType::kBfloat16) == ncclBfloat16);

static_assert(theirs(NcclOp::kSum) == ncclSum);
static_assert(theirs(NcclOp::kProd) == ncclProd);
static_assert(theirs(NcclOp::kMax) == ncclMax);
static_assert(theirs(NcclOp::kMin) == ncclMin);
static_assert(theirs(NcclOp::kAvg) == ncclAvg);

static_assert(ours(cudaSuccess) == CudaResult::kSuccess);
static_assert(ours(cudaErrorNotReady) == CudaResult::kNotReady);

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(std::is_same_v<NcclComm, ncclComm_t>);
static_assert(std::is_same_v<CudaStream, cudaStream_t>);
static_assert(std::is_same_v<CudaEvent, cudaEvent_t>);

template <class Same>
Same theirs(Same argument) {
  return argument;
}

// Calls the function. Converts our enums to NCCL's, and its result to ours.
template <auto kFunction, class Result, class... Arguments>
Result call(Arguments... arguments) {
  return ours(kFunction(theirs(arguments)...));
}

NcclResult get_unique_id(NcclUniqueId* id) {
  ncclUniqueId made;
  const ncclResult_t result = ncclGetUniqueId(&made);
  if (result == ncclSuccess) std::memcpy(id->bytes.data(), made.internal, sizeof(made));
  return ours(result);
}

NcclResult comm_init_rank(NcclComm* comm, int size, const NcclUniqueId& id, int rank) {
  ncclUniqueId named;
  std::memcpy(named.internal, id.bytes.data(), sizeof(named));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return ours(ncclCommInitRankConfig(comm, size, named, rank, &config));
}

// Functions newer than the oldest NCCL that we build with are looked up in the loaded NCCL,
// which may also be newer than the header. The types are those of nccl.h, which do not change.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

const auto nccl_init_rank_scalable =
    find<ncclResult_t(ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*)>(
        "ncclCommInitRankScalable");
const auto nccl_split =
    find<ncclResult_t(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*)>("ncclCommSplit");
const auto nccl_revoke = find<ncclResult_t(ncclComm_t, int)>("ncclCommRevoke");
const auto nccl_mem_alloc = find<ncclResult_t(void**, std::size_t)>("ncclMemAlloc");
const auto nccl_mem_free = find<ncclResult_t(void*)>("ncclMemFree");
const auto nccl_register =
    find<ncclResult_t(ncclComm_t, void*, std::size_t, void**)>("ncclCommRegister");
const auto nccl_deregister = find<ncclResult_t(ncclComm_t, void*)>("ncclCommDeregister");

NcclResult comm_init_rank_scalable(NcclComm* comm, int size, int rank, const NcclUniqueId* ids,
                                   int id_count) {
  std::vector<ncclUniqueId> named(id_count);
  for (int i = 0; i < id_count; ++i) {
    std::memcpy(named[i].internal, ids[i].bytes.data(), sizeof(ncclUniqueId));
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return ours(nccl_init_rank_scalable(comm, size, rank, id_count, named.data(), &config));
}

// Without a configuration the part is non-blocking, too.
NcclResult comm_split(NcclComm comm, int color, int key, NcclComm* part) {
  return ours(nccl_split(comm, color, key, part, nullptr));
}

NcclResult comm_revoke(NcclComm comm) { return ours(nccl_revoke(comm, /*revokeFlags=*/0)); }

// Returns a function that calls kFunction; null if the loaded NCCL has none. found: kFunction.
template <auto& kFunction, class... Arguments>
auto if_found(ncclResult_t (*found)(Arguments...)) {
  NcclResult (*const caller)(Arguments...) = [](Arguments... arguments) {
    return ours(kFunction(arguments...));
  };
  return found ? caller : nullptr;
}

NcclResult comm_get_async_error(NcclComm comm, NcclResult* state) {
  ncclResult_t theirs = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm, &theirs);
  *state = ours(theirs);
  return ours(result);
}

// A query could end a capture that another thread has begun in the usual, global mode. The
// relaxed mode of this thread prevents it.
CudaResult event_query(CudaEvent event) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t result = cudaEventQuery(event);
  cudaThreadExchangeStreamCaptureMode(&mode);
  // "Not ready" would stay as this thread's last error, and LibTorch would take it for its own.
  if (result == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return ours(result);
}

// LibTorch's functions throw if they cannot report an error, as on a host without a driver.
template <class Call>
CudaResult without_exceptions(const Call& call) {
  try {
    return ours(call());
  } catch (const c10::Error&) {
    const cudaError_t last = cudaGetLastError();
    return ours(last == cudaSuccess ? cudaErrorUnknown : last);
  }
}

CudaResult get_device(int* device) {
  c10::DeviceIndex current = 0;
  const cudaError_t result = c10::cuda::GetDevice(&current);
  *device = current;
  return ours(result);
}

CudaResult stream_create(CudaStream* stream) {
  int lowest = 0;
  int highest = 0;
  const cudaError_t result = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  if (result != cudaSuccess) return ours(result);
  return ours(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest));
}

CudaResult stream_is_capturing(CudaStream stream, bool* is_capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t result = cudaStreamIsCapturing(stream, &status);
  *is_capturing = status != cudaStreamCaptureStatusNone;
  return ours(result);
}

const NcclApi kRealApi{
    .get_unique_id = get_unique_id,
    .comm_init_rank = comm_init_rank,
    .comm_get_async_error = comm_get_async_error,
    .comm_finalize = call<ncclCommFinalize>,
    .comm_destroy = call<ncclCommDestroy>,
    .comm_abort = call<ncclCommAbort>,
    .comm_init_rank_scalable = nccl_init_rank_scalable ? comm_init_rank_scalable : nullptr,
    .comm_split = nccl_split ? comm_split : nullptr,
    .comm_revoke = nccl_revoke ? comm_revoke : nullptr,
    .get_error_string =
        [](NcclResult result) { return ncclGetErrorString(static_cast<ncclResult_t>(result)); },
    .get_last_error = [](NcclComm comm) { return ncclGetLastError(comm); },

    .mem_alloc = if_found<nccl_mem_alloc>(nccl_mem_alloc),
    .mem_free = if_found<nccl_mem_free>(nccl_mem_free),
    .comm_register = if_found<nccl_register>(nccl_register),
    .comm_deregister = if_found<nccl_deregister>(nccl_deregister),

    .red_op_create_premul_sum =
        [](NcclOp* op, const void* scalar, NcclType type, NcclComm comm) {
          ncclRedOp_t made = ncclSum;
          const ncclResult_t result = ncclRedOpCreatePreMulSum(
              &made, const_cast<void*>(scalar), theirs(type), ncclScalarHostImmediate, comm);
          *op = static_cast<NcclOp>(made);
          return ours(result);
        },
    .red_op_destroy = call<ncclRedOpDestroy>,

    .group_start = call<ncclGroupStart>,
    .group_end = call<ncclGroupEnd>,
    .all_reduce = call<ncclAllReduce>,
    .reduce = call<ncclReduce>,
    .broadcast = call<ncclBroadcast>,
    .all_gather = call<ncclAllGather>,
    .reduce_scatter = call<ncclReduceScatter>,
    .send = call<ncclSend>,
    .recv = call<ncclRecv>,

    .get_device_count = call<cudaGetDeviceCount>,
    // LibTorch's functions: they know of a device that was restored without a context.
    .get_device = get_device,
    .set_device =
        [](int device) {
          return without_exceptions(
              [=] { return c10::cuda::SetDevice(static_cast<c10::DeviceIndex>(device)); });
        },
    .restore_device =
        [](int device) {
          return without_exceptions(
              [=] { return c10::cuda::MaybeSetDevice(static_cast<c10::DeviceIndex>(device)); });
        },
    .stream_create = stream_create,
    .stream_destroy = call<cudaStreamDestroy>,
    .stream_wait_event =
        [](CudaStream stream, CudaEvent event) {
          return ours(cudaStreamWaitEvent(stream, event, cudaEventWaitDefault));
        },
    .stream_is_capturing = stream_is_capturing,
    .event_create =
        [](CudaEvent* event) {
          return ours(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
        },
    .event_destroy = call<cudaEventDestroy>,
    .event_record = call<cudaEventRecord>,
    .event_query = event_query,
    .memcpy_async =
        [](void* to, const void* from, std::size_t bytes, CudaStream stream) {
          return ours(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
        },
    .cuda_error_string =
        [](CudaResult result) { return cudaGetErrorString(static_cast<cudaError_t>(result)); },

    .current_stream =
        [](int device) {
          return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
        },
};

}  // namespace

const NcclApi& real_nccl_api() { return kRealApi; }

BackendFactory* nccl_backend_factory() {
  static BackendFactory factory(kRealApi);
  return &factory;
}

}  // namespace ddprun
