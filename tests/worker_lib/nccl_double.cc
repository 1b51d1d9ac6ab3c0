#include "tests/worker_lib/nccl_double.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace ddprun {
namespace {

std::atomic<NcclDouble*> the_double = nullptr;
thread_local int tl_device = 0;
thread_local int tl_group_depth = 0;
thread_local std::set<NcclComm> tl_group_comms;  // that were called in the open group

torch::ScalarType torch_type(NcclType type) {
  switch (type) {
    case NcclType::kInt8: return torch::kInt8;
    case NcclType::kUint8: return torch::kUInt8;
    case NcclType::kInt32: return torch::kInt32;
    case NcclType::kInt64: return torch::kInt64;
    case NcclType::kFloat16: return torch::kFloat16;
    case NcclType::kFloat32: return torch::kFloat32;
    case NcclType::kFloat64: return torch::kFloat64;
    case NcclType::kBfloat16: return torch::kBFloat16;
  }
  throw std::logic_error("no such NcclType");
}

torch::Tensor view(const void* data, std::size_t count, NcclType type) {
  return torch::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(count)},
                          torch_type(type));
}

torch::Tensor folded(const std::vector<torch::Tensor>& inputs, NcclOp op) {
  torch::Tensor result = inputs[0].clone();
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    switch (op) {
      case NcclOp::kSum:
      case NcclOp::kAvg: result += inputs[r]; break;
      case NcclOp::kProd: result *= inputs[r]; break;
      case NcclOp::kMax: result = torch::maximum(result, inputs[r]); break;
      case NcclOp::kMin: result = torch::minimum(result, inputs[r]); break;
    }
  }
  return op == NcclOp::kAvg ? result / static_cast<double>(inputs.size()) : result;
}

// Hands out tensors' memory as a stream's allocator does: what is let go of is not used again
// before the streams have passed, which here is when the double ends.
class StreamAllocator final : public c10::Allocator {
 public:
  static void install() {
    static StreamAllocator the_allocator;
    c10::SetCPUAllocator(&the_allocator, /*priority=*/100);
  }

  static void free_all() {
    const std::lock_guard lock(mutex_);
    for (void* data : let_go_) std::free(data);
    let_go_.clear();
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    return {data, data, &let_go, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void let_go(void* data) {
    const std::lock_guard lock(mutex_);
    if (the_double) {
      let_go_.push_back(data);
    } else {
      std::free(data);
    }
  }

  static inline std::mutex mutex_;
  static inline std::vector<void*> let_go_;
};

}  // namespace

// --- what there is

struct NcclDouble::Event {
  int device = 0;
  int recorded = 0;  // times put on a stream
  int reached = 0;   // times come to the front of it
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
  double factor = 1;  // of this rank's values, before they are folded
  Comm* comm = nullptr;
  std::size_t number = 0;
  bool is_there = false;

  auto signature() const { return std::tie(kind, count, type, op, root); }
};

struct NcclDouble::Message {
  bool is_send = false;
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  Comm* comm = nullptr;
  bool is_there = false;  // at the front of its stream
  bool is_done = false;
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
  std::deque<Entry> entries;
};

struct NcclDouble::Clique {
  int size = 0;
  std::map<int, Comm*> members;
  int finalized = 0;
  std::map<std::size_t, std::vector<std::shared_ptr<Collective>>> collectives;  // by number
  std::vector<std::shared_ptr<Message>> messages;                               // at the front
};

struct NcclDouble::Comm {
  Clique* clique = nullptr;
  int rank = 0;
  int device = 0;
  std::size_t issued = 0;
  int rounds_left = 0;
  bool is_finalized = false;
  bool is_gone = false;
  NcclResult async_error = NcclResult::kSuccess;
  std::map<NcclOp, double> premul_sums;  // that were made, and their factors

