// CpuGroup: the engine of the cpu backend. It runs collectives over plain memory, without
// LibTorch.
//
// The ranks of one node share a memory segment. It is a memfd: nothing appears in /dev/shm, and
// nothing can be left over. TCP connects the nodes. docs/concepts/collectives.md has the picture
// and the algorithms.
//
// Every call blocks until its result is there, its deadline has passed, a peer has died, or
// abort() was called. start_send() and start_recv() return at once. One thread at a time may
// make collectives. Messages do not depend on collectives or on each other. Any thread may send,
// receive or call abort().
//
// Order: Ranks and layout alone fix the order of a reduction; arrival does not. So every rank
// and every run gets the same bits, for every chunking and timing. f16 and bf16 are accumulated
// in f32, and travel between nodes as f32.
//
// Failures:
// - kTimeout names the collective and the ranks that were waited for.
// - kPeerLost names the rank that died (peer_rank), on every rank that is in a call. It takes at
//   most 1 s on one node, and between nodes if the kernel of the dead rank lives. If a whole
//   node is silent, it takes CpuGroupOptions::node_silence.
// - kStopped follows abort().
// - kInvalidArgument comes on every rank if the ranks call different collectives.
//
// After any of them the group is finished. Every later call returns kStopped with the first
// failure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/worker_env.h"
#include "base/worker_page_file.h"
#include "ddprun/reduce_op.h"
#include "worker_lib/collective/call_header.h"
#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/collective/element_type.h"
#include "worker_lib/cpu_kernels/tuning.h"

namespace ddprun {

class Store;

// Returns what another backend of a group knows of `ranks`, which have not come to a collective
// by its deadline; empty: nothing.
using AbsenceExplainer = std::function<std::string(std::span<const int> ranks)>;

struct CpuGroupOptions {
  Rank rank{0};
  int world_size = 1;
  std::string node_id;  // ranks that give the same text share memory
  std::string name;     // unique within the store; begins every key that the group uses
  std::string title;    // follows the operation's name in errors (" in group tp"); empty: the world
  // This rank's worker page. Other ranks report in errors what it says. Open while the group
  // forms.
  PagePlace page;
  std::string address = "127.0.0.1";  // numeric; ranks of other nodes reach this rank at it
  PortRange ports;                    // to listen on at `address`
  // How long a node may be silent before it counts as dead or cut off. The kernel is asked once
  // a second at most.
  Duration node_silence = kDefaultLease;
  // Reduces in the order of the ranks, so that every layout gives the same bits. Between nodes,
  // the first half of a reduction then moves as many times the bytes as a node has ranks.
  bool deterministic_across_layouts = false;
  // The checks that this rank makes of calls, as text; empty: none. Checks make calls of their
  // own, so ranks with different texts form no group.
  std::string checks;
  Duration timeout{};  // for forming the group
  // For a group within a world: called twice a second while other ranks have not come. An error
  // ends the wait. Null: waits only for the store.
  std::function<std::optional<Error>()> check_members = {};
  // Called after a timeout, on any thread. Null: the group has no other backend.
  AbsenceExplainer explain_absence = {};
  // For benchmarks: changes the values that were chosen, on all ranks alike. Null: keeps them.
  std::function<void(CpuTuning&)> tune = {};
};

// CpuCallOptions: describes a collective, apart from its buffers. A duration alone converts to
// it and sets the timeout.
struct CpuCallOptions {
  template <class Representation, class Period>
  CpuCallOptions(std::chrono::duration<Representation, Period> limit) : timeout(limit) {}

  Duration timeout;
  // The ranks must agree on these values, although the engine does not use them. `type` is the
  // type of the bytes it moves (kU8: plain bytes). `types` is a digest of the types where there
  // are several. `asked` is the operation that the program called where this collective is a
  // part of it.
  ElementType type = ElementType::kU8;
  std::uint32_t types = 0;
  std::optional<ReduceOp> asked = {};
};

// Receives the result of a message's transfer; for a receive, that is the source. Called once,
// on any thread, without locks, possibly while another one runs. It may start transfers and wait
// for these and for others. While it runs, other transfers may pause for about 2 ms. An
// exception that leaves it ends the group.
using TransferDone = std::function<void(const Result<Rank>&)>;

// MessageRequest: a message to send or to receive.
struct MessageRequest {
  bool is_send = false;
  char* data = nullptr;  // a send only reads it
  std::size_t bytes = 0;
  int partner = -1;  // -1: a receive from any source
  int tag = 0;
  Deadline deadline{Duration::zero()};
};

class CpuGroup {
 public:
  // Finds the other ranks through the store and connects to them. Collective. Uses the store
  // only during the call. The first rank whose deadline passes writes into the store which ranks
  // did not come, and the others return that kTimeout at once. Returns kPeerLost within a second
  // if a rank came but ended or gave up before the last rank came.
  static Result<std::unique_ptr<CpuGroup>> form(Store& store, const CpuGroupOptions& options);
  virtual ~CpuGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // REQUIRES of all calls: roots are ranks of the group. Partners are other ranks of the group.
  // The operation can reduce the element type (kAvg: floating-point; bitwise: integers and bool;
  // complex numbers: kSum and kAvg).
  //
  // A list of tensors is treated as one tensor. All ranks' lists have the same number of
  // tensors, with the same sizes in bytes.

