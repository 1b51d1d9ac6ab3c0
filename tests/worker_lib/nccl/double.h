// NcclDouble: a test double for NCCL and the CUDA run-time. It has the functions that NcclApi
// lists, and runs in one process on the host.
//
// Ranks are threads. "Device memory" is ordinary memory. A stream is a queue. Its entries run
// in order, each when the things it waits for are there. They run inside the next call of any
// thread. A collective computes real results once every rank's entry has reached the front of
// its stream. So a hang with NCCL is a hang here, too.
//
// The behaviour was read from the sources of NCCL 2.28.9 and 2.30.7. Each rule in
// double_communicators.cc names the function that it was read from. Where both versions agree,
// only the function is named. If NCCL refuses a call, or reads freed or missing memory in it,
// the double reports the call as a test failure ("breach").
//
// Of CUDA, the double knows which devices have a context, and the rules of CUDA graphs:
// - no query of an event of a capture, and no wait for it outside the capture;
// - no communicator and no memory made in a capture;
// - every stream joined before the capture ends.
//
// Everything that was made must be freed.
//
// Files: double.cc (what a test sets up and asks), double_communicators.cc (life of a
// communicator), double_streams.cc (streams, collectives, messages), double_table.cc (the
// table), double_state.h (shared by these files).
//
// At most one double exists at a time, because the table's functions have no argument for it.
// Any thread.
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

// k2_31_2 differs by one rule: only abort releases a communicator that was shrunk with ABORT.
// The source of 2.31.2 was not at hand. In the source of 2.31.0a7, the functions of
// communicators equal those of 2.30.7. In nccl.h of 2.31.2 and 2.32.3, the declarations that
// ddprun uses equal those of 2.30.7.
enum class NcclVersion { k2_28_9, k2_30_7, k2_31_2 };
const char* to_name(NcclVersion version);  // the version in a test's name: "2_28_9"

class NcclDouble {
 public:
  explicit NcclDouble(NcclVersion version = NcclVersion::k2_30_7);
  // Reports everything that was not freed.
  ~NcclDouble();

  static const NcclApi& api();
  // Returns the table of a library that has no function newer than 2.14.
  static const NcclApi& old_api();

  // --- calls that NCCL has and ddprun does not make ---
  static NcclResult comm_shrink(NcclComm comm, std::span<const int> exclude, NcclComm* part,
                                bool with_abort);
  // comm: null on a new rank. Returns kInvalidUsage if the version has no comm_grow (before
  // 2.29).
  static NcclResult comm_grow(NcclComm comm, int size, const NcclUniqueId* id, int rank,
                              NcclComm* grown);

  // --- what a test sets up ---
  void set_device_count(int count);
  // Lets every call on a communicator be "in progress" until its state was asked this many
  // times.
  void set_rounds_in_progress(int rounds);
  // Acts as NCCL_COMM_BLOCKING=1: communicators that are made from now on block.
  void set_blocking();
  // Lets the named table entry fail once, the next time it is called: "event_record",
  // "all_reduce".
  void fail_next(const std::string& call, NcclResult result);
  void fail_next(const std::string& call, CudaResult result);
  // Does the same, but the call itself succeeds: the job that it leaves in progress fails.
  void fail_job_of_next(const std::string& call, NcclResult result);
  // Sets the asynchronous error that NCCL reports for this rank's communicators from now on.
  void set_async_error(int rank, NcclResult error);
  // Lets comm_abort and comm_destroy block until let_abort_return().
  void make_abort_hang();
  void let_abort_return();
  // Lets event_query block until let_event_query_return().
  void make_event_query_hang();
  // From now on, threads of this name wait before they set a device.
  void hold_threads(std::string name);
  void let_threads_go();
  void let_event_query_return();
  // Puts an entry on the calling thread's stream that stays until open_stream().
  void close_stream();
  void open_stream();
  // Allows ranks to call different collectives. They are no breach then: they hang, as NCCL's
  // may. The same goes for messages whose sizes differ. A receive of more bytes than were sent
  // hangs. A receive of fewer bytes gets the beginning.
  void let_ranks_disagree();
  // Begins a capture: entries that are put on the calling thread's stream, and on streams that
  // wait for it, go into a graph. The graph exists until the next one, until destroy_graph(),
  // or until the double ends.
  void begin_capture();
  void end_capture();
  void destroy_graph();
  // Runs the latest captured graph on the calling thread's stream.
  void replay();

  // --- what a test asks ---
  // Returns the calls of all threads in order, without queries: "all_reduce",
  // "stream_wait_event".
  std::vector<std::string> calls();
  int count(const std::string& call);
  // Returns whether everything on the calling thread's stream is done.
  bool is_stream_idle();
  // Returns the device of the calling thread.
  static int current_device();
  // Returns the devices on which some thread has made a CUDA context.
  std::set<int> contexts();
  // Returns the number of existing blocks that this double's mem_alloc made.
  int memory_count();
  // Returns the number of blocks that are registered with communicators.
  int registered_count();
  // Keeps breaches for take_breaches() from now on, instead of failing the test.
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

  // In double_communicators.cc; all need mutex_, which `lock` holds.
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

  // In double_streams.cc; all need mutex_.
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
  std::mutex mutex_;                 // guards the members below
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
  std::string held_threads_;  // a name; empty: none
  bool may_disagree_ = false;
  std::unique_ptr<Capture> capture_;  // the open one, or the last one
  std::uint64_t ids_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Clique>> cliques_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::pair<std::thread::id, int>, Stream*> callers_;
};

}  // namespace ddprun