  bool is_in_progress() const {
    if (clique->members.size() < static_cast<std::size_t>(clique->size)) return true;
    if (is_finalized && clique->finalized < clique->size) return true;
    return rounds_left > 0;
  }
};

// --- the life of the double

NcclDouble::NcclDouble() {
  NcclDouble* none = nullptr;
  if (!the_double.compare_exchange_strong(none, this)) {
    ADD_FAILURE() << "two NCCL doubles at a time";
  }
  tl_device = 0;
  StreamAllocator::install();
}

NcclDouble::~NcclDouble() {
  const std::lock_guard lock(mutex_);
  for (const auto& comm : comms_) {
    if (!comm->is_gone) breach("a communicator was neither destroyed nor aborted");
    if (comm->premul_sums.size() > 1) breach("operations are not destroyed");
  }
  for (const auto& event : events_) {
    if (!event->is_destroyed) breach("an event was not destroyed");
  }
  std::set<Stream*> of_callers;
  for (const auto& [thread, stream] : callers_) of_callers.insert(stream);
  for (const auto& stream : streams_) {
    if (!stream->is_destroyed && !of_callers.contains(stream.get())) {
      breach("a stream was not destroyed");
    }
  }
  the_double = nullptr;
  StreamAllocator::free_all();
}

void NcclDouble::breach(const std::string& what) { ADD_FAILURE() << "NCCL's contract: " << what; }

void NcclDouble::set_device_count(int count) { device_count_ = count; }

void NcclDouble::set_rounds_in_progress(int rounds) { rounds_in_progress_ = rounds; }

void NcclDouble::fail_next(const std::string& call, NcclResult result) {
  const std::lock_guard lock(mutex_);
  planned_failures_[call] = static_cast<int>(result);
}

void NcclDouble::fail_next(const std::string& call, CudaResult result) {
  const std::lock_guard lock(mutex_);
  planned_failures_[call] = static_cast<int>(result);
}

void NcclDouble::set_async_error(int rank, NcclResult error) {
  const std::lock_guard lock(mutex_);
  for (const auto& comm : comms_) {
    if (comm->rank == rank) comm->async_error = error;
  }
}

void NcclDouble::make_abort_hang() {
  const std::lock_guard lock(mutex_);
  abort_hangs_ = true;
}

void NcclDouble::let_abort_return() {
  const std::lock_guard lock(mutex_);
  abort_hangs_ = false;
  changed_.notify_all();
}

void NcclDouble::close_stream() {
  const std::lock_guard lock(mutex_);
  own_stream().entries.push_back({.kind = Entry::Kind::kClosed});
}

void NcclDouble::open_stream() {
  const std::lock_guard lock(mutex_);
  std::erase_if(own_stream().entries,
                [](const Entry& entry) { return entry.kind == Entry::Kind::kClosed; });
  pump();
}

std::vector<std::string> NcclDouble::calls() {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int NcclDouble::count(const std::string& call) {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::ranges::count(calls_, call));
}

bool NcclDouble::is_stream_idle() {
  const std::lock_guard lock(mutex_);
  pump();
  return own_stream().entries.empty();
}

int NcclDouble::current_device() { return tl_device; }

NcclDouble::Stream& NcclDouble::own_stream() {
  Stream*& stream = callers_[{std::this_thread::get_id(), tl_device}];
  if (!stream) {
    streams_.push_back(std::make_unique<Stream>(Stream{.device = tl_device}));
    stream = streams_.back().get();
  }
  return *stream;
}

std::optional<int> NcclDouble::planned_failure(const std::string& call) {
  calls_.push_back(call);
  const auto planned = planned_failures_.find(call);
  if (planned == planned_failures_.end()) return std::nullopt;
  const int result = planned->second;
  planned_failures_.erase(planned);
  return result;
}

CudaResult NcclDouble::cuda(const std::string& call, const std::function<void()>& action) {
  const std::lock_guard lock(mutex_);
  if (const auto failure = planned_failure(call)) return static_cast<CudaResult>(*failure);
  action();
  pump();
  return CudaResult::kSuccess;
}

// A call on a communicator that may be called.
NcclResult NcclDouble::on_comm(const std::string& call, NcclComm handle,
                               const std::function<void(Comm&)>& action) {
  const std::lock_guard lock(mutex_);
  Comm& comm = *reinterpret_cast<Comm*>(handle);
  if (comm.is_gone) breach(call + " on a communicator that was aborted or destroyed");
  if (comm.is_in_progress()) breach(call + " on a communicator that is in progress");
  if (comm.device != tl_device) breach(call + " while another device is current");
  if (const auto failure = planned_failure(call)) return static_cast<NcclResult>(*failure);
  action(comm);
  if (tl_group_depth > 0) {  // nothing starts before the group ends
    tl_group_comms.insert(handle);
    return NcclResult::kSuccess;
  }
  comm.rounds_left = rounds_in_progress_;
  pump();
  return comm.is_in_progress() ? NcclResult::kInProgress : NcclResult::kSuccess;
}

// --- streams

void NcclDouble::pump() {
  bool is_moving = true;
  while (is_moving) {
    is_moving = false;
    for (const auto& stream : streams_) is_moving |= advance(*stream);
  }
}

bool NcclDouble::advance(Stream& stream) {
  if (stream.entries.empty() || !step(stream.entries.front())) return false;
  stream.entries.pop_front();
  return true;
}

// Whether the entry at the front of a stream is done.
bool NcclDouble::step(Entry& entry) {
  switch (entry.kind) {
    case Entry::Kind::kRecord: entry.event->reached = entry.version; return true;
    case Entry::Kind::kWait: return entry.event->reached >= entry.version;
    case Entry::Kind::kCopy: entry.copy(); return true;
    case Entry::Kind::kCollective: return arrive(*entry.collective);
    case Entry::Kind::kMessages: {
      bool is_done = true;
      for (const auto& message : entry.messages) {
        if (!message->is_there) message->comm->clique->messages.push_back(message);
        message->is_there = true;
        is_done &= pass(*message);
      }
      return is_done;
    }
    case Entry::Kind::kClosed: return false;
  }
  return false;
}

// Runs the collective when the last rank has come to it.
bool NcclDouble::arrive(Collective& collective) {
  collective.is_there = true;
  Clique& clique = *collective.comm->clique;
  const auto all = clique.collectives.find(collective.number);
  if (all == clique.collectives.end()) return true;  // another rank's arrival ran it
  auto& ranks = all->second;
  if (std::ranges::any_of(ranks, [](const auto& one) { return !one || !one->is_there; }))
    return false;

  std::vector<torch::Tensor> inputs;
  const bool is_scatter = collective.kind == "reduce_scatter";
  const std::size_t send_count = collective.count * (is_scatter ? ranks.size() : 1);
  for (const auto& one : ranks) {
    inputs.push_back(view(one->send, send_count, one->type).clone());
    if (one->factor != 1) inputs.back().mul_(one->factor);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto& one = *ranks[r];
    const auto write = [&](const torch::Tensor& result) {
      view(one.receive, static_cast<std::size_t>(result.numel()), one.type).copy_(result);
    };
    if (one.kind == "all_reduce") write(folded(inputs, one.op));
    if (one.kind == "reduce" && static_cast<int>(r) == one.root) write(folded(inputs, one.op));
    if (one.kind == "broadcast") write(inputs[static_cast<std::size_t>(one.root)]);
    if (one.kind == "all_gather") write(torch::cat(inputs));
    const auto share = static_cast<std::int64_t>(one.count);
    const auto begin = static_cast<std::int64_t>(r) * share;
    if (is_scatter) write(folded(inputs, one.op).narrow(0, begin, share));
  }
  clique.collectives.erase(all);
  return true;
}

bool NcclDouble::pass(Message& message) {
  if (message.is_done) return true;
  const auto is_other_end = [&](const auto& other) {
    return !other->is_done && other->is_send != message.is_send &&
           other->peer == message.comm->rank && other->comm->rank == message.peer;
  };
  auto& waiting = message.comm->clique->messages;
  const auto found = std::ranges::find_if(waiting, is_other_end);
  if (found == waiting.end()) return false;
  Message& other = **found;
  if (other.bytes != message.bytes) breach("send and recv of different sizes");
  const Message& from = message.is_send ? message : other;
  const Message& to = message.is_send ? other : message;
  std::memcpy(to.data, from.data, std::min(from.bytes, to.bytes));
  message.is_done = other.is_done = true;
  std::erase_if(waiting, [](const auto& one) { return one->is_done; });
  return true;
}

void NcclDouble::enqueue_collective(Comm& comm, CudaStream handle, Collective collective) {
  auto& stream = *reinterpret_cast<Stream*>(handle);
  collective.comm = &comm;
  collective.number = comm.issued++;
  if (collective.op > NcclOp::kAvg) {
    const auto made = comm.premul_sums.find(collective.op);
    if (made == comm.premul_sums.end()) breach("an operation that was not made, or is destroyed");
    if (made != comm.premul_sums.end()) collective.factor = made->second;
    collective.op = NcclOp::kSum;
  }
  auto& ranks = comm.clique->collectives[collective.number];
  ranks.resize(static_cast<std::size_t>(comm.clique->size));
  for (const auto& other : ranks) {
    if (other && other->signature() != collective.signature()) {
      breach("collective " + std::to_string(collective.number) + " is " + other->kind + " of " +
             std::to_string(other->count) + " on rank " + std::to_string(other->comm->rank) +
             ", but " + collective.kind + " of " + std::to_string(collective.count) + " on rank " +
             std::to_string(comm.rank));
    }
  }
  const auto shared = std::make_shared<Collective>(std::move(collective));
  ranks[static_cast<std::size_t>(comm.rank)] = shared;
  stream.entries.push_back({.kind = Entry::Kind::kCollective, .collective = shared});
}

// Messages of one group are one entry: they wait for nothing but their other ends.
void NcclDouble::enqueue_message(Comm& comm, CudaStream handle, Message message) {
  auto& stream = *reinterpret_cast<Stream*>(handle);
  message.comm = &comm;
  if (message.peer < 0 || message.peer >= comm.clique->size) breach("a message to no rank");
  const bool is_joined = tl_group_depth > 0 && !stream.entries.empty() &&
                         stream.entries.back().kind == Entry::Kind::kMessages;
  if (!is_joined) stream.entries.push_back({.kind = Entry::Kind::kMessages});
  stream.entries.back().messages.push_back(std::make_shared<Message>(std::move(message)));
}

// An aborted kernel ends: what waits behind it on the stream goes on.
void NcclDouble::abandon(Comm& comm) {
  comm.is_gone = true;
  for (const auto& stream : streams_) {
    std::erase_if(stream->entries, [&](const Entry& entry) {
      return (entry.collective && entry.collective->comm == &comm) ||
             (!entry.messages.empty() && entry.messages[0]->comm == &comm);
    });
  }
  std::erase_if(comm.clique->messages, [&](const auto& one) { return one->comm == &comm; });
  pump();
}

// --- the table

struct NcclDoubleTable {
  using Comm = NcclDouble::Comm;
  using Event = NcclDouble::Event;
  using Stream = NcclDouble::Stream;
  using Entry = NcclDouble::Entry;