  // Reduces in place.
  virtual Result<void> all_reduce(WritableList tensors, ElementType type, ReduceOp op,
                                  const CpuCallOptions& terms) = 0;
  virtual Result<void> reduce(WritableList tensors, ElementType type, ReduceOp op, Rank root,
                              const CpuCallOptions& terms) = 0;
  virtual Result<void> broadcast(WritableList tensors, Rank root, const CpuCallOptions& terms) = 0;
  // outputs: for each rank, in rank order, buffers of the sizes of `inputs`.
  virtual Result<void> all_gather(ReadableList inputs, WritableList outputs,
                                  const CpuCallOptions& terms) = 0;
  // inputs: for each rank, in rank order, buffers of the sizes of `outputs`. They are not
  // modified.
  virtual Result<void> reduce_scatter(ReadableList inputs, WritableList outputs, ElementType type,
                                      ReduceOp op, const CpuCallOptions& terms) = 0;
  // outputs: on the root one per rank, each as large as `input`; empty elsewhere.
  virtual Result<void> gather(ReadableBytes input, WritableList outputs, Rank root,
                              const CpuCallOptions& terms) = 0;
  // inputs: on the root one per rank, each as large as `output`; empty elsewhere.
  virtual Result<void> scatter(ReadableList inputs, WritableBytes output, Rank root,
                               const CpuCallOptions& terms) = 0;
  // Sends inputs[r] to rank r, and receives outputs[r] from rank r. Every pair may have its own
  // size. Returns kInvalidArgument on every rank if a rank sends a size that the receiver does not
  // expect.
  virtual Result<void> all_to_all(ReadableList inputs, WritableList outputs,
                                  const CpuCallOptions& terms) = 0;
  virtual Result<void> barrier(Duration timeout) = 0;

  // Sends and receives messages, matched by pair and tag. Messages of one tag are received in
  // the order sent, by receives in the order posted. source: nullopt: any source, in turns. If
  // the sizes differ, the receiver gets kInvalidArgument, the message is dropped, and the group
  // stays usable. A send is over when `data` may be changed; a small message may not have been
  // received by then. It is still delivered when its sender leaves.
  Result<void> send(const void* data, std::size_t bytes, Rank destination, int tag,
                    Duration timeout);
  Result<Rank> recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                    Duration timeout);
  // Send and receive in the background. The transfer owns `data` until `done` is called, which may
  // be before these return. Several may be in flight. The destructor ends them with kStopped.
  void start_send(const void* data, std::size_t bytes, Rank destination, int tag, Duration timeout,
                  TransferDone done);
  void start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                  Duration timeout, TransferDone done);

  // Carry out one message, for the functions above. Returns the partner.
  virtual Result<Rank> carry_out(const MessageRequest& request) = 0;
  virtual void start(const MessageRequest& request, TransferDone done) = 0;

  // Waits until no message of these is in flight, at most `patience`. Returns whether none is in
  // flight. Call it before you destroy a group with asynchronous transfers. (Default: there are
  // none.)
  virtual bool await_messages(Duration /*patience*/) { return true; }

  // Returns zeroed memory that the ranks of this node can reach. If the one tensor of an
  // all_reduce lies in such memory on every rank, it is reduced in place, without staging. The
  // memory may outlive the group. Returns null if there is none (a group of one; ulimit -v,
  // ulimit -f). Any thread.
  virtual std::shared_ptr<char> shared_memory(std::size_t bytes) = 0;

  // Publishes a few bytes about this rank, at most kMaxNoteBytes, where a group supports it
  // (default: it does not). The last note counts, also after the group has failed. One thread at
  // a time.
  virtual void write_note(std::string_view /*note*/) {}
  // Returns the notes of all ranks, by rank. Asks other nodes, which takes up to `patience`;
  // zero: only this node. A note is empty if nothing was written or no answer came. Never ends
  // the group. One thread at a time; it may run in parallel with all other calls.
  virtual std::vector<std::string> notes(Duration /*patience*/) {
    return std::vector<std::string>(size());
  }

  // Returns the ranks that have begun a collective that this rank has not begun, as far as other
  // nodes answer. Any thread.
  virtual std::vector<int> ranks_ahead(Duration /*patience*/) { return {}; }

  // Returns the group's first failure, whichever rank found it, also while this rank makes no
  // calls. Returns nullopt while the group is intact. Any thread.
  virtual std::optional<Error> failure() const = 0;

  // Ends the group on all ranks with this failure, unless it has failed already. For failures
  // that a rank finds outside of the group's calls. The cause names the rank where that matters.
  // Any thread. (Default: abort().)
  virtual void fail(ErrorKind /*kind*/, int /*peer_rank*/, const std::string& cause) {
    abort(cause);
  }

  // Closes this process's copies of the connections to other nodes. For the child of a fork, which
  // must use nothing else of the group, nor destroy it. (Default: there are none.)
  virtual void leave_to_parent() const {}

  // Ends the call in progress and all later calls with kStopped. Any thread, also a watchdog
  // thread; not a signal handler.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ddprun
