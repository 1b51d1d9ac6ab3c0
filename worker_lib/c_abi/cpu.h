// The C functions of libddprun_cpu.so: collectives and messages over plain memory. They serve the
// Python package of the same version only.
//
// Buffers: `count` buffers are treated as one. All ranks give the same count, with the same sizes,
// in bytes. The memory must stay until the call has ended. Buffers that a call writes overlap no
// other buffer of a call in flight. The array itself is read only during the function.
// Types and operations: the numbers of ElementType (collective/element_type.h) and of ReduceOp
// (ddprun/reduce_op.h). A list of several types is moved as u8, and cannot be reduced. Which types
// are reduced: by avg floating-point and complex ones; by bitwise operations integers and bool; by
// the others all but complex ones, which have sum and avg only.
// Timeouts are in nanoseconds. Texts are never null.
//
// Calls: Each function of a collective or message has `call` as its last argument. If it is null,
// the function blocks until the result is there. Otherwise it returns at once, and `*call` is a
// call in flight, which the caller must free. Collectives run in the order in which they were
// issued, blocking ones included. Messages do not wait for collectives.
//
// Failures: Functions return DDPRUN_CPU_OK or a status. ddprun_cpu_last_error() then returns the
// error as one line of text. After any failure but DDPRUN_CPU_PENDING and an invalid argument, the
// group has ended: later calls return DDPRUN_CPU_STOPPED with the first failure. An argument that
// the library itself refuses leaves the group as it was. Ranks that make different calls all get
// DDPRUN_CPU_INVALID_ARGUMENT, and the group has ended. No function throws.
//
// Threads: any thread may call any function, also while another one closes the group. No thread may
// use a group or a call while or after another one frees it. The child of a fork may use no group
// of its parent.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDPRUN_CPU_ABI_VERSION 2

// A status above 0 is an ErrorKind (base/error.h) plus one.
enum {
  DDPRUN_CPU_PENDING = -1,
  DDPRUN_CPU_OK = 0,
  DDPRUN_CPU_INVALID_ARGUMENT = 1,
  DDPRUN_CPU_NOT_FOUND = 2,
  DDPRUN_CPU_TIMEOUT = 3,
  DDPRUN_CPU_CONNECTION = 4,
  DDPRUN_CPU_PROTOCOL = 5,
  DDPRUN_CPU_PEER_LOST = 6,
  DDPRUN_CPU_STOPPED = 7,
  DDPRUN_CPU_RESOURCE = 8,
  DDPRUN_CPU_CORRUPT = 9,
  DDPRUN_CPU_UNSUPPORTED = 10,
  DDPRUN_CPU_SYSTEM = 11,
};

typedef struct ddprun_cpu_group ddprun_cpu_group;
typedef struct ddprun_cpu_call ddprun_cpu_call;

typedef struct ddprun_cpu_buffer {
  void* data;  // a call only reads the buffers of its inputs
  size_t bytes;
} ddprun_cpu_buffer;

// --- the store ---

enum {
  DDPRUN_CPU_STORE_SET = 0,    // sets key to value
  DDPRUN_CPU_STORE_GET = 1,    // waits for key at most timeout_ns; answers its value
  DDPRUN_CPU_STORE_CHECK = 2,  // answers "1" if the key exists, else "0"
};

// Carries out an operation on the caller's store. Returns DDPRUN_CPU_OK or a status; the text of a
// failure is its answer. Called during ddprun_cpu_form() only, on the same thread.
typedef int (*ddprun_cpu_store)(int operation, const char* key, const void* value,
                                size_t value_bytes, int64_t timeout_ns, void* answer);
// Gives the answer of an operation: call it within the operation, with its `answer`.
// After a failure the operation must fail, too.
int ddprun_cpu_answer(void* answer, const void* bytes, size_t size);

// --- groups ---

// Returns DDPRUN_CPU_ABI_VERSION of the library.
int ddprun_cpu_abi_version(void);

// Returns the text of this thread's last failure; valid until this thread's next failure.
const char* ddprun_cpu_last_error(void);

// Forms a group with the other ranks, which find each other through the store. Blocks; every rank
// calls it. Returns null after a failure; ddprun_cpu_last_error() tells which. Reads the launcher's
// variables: the node, ports, lease and worker page.
// - rank, size: 0 <= rank < size.
// - name: unique in the store; begins every key.
// - title: follows the operation's name in errors, such as " in group tp"; "" for the world.
// - address: numeric; ranks of other hosts reach this rank at it. "": the most likely one.
ddprun_cpu_group* ddprun_cpu_form(ddprun_cpu_store store, int rank, int size, const char* name,
                                  const char* title, const char* address, int64_t timeout_ns);

// Records the group's calls in the worker page from now on, for `ddprun flight` and --hang-timeout.
// Call it before the first call, on all ranks alike. A record takes some tens of nanoseconds.
// - id: the same on all ranks, and of no other group. 0: the world.
// - name: for people; not used for the world.
// - world_ranks: the ranks of the group as the launcher counts them.
int ddprun_cpu_record(ddprun_cpu_group* group, uint64_t id, const char* name,
                      const int* world_ranks);