  static NcclDouble& self() {
    NcclDouble* there = the_double;
    if (!there) throw std::logic_error("a call of the NCCL table after the test");
    return *there;
  }

  static NcclResult get_unique_id(NcclUniqueId* id) {
    const std::lock_guard lock(self().mutex_);
    if (const auto failure = self().planned_failure("get_unique_id")) {
      return static_cast<NcclResult>(*failure);
    }
    const std::uint64_t number = ++self().ids_;
    self().cliques_[number] = std::make_unique<NcclDouble::Clique>();
    id->bytes.fill('i');
    std::memcpy(id->bytes.data(), &number, sizeof(number));
    return NcclResult::kSuccess;
  }

  static NcclResult comm_init_rank(NcclComm* comm, int size, const NcclUniqueId& id, int rank) {
    const std::lock_guard lock(self().mutex_);
    if (const auto failure = self().planned_failure("comm_init_rank")) {
      return static_cast<NcclResult>(*failure);
    }
    std::uint64_t number = 0;
    std::memcpy(&number, id.bytes.data(), sizeof(number));
    const auto clique = self().cliques_.find(number);
    if (clique == self().cliques_.end() || id.bytes.back() != 'i') {
      self().breach("an id that was not made");
      return NcclResult::kInvalidArgument;
    }
    if (clique->second->size != 0 && clique->second->size != size) self().breach("sizes differ");
    clique->second->size = size;
    self().comms_.push_back(
        std::make_unique<Comm>(Comm{.clique = clique->second.get(),
                                    .rank = rank,
                                    .device = tl_device,
                                    .rounds_left = self().rounds_in_progress_}));
    Comm* made = self().comms_.back().get();
    if (!clique->second->members.emplace(rank, made).second) self().breach("a rank came twice");
    *comm = reinterpret_cast<NcclComm>(made);
    return made->is_in_progress() ? NcclResult::kInProgress : NcclResult::kSuccess;
  }

