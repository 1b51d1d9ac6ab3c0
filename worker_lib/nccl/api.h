// NcclApi: the table of every NCCL and CUDA run-time function that ddprun calls.
//
// The nccl backend uses only this table and includes no CUDA header. So it compiles and is
// tested on machines without NCCL and CUDA: tests fill the table with a double. The library of
// ddprun::worker_cuda fills it with the real functions (api_real.cc, which also proves with
// static_assert that the numbers below are NCCL's).
//
// Handles are the opaque types that nccl.h and cuda_runtime_api.h declare, too. Thread rules are
// those of the real functions. Each entry does what its namesake does, unless its comment says
// otherwise.
#pragma once

#include <array>
#include <cstddef>

struct ncclComm;
struct CUstream_st;
struct CUevent_st;

namespace ddprun {

using NcclComm = ncclComm*;
using CudaStream = CUstream_st*;
using CudaEvent = CUevent_st*;

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// Values above these are made by red_op_create_premul_sum.
enum class NcclOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

enum class CudaResult : int { kSuccess = 0, kNotReady = 600 };

// Identifies a communicator that is being formed: rank 0 makes it, and all ranks pass it.
struct NcclUniqueId {
  std::array<char, 128> bytes;
};

struct NcclApi {
  // --- NCCL: communicators ---
  NcclResult (*get_unique_id)(NcclUniqueId* id);
  // ncclCommInitRankConfig with a non-blocking communicator. This call, and all calls with the
  // communicator, may answer kInProgress. Then comm_get_async_error must be called until it
  // answers something else. With NCCL_COMM_BLOCKING=1 in the environment the calls block
  // instead.
  NcclResult (*comm_init_rank)(NcclComm* comm, int size, const NcclUniqueId& id, int rank);
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* state);
  NcclResult (*comm_finalize)(NcclComm comm);
  NcclResult (*comm_destroy)(NcclComm comm);
  NcclResult (*comm_abort)(NcclComm comm);
  // Entries with a version are null if the loaded NCCL is older.
  // 2.23: as comm_init_rank, with one id for each root of the bootstrap.
  NcclResult (*comm_init_rank_scalable)(NcclComm* comm, int size, int rank, const NcclUniqueId* ids,
                                        int id_count);
  // 2.18: answers kSuccess while `comm` is in progress. `part` is null, and is written before
  // `comm` leaves that state, even if the split failed. Color -1 gives no part, and crashes if
  // the split fails or is aborted (2.28.9, 2.30.7).
  NcclResult (*comm_split)(NcclComm comm, int color, int key, NcclComm* part);
  // 2.28: stops all work on the device; in progress until the device is quiet. Legal only if
  // comm_get_async_error has answered kSuccess after the last call; otherwise NCCL crashes.
  NcclResult (*comm_revoke)(NcclComm comm);
  const char* (*get_error_string)(NcclResult result);
  const char* (*get_last_error)(NcclComm comm);  // comm may be null

  // --- NCCL: memory that it can use without copies (2.19) ---
  NcclResult (*mem_alloc)(void** memory, std::size_t bytes);
  NcclResult (*mem_free)(void* memory);
  NcclResult (*comm_register)(NcclComm comm, void* memory, std::size_t bytes, void** handle);
  NcclResult (*comm_deregister)(NcclComm comm, void* handle);

  // --- NCCL: reductions ---
  // Makes the operation that multiplies this rank's values by the scalar and then sums. scalar:
  // one element of the type in host memory, read at once. The operation is for this
  // communicator. It may be destroyed as soon as the calls with it have been made.
  NcclResult (*red_op_create_premul_sum)(NcclOp* op, const void* scalar, NcclType type,
                                         NcclComm comm);
  NcclResult (*red_op_destroy)(NcclOp op, NcclComm comm);

  // --- NCCL: collectives. Counts are elements of the type. ---
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*all_reduce)(const void* send, void* receive, std::size_t count, NcclType type,
                           NcclOp op, NcclComm comm, CudaStream stream);
  NcclResult (*reduce)(const void* send, void* receive, std::size_t count, NcclType type, NcclOp op,
                       int root, NcclComm comm, CudaStream stream);
  NcclResult (*broadcast)(const void* send, void* receive, std::size_t count, NcclType type,
                          int root, NcclComm comm, CudaStream stream);
  NcclResult (*all_gather)(const void* send, void* receive, std::size_t send_count, NcclType type,
                           NcclComm comm, CudaStream stream);
  NcclResult (*reduce_scatter)(const void* send, void* receive, std::size_t receive_count,
                               NcclType type, NcclOp op, NcclComm comm, CudaStream stream);
  NcclResult (*send)(const void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
                     CudaStream stream);
  NcclResult (*recv)(void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
                     CudaStream stream);

  // --- CUDA run-time ---
  CudaResult (*get_device_count)(int* count);
  CudaResult (*get_device)(int* device);
  CudaResult (*set_device)(int device);  // makes a context there
  // Restores the device that was current before; makes no context there. Null: use set_device.
  CudaResult (*restore_device)(int device);
  // Makes a stream of the highest priority that does not wait for the default stream.
  CudaResult (*stream_create)(CudaStream* stream);
  CudaResult (*stream_destroy)(CudaStream stream);
  CudaResult (*stream_wait_event)(CudaStream stream, CudaEvent event);
  // Tells whether work on the stream is captured into a CUDA graph.
  CudaResult (*stream_is_capturing)(CudaStream stream, bool* is_capturing);
  CudaResult (*event_create)(CudaEvent* event);  // without timing
  CudaResult (*event_destroy)(CudaEvent event);
  CudaResult (*event_record)(CudaEvent event, CudaStream stream);
  // Works also during captures of other threads.
  CudaResult (*event_query)(CudaEvent event);
  CudaResult (*memcpy_async)(void* to, const void* from, std::size_t bytes, CudaStream stream);
  const char* (*cuda_error_string)(CudaResult result);

  // --- LibTorch ---
  // Returns the stream on which this thread launches kernels on the device.
  CudaStream (*current_stream)(int device);
};

// Returns the table of the real functions. Only in the library of ddprun::worker_cuda.
const NcclApi& real_nccl_api();

}  // namespace ddprun