// Leaves the group. Waits for calls in flight for at most grace_ns, and ends the rest with
// DDPRUN_CPU_STOPPED. Later calls return DDPRUN_CPU_STOPPED. A second close returns at once. Calls
// stay valid until they are freed.
int ddprun_cpu_close(ddprun_cpu_group* group, int64_t grace_ns);

// Frees the group, and closes it first if it is open. Null: does nothing.
void ddprun_cpu_free(ddprun_cpu_group* group);

// Closes the copies of the group's connections that the child of a fork has. The child may do
// nothing else with the group.
void ddprun_cpu_leave_to_parent(ddprun_cpu_group* group);

// Ends all calls of the group, on every rank, with DDPRUN_CPU_STOPPED and the reason.
int ddprun_cpu_abort(ddprun_cpu_group* group, const char* reason);

// --- collectives ---

// Reduces the buffers of all ranks, and puts the result into them on every rank.
int ddprun_cpu_all_reduce(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffers, size_t count,
                          int type, int op, int64_t timeout_ns, ddprun_cpu_call** call);
// Reduces as ddprun_cpu_all_reduce() does, but only the root gets the result. The others' buffers
// keep their contents.
int ddprun_cpu_reduce(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffers, size_t count,
                      int type, int op, int root, int64_t timeout_ns, ddprun_cpu_call** call);
// Copies the root's buffers to all ranks.
int ddprun_cpu_broadcast(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffers, size_t count,
                         int type, int root, int64_t timeout_ns, ddprun_cpu_call** call);
// Copies each rank's inputs to all ranks. outputs: `count` buffers for each rank, in rank order, of
// the sizes of the inputs.
int ddprun_cpu_all_gather(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs, size_t count,
                          const ddprun_cpu_buffer* outputs, int type, int64_t timeout_ns,
                          ddprun_cpu_call** call);
// Reduces the inputs of all ranks; rank r gets the r-th part. inputs: `count` buffers for each
// rank, in rank order, of the sizes of the outputs.
int ddprun_cpu_reduce_scatter(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs,
                              const ddprun_cpu_buffer* outputs, size_t count, int type, int op,
                              int64_t timeout_ns, ddprun_cpu_call** call);
// Copies each rank's input to the root. outputs: on the root one buffer per rank, each of the size
// of the input; null elsewhere.
int ddprun_cpu_gather(ddprun_cpu_group* group, const ddprun_cpu_buffer* input,
                      const ddprun_cpu_buffer* outputs, int type, int root, int64_t timeout_ns,
                      ddprun_cpu_call** call);
// Copies the root's inputs to the ranks. inputs: on the root one buffer per rank, each of the size
// of the output; null elsewhere.
int ddprun_cpu_scatter(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs,
                       const ddprun_cpu_buffer* output, int type, int root, int64_t timeout_ns,
                       ddprun_cpu_call** call);
// Copies inputs[r] to rank r, and what rank r sends into outputs[r]: one buffer per rank each. Each
// pair of ranks has its own size.
int ddprun_cpu_all_to_all(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs,
                          const ddprun_cpu_buffer* outputs, int type, int64_t timeout_ns,
                          ddprun_cpu_call** call);
// Waits until every rank has called it.
int ddprun_cpu_barrier(ddprun_cpu_group* group, int64_t timeout_ns, ddprun_cpu_call** call);

// --- messages ---

// Sends to another rank. A message is matched by pair and tag, in the order of sending.
int ddprun_cpu_send(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffer, int destination,
                    int tag, int64_t timeout_ns, ddprun_cpu_call** call);
// Receives a message of the buffer's size. source: a rank, or -1 for any. If the sizes differ, the
// status is DDPRUN_CPU_INVALID_ARGUMENT, and the group stays usable.
int ddprun_cpu_recv(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffer, int source, int tag,
                    int64_t timeout_ns, ddprun_cpu_call** call);

// --- calls in flight ---

// Waits for the end of the call for at most timeout_ns. Returns its status; DDPRUN_CPU_PENDING: it
// has not ended. timeout_ns 0: does not wait.
int ddprun_cpu_call_wait(ddprun_cpu_call* call, int64_t timeout_ns);
// Returns the rank whose message was received; -1: the call is not a receive or has not ended.
int ddprun_cpu_call_source(ddprun_cpu_call* call);
// Frees the object. The call itself goes on; its buffers must stay until it has ended.
void ddprun_cpu_call_free(ddprun_cpu_call* call);

// --- records of calls that others carry out ---
// For backends that PyTorch has itself. Numbers: FlightCall and FlightType (base/worker_page.h).

// Registers a group: see ddprun_cpu_record.
int ddprun_cpu_flight_group(uint64_t id, const char* name, const int* world_ranks, size_t size);
// Records a call that began age_ns ago. Returns its number for flight_end; 0: nothing is recorded.
// - collective: its number in the group. bytes: of this rank's tensors.
// - peer: a rank of the world; -1: none.
uint64_t ddprun_cpu_flight_begin(uint64_t group, uint64_t collective, int call, int type,
                                 uint64_t bytes, int peer, int64_t age_ns);
void ddprun_cpu_flight_end(uint64_t number);

#ifdef __cplusplus
}
#endif