  static NcclResult comm_get_async_error(NcclComm handle, NcclResult* state) {
    const std::lock_guard lock(self().mutex_);
    Comm& comm = *reinterpret_cast<Comm*>(handle);
    if (comm.is_gone) self().breach("comm_get_async_error on a communicator that is gone");
    *state = comm.async_error;
    if (comm.async_error == NcclResult::kSuccess && comm.is_in_progress()) {
      *state = NcclResult::kInProgress;
    }
    if (comm.rounds_left > 0) --comm.rounds_left;
    self().pump();
    return NcclResult::kSuccess;
  }

  static NcclResult comm_finalize(NcclComm handle) {
    return self().on_comm("comm_finalize", handle, [](Comm& comm) {
      comm.is_finalized = true;
      ++comm.clique->finalized;
    });
  }

  static NcclResult comm_destroy(NcclComm handle) {
    return self().on_comm("comm_destroy", handle, [](Comm& comm) {
      if (!comm.is_finalized) self().breach("comm_destroy without comm_finalize");
      comm.is_gone = true;
    });
  }

  static NcclResult comm_abort(NcclComm handle) {
    NcclDouble& self = NcclDoubleTable::self();
    std::unique_lock lock(self.mutex_);
    self.calls_.push_back("comm_abort");
    Comm& comm = *reinterpret_cast<Comm*>(handle);
    if (comm.is_gone) self.breach("comm_abort of a communicator that is gone");
    self.abandon(comm);
    self.changed_.wait(lock, [&self] { return !self.abort_hangs_; });
    self.calls_.push_back("comm_abort returned");
    return NcclResult::kSuccess;
  }

