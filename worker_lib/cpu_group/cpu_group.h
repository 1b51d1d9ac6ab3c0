// CpuGroup: the engine of the cpu backend. Collectives over plain memory, without LibTorch.
//
// Ranks of one node meet in one shared-memory segment (a memfd: nothing in /dev/shm, nothing that
// can be left behind); nodes are joined by TCP. docs/collectives.md has the picture and the
// algorithms.
//
// Every call blocks until its result is there, its deadline has passed, a peer has died, or abort()
// was called; start_send() and start_recv() return at once. One thread at a time may make
// collectives; messages are independent of them and of each other, and they and abort() are for any
// thread.
//
// Order: reductions are done in an order that is fixed by ranks and layout, never by arrival: the
// same bits on every rank and in every run, for every chunking and timing. f16 and bf16 are
// accumulated in f32, and travel between nodes as f32.
//
// Failures: kTimeout names the collective and the ranks that were waited for; kPeerLost names the
// rank that died (peer_rank), within 1 s on one node and, when its kernel lives, across nodes, and
// after CpuGroupOptions::node_silence when its whole node is silent, on every rank that is in a
// call; kStopped after abort(); kInvalidArgument on every rank when ranks call different
// collectives. After any of them the group is finished and every later call returns kStopped with
// the first failure.
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

#include "base/clock.h"
#include "base/host_port.h"
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

struct CpuGroupOptions {
  Rank rank{0};
  int world_size = 1;
  std::string node_id;  // ranks that give the same text share memory
  std::string name;     // unique within the store; begins every key the group uses
  std::string title;    // behind what was done, in errors: " in group tp"; empty: of the world
  // This rank's worker page, for what others say of it in errors; open while the group forms.
  PagePlace page;
  std::string address = "127.0.0.1";  // numeric: at which ranks of other nodes reach this one
  PortRange ports;                    // to listen on there
  // Of a node that has died or is cut off; the kernel is asked every second at most.
  Duration node_silence = kDefaultLease;
  // Reductions are done in the order of the ranks, so that every layout gives the same bits; between
  // nodes that costs as many times the bytes, in the first half of the way, as a node has ranks.
  bool deterministic_across_layouts = false;
  // What the rank looks for in calls, in words, as that takes calls of its own; empty: nothing. Ranks that
  // differ form no group.
  std::string checks;
  Duration timeout{};   // for forming the group
  // Of a group within a world: asked twice a second while others have not come; what it says
  // ends the wait. Null: the store alone is waited for.
  std::function<std::optional<Error>()> fate = {};
  // Of a group that has another backend, too: what is known there of these ranks, which have not come
  // to a collective until its deadline; empty: nothing. Null: there is none. Any thread.
  std::function<std::string(std::span<const int> ranks)> elsewhere = {};
  TuningWish tuning{};  // for programs that measure; the same on all ranks
};

// What is said of a collective beside where its bytes are. A duration alone says how long it may take.
struct CpuCallOptions {
  template <class Representation, class Period>
  CpuCallOptions(std::chrono::duration<Representation, Period> limit) : timeout(limit) {}

  Duration timeout;
  // What the ranks must agree in, although the engine does not look at it: what the bytes are that
  // it moves (kU8: just bytes), a digest of what they are where that is not one type, and the
  // operation that the program asked for where this one is a part of it.
  ElementType type = ElementType::kU8;
  std::uint32_t types = 0;
  std::optional<ReduceOp> asked = {};
};

// How a message's transfer ended; of a receive: who sent it. Called once, on any thread, without
// locks, also while another one is called. It may start transfers, and wait for these and for
// others. While it runs, other transfers may pause for about 2 ms. What leaves it as an exception
// ends the group.
using TransferDone = std::function<void(const Result<Rank>&)>;

class CpuGroup {
 public:
  // Meets the other ranks through the store and connects to them. Collective. The store is used
  // during the call only. The first rank whose time is up tells the others in the store who did not
  // come: they return that kTimeout at once. kPeerLost within a second where a rank came, and ended
  // or gave up before the last one did.
  static Result<std::unique_ptr<CpuGroup>> form(Store& store, const CpuGroupOptions& options);
  virtual ~CpuGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // REQUIRES of all calls: roots are ranks of the group, partners are other ranks of it, and the
  // element type can be reduced by the operation (kAvg: floating-point, bitwise: integers and bool;
  // complex numbers: kSum and kAvg).
  //
  // Where a call takes a list of tensors, they are carried as if they were one: the ranks' lists
  // agree in how many there are and in the bytes of each.

