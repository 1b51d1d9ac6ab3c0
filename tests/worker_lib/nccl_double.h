// NcclDouble: NCCL and the CUDA run-time as far as NcclApi knows them, in one process and on the
// host.
//
// Ranks are threads. "Device memory" is ordinary memory; a stream is a queue whose entries run, in
// order and when what they wait for is there, inside whichever call comes next. Collectives compute
// real results once every rank's has reached the front of its stream, so a hang is one here, too.
//
// It enforces the contract and reports a breach as a test failure: known ids and equal sizes,
// unique ranks, the same collectives with the same arguments on every rank, groups that are opened
// and closed by one thread, no call on a communicator that is in progress, aborted or destroyed,
// nothing but its end after a revoke, splits by all ranks and with no calls outstanding, memory
// registered once and withdrawn before its communicator and itself go, the device of a handle
// current, and everything made also freed. Of CUDA graphs: no query of an event of a capture, no
// wait for it outside, no communicator or memory made in one, and every stream joined before it
// ends.
//
// One lives at a time, because the table's functions have no argument for it. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "worker_lib/nccl_api.h"

namespace ddprun {

class NcclDouble {
 public:
  NcclDouble();
  // Reports what was not freed.
  ~NcclDouble();

  static const NcclApi& api();
  // The table of a library that has none of what is newer than 2.14.
  static const NcclApi& old_api();

  // --- what a test arranges ---
  void set_device_count(int count);
  // Every call on a communicator is "in progress" until it was asked about so often.
  void set_rounds_in_progress(int rounds);
  // The named table entry fails once, the next time it is called: "event_record", "all_reduce".
  void fail_next(const std::string& call, NcclResult result);
  void fail_next(const std::string& call, CudaResult result);
  // What NCCL notices about this rank's communicators from now on.
  void set_async_error(int rank, NcclResult error);
  // comm_abort, and comm_destroy, do not return until let_abort_return().
  void make_abort_hang();
  void let_abort_return();
  // The calling thread's stream gets an entry that stays until open_stream().
  void close_stream();
  void open_stream();
  // Collectives that differ between ranks are no breach: they hang, as NCCL's may. Nor are messages
  // of another size than is received: a receive of more hangs, one of less gets the beginning.
  void let_ranks_disagree();
  // What is put on the calling thread's stream, and on those that wait for it, goes into a graph.
  void begin_capture();
  void end_capture();
  // Runs what was captured last, on the calling thread's stream.
  void replay();

  // --- what a test asks ---
  // The calls of all threads in order, without queries; "all_reduce", "stream_wait_event".
  std::vector<std::string> calls();
  int count(const std::string& call);
  // Whether everything on the calling thread's stream is done.
  bool is_stream_idle();
  // The device of the calling thread.
  static int current_device();
  // Blocks of mem_alloc that exist, which may outlive the double, and that communicators know.
  static int memory_count();
  int registered_count();

 private:
  struct Clique;
  struct Comm;
  struct Event;
  struct Stream;
  struct Collective;
  struct Message;
  struct Entry;
  struct Capture;
  friend struct NcclDoubleTable;

  void breach(const std::string& what);
  std::optional<int> planned_failure(const std::string& call);
  CudaResult cuda(const std::string& call, const std::function<void()>& action);
  NcclResult on_comm(const std::string& call, NcclComm comm,
                     const std::function<void(Comm&)>& action);
  Stream& own_stream();
  void pump();
  bool advance(Stream& stream);
  bool step(Entry& entry);
  bool arrive(Collective& collective);
  bool pass(Message& message);
  void enqueue_collective(Comm& comm, CudaStream stream, Collective collective);
  void enqueue_message(Comm& comm, CudaStream stream, Message message);
  void abandon(Comm& comm);
  void give_up_split(Comm& comm);
  bool has_outstanding(const Comm& comm) const;
  void stop_kernels(Comm& comm);
  void put(Stream& stream, Entry entry);

  std::mutex mutex_;  // guards everything
  std::condition_variable changed_;
  std::vector<std::string> calls_;
  std::map<std::string, int> planned_failures_;
  int device_count_ = 1;
  int rounds_in_progress_ = 0;
  bool abort_hangs_ = false;
  bool may_disagree_ = false;
  std::unique_ptr<Capture> capture_;  // the one that goes on, or the last one
  std::uint64_t ids_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Clique>> cliques_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::pair<std::thread::id, int>, Stream*> callers_;
};

}  // namespace ddprun