  static NcclResult group_start() {
    ++tl_group_depth;
    const std::lock_guard lock(self().mutex_);
    self().calls_.push_back("group_start");
    return NcclResult::kSuccess;
  }

  static NcclResult group_end() {
    const std::lock_guard lock(self().mutex_);
    self().calls_.push_back("group_end");
    if (tl_group_depth != 1) self().breach("groups are not opened and closed in pairs");
    tl_group_depth = 0;
    for (NcclComm handle : tl_group_comms) {
      reinterpret_cast<Comm*>(handle)->rounds_left = self().rounds_in_progress_;
    }
    const bool is_empty = tl_group_comms.empty();
    tl_group_comms.clear();
    self().pump();
    const bool is_in_progress = !is_empty && self().rounds_in_progress_ > 0;
    return is_in_progress ? NcclResult::kInProgress : NcclResult::kSuccess;
  }

  // A call that leaves nothing in progress.
  static NcclResult at_once(const char* call, NcclComm handle,
                            const std::function<void(Comm&)>& action) {
    Comm& comm = *reinterpret_cast<Comm*>(handle);
    const NcclResult result = self().on_comm(call, handle, action);
    const std::lock_guard lock(self().mutex_);
    comm.rounds_left = 0;
    return result == NcclResult::kInProgress ? NcclResult::kSuccess : result;
  }

