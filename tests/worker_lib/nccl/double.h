// NcclDouble: NCCL and the CUDA run-time as far as NcclApi knows them, in one process and on the
// host.
//
// Ranks are threads. "Device memory" is ordinary memory; a stream is a queue whose entries run, in
// order and when what they wait for is there, inside whichever call comes next. Collectives compute
// real results once every rank's has reached the front of its stream, so a hang is one here, too.
//
// Its behaviour was read from the sources of NCCL 2.28.9 and 2.30.7; each rule in
// double_communicators.cc names the function that it was read from. Where both agree, only the
// function is named. A call that NCCL refuses, or in which NCCL reads freed or missing memory, is
// reported as a test failure ("breach").
//
// Of CUDA it knows which devices have a context, and of CUDA graphs: no query of an event of a
// capture, no wait for it outside, no communicator or memory made in one, and every stream joined
// before it ends. Everything that was made must be freed.
//
// Files: double.cc (what a test arranges and asks), double_communicators.cc (life of a
// communicator), double_streams.cc (streams, collectives, messages), double_table.cc (the
// table), double_state.h (what they share).
//
// One lives at a time, because the table's functions have no argument for it. Any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "worker_lib/nccl/api.h"

namespace ddprun {

// k2_31_2 differs by one rule: a communicator that was shrunk with ABORT is released by abort only.
// Its source was not at hand. That of 2.31.0a7 has the functions of communicators as 2.30.7 has
// them, and nccl.h of 2.31.2 and 2.32.3 declares what ddprun calls as 2.30.7's does.
enum class NcclVersion { k2_28_9, k2_30_7, k2_31_2 };
const char* to_name(NcclVersion version);  // of a test: "2_28_9"

class NcclDouble {
 public:
  explicit NcclDouble(NcclVersion version = NcclVersion::k2_30_7);
  // Reports what was not freed.
  ~NcclDouble();

  static const NcclApi& api();
  // The table of a library that has none of what is newer than 2.14.
  static const NcclApi& old_api();

  // --- what ddprun does not call, but NCCL can do ---
  static NcclResult comm_shrink(NcclComm comm, std::span<const int> exclude, NcclComm* part,
                                bool with_abort);
  // comm: null on a rank that is new. kInvalidUsage where the version has none (before 2.29).
  static NcclResult comm_grow(NcclComm comm, int size, const NcclUniqueId* id, int rank,
                              NcclComm* grown);

  // --- what a test arranges ---
  void set_device_count(int count);
  // Every call on a communicator is "in progress" until it was asked about so often.
  void set_rounds_in_progress(int rounds);
  // NCCL_COMM_BLOCKING=1: communicators that are made from now on block.
  void set_blocking();
  // The named table entry fails once, the next time it is called: "event_record", "all_reduce".
  void fail_next(const std::string& call, NcclResult result);
  void fail_next(const std::string& call, CudaResult result);
  // The same, but the call itself succeeds: the job that it leaves in progress fails.
  void fail_job_of_next(const std::string& call, NcclResult result);
  // What NCCL notices about this rank's communicators from now on.
  void set_async_error(int rank, NcclResult error);
  // comm_abort, and comm_destroy, do not return until let_abort_return().
  void make_abort_hang();
  void let_abort_return();
  // event_query does not return until let_event_query_return().
  void make_event_query_hang();
  void let_event_query_return();
  // The calling thread's stream gets an entry that stays until open_stream().
  void close_stream();
  void open_stream();
  // Collectives that differ between ranks are no breach: they hang, as NCCL's may. Nor are messages
  // of another size than is received: a receive of more hangs, one of less gets the beginning.
  void let_ranks_disagree();
  // What is put on the calling thread's stream, and on those that wait for it, goes into a graph,
  // which exists until the next one, until destroy_graph(), or until the double ends.
  void begin_capture();
  void end_capture();
  void destroy_graph();
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
  // Devices on which some thread has made a CUDA context.
  std::set<int> contexts();
  // Blocks that this double's mem_alloc made and that still exist.
  int memory_count();
  // Blocks that communicators know.
  int registered_count();
  // Breaches are kept for take_breaches() instead of failing the test, from now on.
  void expect_breaches();
  std::vector<std::string> take_breaches();

