// The table of the real functions, in the library behind ddprun::worker_cuda.
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <type_traits>

#include "ddprun/context.h"
#include "worker_lib/backend_nccl.h"
#include "worker_lib/nccl_api.h"

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

NcclResult comm_get_async_error(NcclComm comm, NcclResult* state) {
  ncclResult_t theirs = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm, &theirs);
  *state = ours(theirs);
  return ours(result);
}

CudaResult event_query(CudaEvent event) {
  const cudaError_t result = cudaEventQuery(event);
  // "Not ready" stays behind as this thread's last error, and LibTorch would take it for its own.
  if (result == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return ours(result);
}

CudaResult stream_create(CudaStream* stream) {
  int lowest = 0;
  int highest = 0;
  const cudaError_t result = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  if (result != cudaSuccess) return ours(result);
  return ours(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest));
}

constexpr NcclApi kRealApi{
    .get_unique_id = get_unique_id,
    .comm_init_rank = comm_init_rank,
    .comm_get_async_error = comm_get_async_error,
    .comm_finalize = [](NcclComm comm) { return ours(ncclCommFinalize(comm)); },
    .comm_destroy = [](NcclComm comm) { return ours(ncclCommDestroy(comm)); },
    .comm_abort = [](NcclComm comm) { return ours(ncclCommAbort(comm)); },
    .get_error_string =
        [](NcclResult result) { return ncclGetErrorString(static_cast<ncclResult_t>(result)); },
    .get_last_error = [](NcclComm comm) { return ncclGetLastError(comm); },

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
    .get_device = [](int* device) { return ours(cudaGetDevice(device)); },
    .set_device = [](int device) { return ours(cudaSetDevice(device)); },
    .stream_create = stream_create,
    .stream_destroy = [](CudaStream stream) { return ours(cudaStreamDestroy(stream)); },
    .stream_wait_event =
        [](CudaStream stream, CudaEvent event) {
          return ours(cudaStreamWaitEvent(stream, event, cudaEventWaitDefault));
        },
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