  static NcclResult red_op_create_premul_sum(NcclOp* op, const void* scalar, NcclType type,
                                             NcclComm handle) {
    return at_once("red_op_create_premul_sum", handle, [&](Comm& comm) {
      int number = static_cast<int>(NcclOp::kAvg) + 1;
      while (comm.premul_sums.contains(static_cast<NcclOp>(number))) ++number;
      *op = static_cast<NcclOp>(number);
      comm.premul_sums[*op] = view(scalar, 1, type).item<double>();
    });
  }

  static NcclResult red_op_destroy(NcclOp op, NcclComm handle) {
    return at_once("red_op_destroy", handle, [&](Comm& comm) {
      if (comm.premul_sums.erase(op) == 0) self().breach("an operation was destroyed twice");
    });
  }

  static NcclResult collective(NcclComm handle, CudaStream stream, NcclDouble::Collective what) {
    return self().on_comm(what.kind, handle, [&](Comm& comm) {
      self().enqueue_collective(comm, stream, std::move(what));
    });
  }

  static NcclResult message(const char* call, NcclComm handle, CudaStream stream,
                            NcclDouble::Message what) {
    return self().on_comm(
        call, handle, [&](Comm& comm) { self().enqueue_message(comm, stream, std::move(what)); });
  }

  template <class T>
  static void make(std::vector<std::unique_ptr<T>>& all, auto* handle) {
    all.push_back(std::make_unique<T>());
    all.back()->device = tl_device;
    *handle = reinterpret_cast<std::remove_reference_t<decltype(*handle)>>(all.back().get());
  }

  template <class T>
  static void destroy(auto handle) {
    T& one = *reinterpret_cast<T*>(handle);
    if (one.is_destroyed) self().breach("something was destroyed twice");
    one.is_destroyed = true;
  }

  static CudaResult stream_wait_event(CudaStream stream, CudaEvent handle) {
    return self().cuda("stream_wait_event", [&] {
      auto* event = reinterpret_cast<Event*>(handle);
      if (event->is_destroyed) self().breach("wait for a destroyed event");
      reinterpret_cast<Stream*>(stream)->entries.push_back(
          {.kind = Entry::Kind::kWait, .event = event, .version = event->recorded});
    });
  }

  static CudaResult event_record(CudaEvent handle, CudaStream stream_handle) {
    return self().cuda("event_record", [&] {
      auto* event = reinterpret_cast<Event*>(handle);
      auto* stream = reinterpret_cast<Stream*>(stream_handle);
      if (event->is_destroyed || stream->is_destroyed) self().breach("record of what is destroyed");
      if (event->device != stream->device) self().breach("event and stream of different devices");
      stream->entries.push_back(
          {.kind = Entry::Kind::kRecord, .event = event, .version = ++event->recorded});
    });
  }

  static CudaResult event_query(CudaEvent handle) {
    const std::lock_guard lock(self().mutex_);
    auto* event = reinterpret_cast<Event*>(handle);
    if (event->is_destroyed) self().breach("query of a destroyed event");
    const auto planned = self().planned_failures_.extract("event_query");
    if (planned) return static_cast<CudaResult>(planned.mapped());
    self().pump();
    return event->reached == event->recorded ? CudaResult::kSuccess : CudaResult::kNotReady;
  }