 private:
  struct Clique;
  struct Comm;
  struct Job;
  struct Group;
  struct Event;
  struct Stream;
  struct Collective;
  struct Message;
  struct Entry;
  struct Capture;
  friend struct NcclDoubleTable;
  using Lock = std::unique_lock<std::mutex>;

  static NcclDouble& self();
  void breach(const std::string& what);
  std::optional<int> planned_failure(const std::string& call);
  CudaResult cuda(const std::string& call, const std::function<void()>& action);
  void touch_context();

  // double_communicators.cc; all need mutex_, which `lock` holds.
  static Group& own_group();
  Comm& at(NcclComm handle, const std::string& call);
  Comm& add_comm(Clique& clique, int rank, int device);
  Clique* clique_of(std::span<const NcclUniqueId> ids);
  NcclResult run(Lock& lock, const std::string& call, std::shared_ptr<Job> job);
  NcclResult read_state(Comm& comm);
  NcclResult ensure_ready(Comm& comm, const std::string& call);
  static NcclResult group_error(NcclResult result);
  NcclResult issue(const std::string& call, NcclComm handle,
                   const std::function<NcclResult(Comm&, Group&)>& add);
  NcclResult end_group(Lock& lock);
  NcclResult init(const std::string& call, NcclComm* comm, int size, int rank,
                  std::span<const NcclUniqueId> ids);
  NcclResult split(NcclComm handle, int color, int key, NcclComm* part);
  NcclResult shrink(NcclComm handle, std::span<const int> exclude, NcclComm* part, bool with_abort);
  NcclResult grow(NcclComm handle, int size, const NcclUniqueId* id, int rank, NcclComm* grown);
  NcclResult divide(Lock& lock, const std::string& call, Comm& parent, int color, int key,
                    std::size_t expected, NcclComm* part);
  void write_part(Comm& parent, std::size_t number, NcclComm* part, NcclResult result);
  NcclResult revoke(NcclComm handle);
  NcclResult finalize(NcclComm handle);
  NcclResult destroy(NcclComm handle);
  NcclResult abort(NcclComm handle);
  void report_left_communicators();
  bool run_jobs();
  void end_job(Job& job);

  // double_streams.cc; all need mutex_.
  Stream& own_stream();
  void pump();
  bool advance(Stream& stream);
  bool step(Entry& entry);
  bool arrive(Collective& collective);
  bool pass(Message& message);
  NcclResult add_collective(Comm& comm, Group& group, CudaStream stream, Collective collective);
  NcclResult add_message(Comm& comm, Group& group, CudaStream stream, Message message);
  void number(Collective& collective);
  bool has_outstanding(const Comm& comm) const;
  bool is_in_graph(const Comm& comm) const;
  void stop_kernels(Comm& comm);
  void put(Stream& stream, Entry entry);

  const NcclVersion version_;
  const std::size_t blocks_before_;  // left by earlier doubles
  std::mutex mutex_;                 // guards what follows
  std::condition_variable changed_;
  std::vector<std::string> calls_;
  std::map<std::string, int> planned_failures_;
  std::map<std::string, NcclResult> planned_job_failures_;
  std::optional<std::vector<std::string>> expected_breaches_;
  std::set<int> contexts_;
  int device_count_ = 1;
  int rounds_in_progress_ = 0;
  bool is_blocking_ = false;
  bool abort_hangs_ = false;
  bool event_query_hangs_ = false;
  bool may_disagree_ = false;
  std::unique_ptr<Capture> capture_;  // the one that goes on, or the last one
  std::uint64_t ids_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Clique>> cliques_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::pair<std::thread::id, int>, Stream*> callers_;
};

}  // namespace ddprun