  // In place.
  virtual Result<void> all_reduce(std::span<const WritableBytes> tensors, ElementType type,
                                  ReduceOp op, const CpuCallOptions& terms) = 0;
  virtual Result<void> reduce(std::span<const WritableBytes> tensors, ElementType type, ReduceOp op,
                              Rank root, const CpuCallOptions& terms) = 0;
  virtual Result<void> broadcast(std::span<const WritableBytes> tensors, Rank root,
                                 const CpuCallOptions& terms) = 0;
  // outputs: for each rank, in their order, room like `inputs`.
  virtual Result<void> all_gather(std::span<const ReadableBytes> inputs,
                                  std::span<const WritableBytes> outputs, const CpuCallOptions& terms) = 0;
  // inputs: for each rank, in their order, what is like `outputs`; they are not modified.
  virtual Result<void> reduce_scatter(std::span<const ReadableBytes> inputs,
                                      std::span<const WritableBytes> outputs, ElementType type,
                                      ReduceOp op, const CpuCallOptions& terms) = 0;
  // outputs: one per rank on the root, like `input`; empty elsewhere.
  virtual Result<void> gather(ReadableBytes input, std::span<const WritableBytes> outputs,
                              Rank root, const CpuCallOptions& terms) = 0;
  // inputs: one per rank on the root, like `output`; empty elsewhere.
  virtual Result<void> scatter(std::span<const ReadableBytes> inputs, WritableBytes output,
                               Rank root, const CpuCallOptions& terms) = 0;
  // inputs[r] goes to rank r, outputs[r] comes from rank r; every pair may have its own size.
  // kInvalidArgument on every rank if one sends what the other does not expect.
  virtual Result<void> all_to_all(std::span<const ReadableBytes> inputs,
                                  std::span<const WritableBytes> outputs, const CpuCallOptions& terms) = 0;
  virtual Result<void> barrier(Duration timeout) = 0;

  // Messages, matched by pair and tag: those of one tag are received in the order sent, by receives
  // in the order posted; source: nullopt: any, in turns. A size that differs from the sender's is
  // kInvalidArgument at the receiver: the message is dropped, and the group goes on. A send is over
  // when `data` may be changed: small messages may not have been received by then. They count even
  // when their sender leaves.
  virtual Result<void> send(const void* data, std::size_t bytes, Rank destination, int tag,
                            Duration timeout) = 0;
  virtual Result<Rank> recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                            Duration timeout) = 0;
  // The same in the background: `data` belongs to the transfer until `done` is called, which may be
  // before these return. Several may be in flight. The destructor ends them with kStopped.
  virtual void start_send(const void* data, std::size_t bytes, Rank destination, int tag,
                          Duration timeout, TransferDone done) = 0;
  virtual void start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                          Duration timeout, TransferDone done) = 0;

  // Waits until none of these is in flight any more, at most so long; whether it is so. For who is about to
  // destroy the group and has issued some. (By itself: there are none.)
  virtual bool await_messages(Duration patience) {
    static_cast<void>(patience);
    return true;
  }

  // Memory of zeros that the ranks of this node reach: an all_reduce of one tensor per rank that
  // lies in it on every rank is done where they lie, without staging. It may outlive the group.
  // Null where there is none to be had (a group of one; ulimit -v, ulimit -f). Any thread.
  virtual std::shared_ptr<char> shared_memory(std::size_t bytes) = 0;

  // Notes, where a group has them (by itself: none). A few bytes that this rank wants known of
  // itself, at most kMaxNoteBytes; the last ones count, also when the group has failed. One thread
  // at a time.
  static constexpr std::size_t kMaxNoteBytes = ddprun::kMaxNoteBytes;
  virtual void write_note(std::string_view note) { static_cast<void>(note); }
  // The notes of all ranks, by rank. Other nodes are asked, which takes up to `patience`; zero:
  // those of this node. Empty: nothing was written, or no answer came. Never ends the group; one
  // thread at a time, beside all other calls.
  virtual std::vector<std::string> notes(Duration patience) {
    static_cast<void>(patience);
    return std::vector<std::string>(static_cast<std::size_t>(size()));
  }

  // The ranks that have begun a collective that this one has not, as far as other nodes answer. Any
  // thread.
  virtual std::vector<int> ranks_ahead(Duration patience) {
    static_cast<void>(patience);
    return {};
  }

  // The group's first failure, found by whichever rank, also while this one makes no calls; nullopt
  // while the group is whole. Any thread.
  virtual std::optional<Error> failure() const = 0;

  // Ends the group on all ranks with this failure, unless it has one: for what a rank finds out
  // beside the group's calls. The cause names the rank where that matters. Any thread. (By itself:
  // an abort.)
  virtual void fail(ErrorKind kind, int peer_rank, const std::string& cause) {
    static_cast<void>(kind);
    static_cast<void>(peer_rank);
    abort(cause);
  }

  // Ends the call in progress and all later ones with kStopped. Any thread; also from a signal-free
  // watchdog.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ddprun