  static CudaResult memcpy_async(void* to, const void* from, std::size_t bytes, CudaStream stream) {
    return self().cuda("memcpy_async", [&] {
      reinterpret_cast<Stream*>(stream)->entries.push_back(
          {.kind = Entry::Kind::kCopy, .copy = [=] { std::memcpy(to, from, bytes); }});
    });
  }

  static CudaResult set_device(int device) {
    return self().cuda("set_device", [&] { tl_device = device; });
  }
};

const NcclApi& NcclDouble::api() {
  using Table = NcclDoubleTable;
  static constexpr NcclApi kTable{
      .get_unique_id = Table::get_unique_id,
      .comm_init_rank = Table::comm_init_rank,
      .comm_get_async_error = Table::comm_get_async_error,
      .comm_finalize = Table::comm_finalize,
      .comm_destroy = Table::comm_destroy,
      .comm_abort = Table::comm_abort,
      .get_error_string = [](NcclResult) -> const char* { return "a failure that was planned"; },
      .get_last_error = [](NcclComm) -> const char* { return ""; },
      .red_op_create_premul_sum = Table::red_op_create_premul_sum,
      .red_op_destroy = Table::red_op_destroy,
      .group_start = Table::group_start,
      .group_end = Table::group_end,
      .all_reduce =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "all_reduce",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .op = op});
          },
      .reduce =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op, int root,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "reduce",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .op = op,
                                      .root = root});
          },
      .broadcast =
          [](const void* send, void* receive, std::size_t count, NcclType type, int root,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "broadcast",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .root = root});
          },
      .all_gather =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclComm comm,
             CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "all_gather",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type});
          },
      .reduce_scatter =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "reduce_scatter",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .op = op});
          },
      .send =
          [](const void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
             CudaStream stream) {
            const std::size_t bytes = count * torch::elementSize(torch_type(type));
            return Table::message(
                "send", comm, stream,
                {.is_send = true, .data = const_cast<void*>(data), .bytes = bytes, .peer = peer});
          },
      .recv =
          [](void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
             CudaStream stream) {
            const std::size_t bytes = count * torch::elementSize(torch_type(type));
            return Table::message("recv", comm, stream,
                                  {.data = data, .bytes = bytes, .peer = peer});
          },
      .get_device_count =
          [](int* count) {
            return Table::self().cuda("get_device_count",
                                      [&] { *count = Table::self().device_count_; });
          },
      .get_device =
          [](int* device) {
            *device = tl_device;
            return CudaResult::kSuccess;
          },
      .set_device = Table::set_device,
      .stream_create =
          [](CudaStream* stream) {
            return Table::self().cuda("stream_create",
                                      [&] { Table::make(Table::self().streams_, stream); });
          },
      .stream_destroy =
          [](CudaStream stream) {
            return Table::self().cuda("stream_destroy",
                                      [&] { Table::destroy<Table::Stream>(stream); });
          },
      .stream_wait_event = Table::stream_wait_event,
      .event_create =
          [](CudaEvent* event) {
            return Table::self().cuda("event_create",
                                      [&] { Table::make(Table::self().events_, event); });
          },
      .event_destroy =
          [](CudaEvent event) {
            return Table::self().cuda("event_destroy",
                                      [&] { Table::destroy<Table::Event>(event); });
          },
      .event_record = Table::event_record,
      .event_query = Table::event_query,
      .memcpy_async = Table::memcpy_async,
      .cuda_error_string = [](CudaResult) -> const char* { return "a failure that was planned"; },
      .current_stream =
          [](int) {
            const std::lock_guard lock(Table::self().mutex_);
            return reinterpret_cast<CudaStream>(&Table::self().own_stream());
          },
  };
  return kTable;
}

}  // namespace ddprun
