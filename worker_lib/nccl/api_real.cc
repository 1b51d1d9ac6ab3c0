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

template <class Ours, class Theirs>
constexpr bool is_same_number(Ours ours, Theirs theirs) {
  return static_cast<long>(ours) == static_cast<long>(theirs);
}

static_assert(is_same_number(NcclResult::kSuccess, ncclSuccess));
static_assert(is_same_number(NcclResult::kUnhandledCudaError, ncclUnhandledCudaError));
static_assert(is_same_number(NcclResult::kSystemError, ncclSystemError));
static_assert(is_same_number(NcclResult::kInternalError, ncclInternalError));
static_assert(is_same_number(NcclResult::kInvalidArgument, ncclInvalidArgument));
static_assert(is_same_number(NcclResult::kInvalidUsage, ncclInvalidUsage));
static_assert(is_same_number(NcclResult::kRemoteError, ncclRemoteError));
static_assert(is_same_number(NcclResult::kInProgress, ncclInProgress));

static_assert(is_same_number(NcclType::kInt8, ncclInt8));
static_assert(is_same_number(NcclType::kUint8, ncclUint8));
static_assert(is_same_number(NcclType::kInt32, ncclInt32));
static_assert(is_same_number(NcclType::kInt64, ncclInt64));
static_assert(is_same_number(NcclType::kFloat16, ncclFloat16));
static_assert(is_same_number(NcclType::kFloat32, ncclFloat32));
static_assert(is_same_number(NcclType::kFloat64, ncclFloat64));
static_assert(is_same_number(NcclType::kBfloat16, ncclBfloat16));

static_assert(is_same_number(NcclOp::kSum, ncclSum));
static_assert(is_same_number(NcclOp::kProd, ncclProd));
static_assert(is_same_number(NcclOp::kMax, ncclMax));
static_assert(is_same_number(NcclOp::kMin, ncclMin));
static_assert(is_same_number(NcclOp::kAvg, ncclAvg));

static_assert(is_same_number(CudaResult::kSuccess, cudaSuccess));
static_assert(is_same_number(CudaResult::kNotReady, cudaErrorNotReady));

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(std::is_same_v<NcclComm, ncclComm_t>);
static_assert(std::is_same_v<CudaStream, cudaStream_t>);
static_assert(std::is_same_v<CudaEvent, cudaEvent_t>);

NcclResult ours(ncclResult_t result) { return static_cast<NcclResult>(result); }
CudaResult ours(cudaError_t result) { return static_cast<CudaResult>(result); }
ncclDataType_t theirs(NcclType type) { return static_cast<ncclDataType_t>(type); }
ncclRedOp_t theirs(NcclOp op) { return static_cast<ncclRedOp_t>(op); }

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
  std::vector<ncclUniqueId> named(static_cast<std::size_t>(id_count));
  for (int i = 0; i < id_count; ++i) {
    std::memcpy(named[static_cast<std::size_t>(i)].internal, ids[i].bytes.data(),
                sizeof(ncclUniqueId));
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

NcclResult mem_alloc(void** memory, std::size_t bytes) {
  return ours(nccl_mem_alloc(memory, bytes));
}
NcclResult mem_free(void* memory) { return ours(nccl_mem_free(memory)); }
NcclResult comm_register(NcclComm comm, void* memory, std::size_t bytes, void** handle) {
  return ours(nccl_register(comm, memory, bytes, handle));
}
NcclResult comm_deregister(NcclComm comm, void* handle) {
  return ours(nccl_deregister(comm, handle));
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
    .comm_finalize = [](NcclComm comm) { return ours(ncclCommFinalize(comm)); },
    .comm_destroy = [](NcclComm comm) { return ours(ncclCommDestroy(comm)); },
    .comm_abort = [](NcclComm comm) { return ours(ncclCommAbort(comm)); },
    .comm_init_rank_scalable = nccl_init_rank_scalable ? comm_init_rank_scalable : nullptr,
    .comm_split = nccl_split ? comm_split : nullptr,
    .comm_revoke = nccl_revoke ? comm_revoke : nullptr,
    .get_error_string =
        [](NcclResult result) { return ncclGetErrorString(static_cast<ncclResult_t>(result)); },
    .get_last_error = [](NcclComm comm) { return ncclGetLastError(comm); },

    .mem_alloc = nccl_mem_alloc ? mem_alloc : nullptr,
    .mem_free = nccl_mem_free ? mem_free : nullptr,
    .comm_register = nccl_register ? comm_register : nullptr,
    .comm_deregister = nccl_deregister ? comm_deregister : nullptr,

    .red_op_create_premul_sum =
        [](NcclOp* op, const void* scalar, NcclType type, NcclComm comm) {
          ncclRedOp_t made = ncclSum;
          const ncclResult_t result = ncclRedOpCreatePreMulSum(
              &made, const_cast<void*>(scalar), theirs(type), ncclScalarHostImmediate, comm);
          *op = static_cast<NcclOp>(made);
          return ours(result);
        },
    .red_op_destroy = [](NcclOp op,
                         NcclComm comm) { return ours(ncclRedOpDestroy(theirs(op), comm)); },

    .group_start = [] { return ours(ncclGroupStart()); },
    .group_end = [] { return ours(ncclGroupEnd()); },
    .all_reduce =
        [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op,
           NcclComm comm, CudaStream stream) {
          return ours(ncclAllReduce(send, receive, count, theirs(type), theirs(op), comm, stream));
        },
    .reduce =
        [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op, int root,
           NcclComm comm, CudaStream stream) {
          return ours(
              ncclReduce(send, receive, count, theirs(type), theirs(op), root, comm, stream));
        },
    .broadcast =
        [](const void* send, void* receive, std::size_t count, NcclType type, int root,
           NcclComm comm, CudaStream stream) {
          return ours(ncclBroadcast(send, receive, count, theirs(type), root, comm, stream));
        },
    .all_gather =
        [](const void* send, void* receive, std::size_t send_count, NcclType type, NcclComm comm,
           CudaStream stream) {
          return ours(ncclAllGather(send, receive, send_count, theirs(type), comm, stream));
        },
    .reduce_scatter =
        [](const void* send, void* receive, std::size_t receive_count, NcclType type, NcclOp op,
           NcclComm comm, CudaStream stream) {
          return ours(ncclReduceScatter(send, receive, receive_count, theirs(type), theirs(op),
                                        comm, stream));
        },
    .send =
        [](const void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
           CudaStream stream) {
          return ours(ncclSend(data, count, theirs(type), peer, comm, stream));
        },
    .recv =
        [](void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
           CudaStream stream) {
          return ours(ncclRecv(data, count, theirs(type), peer, comm, stream));
        },

    .get_device_count = [](int* count) { return ours(cudaGetDeviceCount(count)); },
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
    .stream_destroy = [](CudaStream stream) { return ours(cudaStreamDestroy(stream)); },
    .stream_wait_event =
        [](CudaStream stream, CudaEvent event) {
          return ours(cudaStreamWaitEvent(stream, event, cudaEventWaitDefault));
        },
    .stream_is_capturing = stream_is_capturing,
    .event_create =
        [](CudaEvent* event) {
          return ours(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
        },
    .event_destroy = [](CudaEvent event) { return ours(cudaEventDestroy(event)); },
    .event_record = [](CudaEvent event,
                       CudaStream stream) { return ours(cudaEventRecord(event, stream)); },
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
