// State that the files of NcclDouble share: its communicators, jobs, streams and their
// entries.
#pragma once

#include <tuple>

#include "tests/worker_lib/nccl/double.h"

namespace ddprun {

struct NcclDouble::Event {
  int device = 0;
  int recorded = 0;          // times it was put on a stream
  int reached = 0;           // times it came to the front of its stream
  bool is_captured = false;  // it was last recorded in a capture
  bool is_destroyed = false;
};

struct NcclDouble::Collective {
  std::string kind;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  NcclType type = NcclType::kUint8;
  NcclOp op = NcclOp::kSum;
  int root = -1;
  double factor = 1;  // multiplies this rank's values before they are reduced
  bool is_premul = false;
  Comm* comm = nullptr;
  std::size_t number = 0;
  bool is_there = false;
  bool is_odd = false;  // another rank's collective differs

  auto signature() const { return std::tie(kind, count, type, op, root, is_premul); }
};

struct NcclDouble::Message {
  bool is_send = false;
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  Comm* comm = nullptr;
  bool is_there = false;  // at the front of its stream
  bool is_done = false;
  bool is_odd = false;  // fewer bytes came than it waits for
};

struct NcclDouble::Entry {
  enum class Kind { kRecord, kWait, kCopy, kCollective, kMessages, kClosed } kind;
  Event* event = nullptr;
  int version = 0;
  std::function<void()> copy = {};
  std::shared_ptr<Collective> collective = {};
  std::vector<std::shared_ptr<Message>> messages = {};
};

struct NcclDouble::Stream {
  int device = 0;
  bool is_destroyed = false;
  bool is_capturing = false;
  std::deque<Entry> entries;
};

// A graph of one chain: calls in the order in which they were made. The waits between the
// streams of a capture allow this order.
struct NcclDouble::Capture {
  Stream* origin = nullptr;
  bool is_open = true;
  std::set<Stream*> unjoined;              // streams with work that the origin does not wait for
  std::map<Event*, std::set<Stream*>> of;  // the streams that an event of the capture stands for
  std::vector<Entry> entries;
};

// The ranks of one communicator.
struct NcclDouble::Clique {
  struct Split {
    std::map<int, std::pair<int, int>> asked;  // by rank: color and key
    std::size_t expected = 0;                  // number of ranks that must ask
    std::map<int, Clique*> parts;              // by color, set once all have asked
  };

  int size = 0;
  std::vector<std::uint64_t> ids;
  std::vector<Split> splits;
  std::map<int, Comm*> members;
  std::map<std::size_t, std::vector<std::shared_ptr<Collective>>> collectives;  // by number
  std::vector<std::shared_ptr<Message>> messages;  // those at the front
};

// The work of an NCCL thread after the call that started it has returned: NCCL's ncclGroupJob.
struct NcclDouble::Job {
  enum class Kind { kInit, kLaunch, kSplit, kFinalize, kRevoke } kind;
  std::vector<Comm*> comms;        // the job sets their state
  std::function<bool()> is_ready;  // returns whether the ranks that it waits for have come
  std::function<void(NcclResult)> finish = {};
  // Put on their streams at the end of the job.
  std::vector<std::pair<Stream*, Entry>> launches = {};
  bool is_without_part = false;  // a split without a color
  int rounds_left = 0;
  NcclResult result = NcclResult::kSuccess;
  bool is_done = false;
};

// The open group of one thread: NCCL's ncclGroupDepth, ncclGroupError and ncclGroupCommHead.
struct NcclDouble::Group {
  int depth = 0;
  NcclResult error = NcclResult::kSuccess;
  std::vector<Comm*> comms;
  std::vector<std::pair<Stream*, Entry>> launches;
  std::set<std::string> calls;
};

struct NcclDouble::Comm {
  Clique* clique = nullptr;
  int rank = 0;
  int device = 0;
  std::size_t issued = 0;                          // number of collectives
  NcclResult async_result = NcclResult::kSuccess;  // ncclComm::asyncResult
  NcclResult noticed = NcclResult::kSuccess;       // ncclProxyState::asyncResult
  std::shared_ptr<Job> job = {};                   // ncclComm::groupJob, until it is joined
  bool is_formed = false;                          // ncclComm::initState is ncclSuccess
  bool is_blocking = false;                        // ncclConfig_t::blocking
  bool is_finalized = false;                       // ncclComm::finalizeCalled
  bool is_revoked = false;                         // ncclComm::revokedFlag
  bool is_shrunk_with_abort = false;
  bool is_gone = false;
  bool was_aborted = false;
  int callers_inside = 0;         // number of threads that block in a call on it
  Comm* failed_parent = nullptr;  // set in a part whose split failed
  std::size_t splits = 0;  // number of splits that this rank has called: ncclComm::splitCount
  std::map<void*, void*> registered = {};     // each handle is the memory's own address
  std::map<NcclOp, double> premul_sums = {};  // existing operations, and their factors
};

}  // namespace ddprun
