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
std::mutex memory_mutex;
std::map<void*, std::size_t> memory_blocks;  // of mem_alloc; tensors in them may outlive the double
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
  int recorded = 0;          // times put on a stream
  int reached = 0;           // times come to the front of it
  bool is_captured = false;  // it was recorded last in a capture
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
  bool is_premul = false;
  Comm* comm = nullptr;
  std::size_t number = 0;
  bool is_there = false;
  bool is_odd = false;  // another rank's differs

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
  bool is_odd = false;  // it got less than it waits for
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

// A graph of one chain: calls in the order in which they were made, which the waits between the
// streams of a capture allow.
struct NcclDouble::Capture {
  Stream* origin = nullptr;
  bool is_open = true;
  std::set<Stream*> unjoined;              // have something that the origin does not wait for
  std::map<Event*, std::set<Stream*>> of;  // the streams that an event of the capture stands for
  std::vector<Entry> entries;
};

struct NcclDouble::Clique {
  struct Split {
    std::map<int, std::pair<int, int>> asked;  // by rank: color and key
    std::map<int, NcclComm*> parts;
  };

  int size = 0;
  std::vector<std::uint64_t> ids;
  std::vector<Split> splits;
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
  bool is_revoked = false;
  bool is_gone = false;
  bool was_aborted = false;
  std::size_t splits = 0;             // that this rank has called
  std::map<void*, void*> registered;  // handles are the memory's own addresses
  NcclResult async_error = NcclResult::kSuccess;
  std::map<NcclOp, double> premul_sums;  // that were made, and their factors

  bool is_in_progress() const {
    if (clique->members.size() < static_cast<std::size_t>(clique->size)) return true;
    if (is_finalized && clique->finalized < clique->size) return true;
    if (splits > 0 &&
        clique->splits[splits - 1].asked.size() < static_cast<std::size_t>(clique->size)) {
      return true;
    }
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
    if (comm->clique->splits.size() > comm->splits && !comm->was_aborted) {
      breach("a split was not called by all ranks");
    }
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

void NcclDouble::let_ranks_disagree() {
  const std::lock_guard lock(mutex_);
  may_disagree_ = true;
}

void NcclDouble::begin_capture() {
  const std::lock_guard lock(mutex_);
  if (capture_ && capture_->is_open) breach("a capture in a capture");
  capture_ = std::make_unique<Capture>(Capture{.origin = &own_stream()});
  own_stream().is_capturing = true;
}

void NcclDouble::end_capture() {
  const std::lock_guard lock(mutex_);
  if (!capture_->unjoined.empty()) breach("a capture ends with work that was not joined");
  for (const auto& stream : streams_) stream->is_capturing = false;
  capture_->is_open = false;
}

void NcclDouble::replay() {
  const std::lock_guard lock(mutex_);
  for (Entry entry : capture_->entries) {
    if (entry.collective) {  // the next one of the communicator each time
      Collective again = *entry.collective;
      enqueue_collective(*again.comm, reinterpret_cast<CudaStream>(&own_stream()), again);
    } else {
      own_stream().entries.push_back(std::move(entry));
    }
  }
  pump();
}

int NcclDouble::memory_count() {
  const std::lock_guard lock(memory_mutex);
  return static_cast<int>(memory_blocks.size());
}

int NcclDouble::registered_count() {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const auto& comm : comms_) all += comm->registered.size();
  return static_cast<int>(all);
}

// What goes into a capture does not run.
void NcclDouble::put(Stream& stream, Entry entry) {
  if (!stream.is_capturing) {
    stream.entries.push_back(std::move(entry));
    return;
  }
  if (&stream != capture_->origin) capture_->unjoined.insert(&stream);
  capture_->entries.push_back(std::move(entry));
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
  if (comm.is_revoked) breach(call + " on a communicator that was revoked");
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
  if (std::ranges::any_of(ranks,
                          [](const auto& one) { return !one || !one->is_there || one->is_odd; })) {
    return false;
  }

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
  if (message.is_done || message.is_odd) return message.is_done;
  const auto is_other_end = [&](const auto& other) {
    return !other->is_done && other->is_send != message.is_send &&
           other->peer == message.comm->rank && other->comm->rank == message.peer;
  };
  auto& waiting = message.comm->clique->messages;
  const auto found = std::ranges::find_if(waiting, is_other_end);
  if (found == waiting.end()) return false;
  Message& other = **found;
  if (other.bytes != message.bytes && !may_disagree_) breach("send and recv of different sizes");
  Message& from = message.is_send ? message : other;
  Message& to = message.is_send ? other : message;
  std::memcpy(to.data, from.data, std::min(from.bytes, to.bytes));
  from.is_done = true;
  (from.bytes < to.bytes ? to.is_odd : to.is_done) = true;
  std::erase_if(waiting, [](const auto& one) { return one->is_done || one->is_odd; });
  return message.is_done;
}

void NcclDouble::enqueue_collective(Comm& comm, CudaStream handle, Collective collective) {
  auto& stream = *reinterpret_cast<Stream*>(handle);
  collective.comm = &comm;
  if (stream.is_capturing) {
    return put(stream, {.kind = Entry::Kind::kCollective,
                        .collective = std::make_shared<Collective>(std::move(collective))});
  }
  collective.number = comm.issued++;
  if (collective.op > NcclOp::kAvg) {
    const auto made = comm.premul_sums.find(collective.op);
    if (made == comm.premul_sums.end()) breach("an operation that was not made, or is destroyed");
    if (made != comm.premul_sums.end()) collective.factor = made->second;
    collective.op = NcclOp::kSum;
    collective.is_premul = true;
  }
  auto& ranks = comm.clique->collectives[collective.number];
  ranks.resize(static_cast<std::size_t>(comm.clique->size));
  for (const auto& other : ranks) {
    if (other && other->signature() != collective.signature()) {
      collective.is_odd = other->is_odd = true;
      if (may_disagree_) continue;
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
  if (stream.is_capturing) breach("the double cannot capture messages");
  if (message.peer < 0 || message.peer >= comm.clique->size) breach("a message to no rank");
  const bool is_joined = tl_group_depth > 0 && !stream.entries.empty() &&
                         stream.entries.back().kind == Entry::Kind::kMessages;
  if (!is_joined) stream.entries.push_back({.kind = Entry::Kind::kMessages});
  stream.entries.back().messages.push_back(std::make_shared<Message>(std::move(message)));
}

// An aborted kernel ends: what waits behind it on the stream goes on.
void NcclDouble::abandon(Comm& comm) {
  comm.is_gone = true;
  comm.was_aborted = true;
  comm.registered.clear();
  give_up_split(comm);
  stop_kernels(comm);
}

// The part of a split that ends before all ranks have come is there, too, but good for nothing.
void NcclDouble::give_up_split(Comm& comm) {
  if (comm.splits == 0) return;
  Clique::Split& split = comm.clique->splits[comm.splits - 1];
  if (split.asked.size() == static_cast<std::size_t>(comm.clique->size)) return;
  const auto part = split.parts.extract(comm.rank);
  const auto asked = split.asked.extract(comm.rank);
  if (!asked || asked.mapped().first < 0) return;
  auto& clique = cliques_[++ids_];
  clique = std::make_unique<Clique>();
  clique->size = 1;
  comms_.push_back(std::make_unique<Comm>(Comm{.clique = clique.get(), .device = comm.device}));
  clique->members[0] = comms_.back().get();
  *part.mapped() = reinterpret_cast<NcclComm>(comms_.back().get());
}

bool NcclDouble::has_outstanding(const Comm& comm) const {
  const auto is_its = [&comm](const auto& one) { return one && one->comm == &comm; };
  return std::ranges::any_of(streams_, [&](const auto& stream) {
    return std::ranges::any_of(stream->entries, [&](const Entry& entry) {
      return is_its(entry.collective) || std::ranges::any_of(entry.messages, is_its);
    });
  });
}

void NcclDouble::stop_kernels(Comm& comm) {
  for (const auto& stream : streams_) {
    for (Entry& entry : stream->entries) {
      std::erase_if(entry.messages, [&](const auto& one) { return one->comm == &comm; });
    }
    std::erase_if(stream->entries, [&](const Entry& entry) {
      return (entry.collective && entry.collective->comm == &comm) ||
             (entry.kind == Entry::Kind::kMessages && entry.messages.empty());
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
    return init("comm_init_rank", comm, size, rank, &id, 1);
  }

  static NcclResult comm_init_rank_scalable(NcclComm* comm, int size, int rank,
                                            const NcclUniqueId* ids, int id_count) {
    return init("comm_init_rank_scalable", comm, size, rank, ids, id_count);
  }

  // All ids are known, different and in the same order on all ranks: the first one stands for them.
  static NcclResult init(const char* call, NcclComm* comm, int size, int rank,
                         const NcclUniqueId* ids, int id_count) {
    const std::lock_guard lock(self().mutex_);
    if (const auto failure = self().planned_failure(call)) {
      return static_cast<NcclResult>(*failure);
    }
    if (self().capture_ && self().capture_->is_open) self().breach("an init in a capture");
    std::vector<std::uint64_t> numbers;
    for (int i = 0; i < id_count; ++i) {
      numbers.push_back(0);
      std::memcpy(&numbers.back(), ids[i].bytes.data(), sizeof(std::uint64_t));
      if (!self().cliques_.contains(numbers.back()) || ids[i].bytes.back() != 'i') {
        self().breach("an id that was not made");
        return NcclResult::kInvalidArgument;
      }
    }
    if (std::set(numbers.begin(), numbers.end()).size() != numbers.size()) {
      self().breach("an id is given twice");
    }
    const auto clique = self().cliques_.find(numbers[0]);
    auto& ids_of_clique = clique->second->ids;
    if (!ids_of_clique.empty() && ids_of_clique != numbers) self().breach("ids differ");
    ids_of_clique = numbers;
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
    if (comm.is_revoked) {
      return NcclResult::kSuccess;  // and its state is kSuccess, whatever it was: it is quiet
    }
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
    {
      std::unique_lock lock(self().mutex_);
      self().changed_.wait(lock, [] { return !self().abort_hangs_; });
    }
    return self().on_comm("comm_destroy", handle, [](Comm& comm) {
      if (!comm.is_finalized) self().breach("comm_destroy without comm_finalize");
      if (!comm.registered.empty()) self().breach("comm_destroy with registered memory");
      comm.is_gone = true;
    });
  }

  static NcclResult comm_split(NcclComm handle, int color, int key, NcclComm* part) {
    *part = nullptr;
    return self().on_comm("comm_split", handle, [&](Comm& comm) {
      auto& splits = comm.clique->splits;
      if (splits.size() <= comm.splits) splits.emplace_back();
      auto& split = splits[comm.splits++];
      if (color < -1) self().breach("comm_split with a color that is none");
      if (self().has_outstanding(comm)) self().breach("comm_split with calls outstanding");
      split.asked[comm.rank] = {color, key};
      split.parts[comm.rank] = part;
      if (split.asked.size() == static_cast<std::size_t>(comm.clique->size))
        make_parts(comm, split);
    });
  }

  static void make_parts(Comm& comm, NcclDouble::Clique::Split& split) {
    std::map<int, std::vector<std::pair<int, int>>> members;  // by color: key and rank
    for (const auto& [rank, asked] : split.asked) {
      if (asked.first >= 0) members[asked.first].push_back({asked.second, rank});
    }
    for (auto& [color, ranks] : members) {
      std::ranges::sort(ranks);
      auto& clique = self().cliques_[++self().ids_];
      clique = std::make_unique<NcclDouble::Clique>();
      clique->size = static_cast<int>(ranks.size());
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const int rank = ranks[i].second;
        self().comms_.push_back(
            std::make_unique<Comm>(Comm{.clique = clique.get(),
                                        .rank = static_cast<int>(i),
                                        .device = comm.clique->members[rank]->device,
                                        .rounds_left = self().rounds_in_progress_}));
        Comm* made = self().comms_.back().get();
        clique->members[static_cast<int>(i)] = made;
        *split.parts[rank] = reinterpret_cast<NcclComm>(made);
      }
    }
  }

  static NcclResult comm_revoke(NcclComm handle) {
    const std::lock_guard lock(self().mutex_);
    Comm& comm = *reinterpret_cast<Comm*>(handle);
    if (comm.is_gone) self().breach("comm_revoke on a communicator that is gone");
    if (comm.device != tl_device) self().breach("comm_revoke while another device is current");
    if (const auto failure = self().planned_failure("comm_revoke")) {
      return static_cast<NcclResult>(*failure);
    }
    comm.is_revoked = true;
    self().stop_kernels(comm);
    return NcclResult::kInProgress;
  }

  static NcclResult mem_alloc(void** memory, std::size_t bytes) {
    const std::lock_guard lock(self().mutex_);
    if (const auto failure = self().planned_failure("mem_alloc")) {
      return static_cast<NcclResult>(*failure);
    }
    if (self().capture_ && self().capture_->is_open) self().breach("mem_alloc in a capture");
    *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    const std::lock_guard all(memory_mutex);
    memory_blocks[*memory] = bytes;
    return NcclResult::kSuccess;
  }

  static NcclResult mem_free(void* memory) {
    const std::lock_guard lock(self().mutex_);
    self().calls_.push_back("mem_free");
    const std::lock_guard all(memory_mutex);
    if (memory_blocks.erase(memory) == 0) self().breach("mem_free of what was not allocated");
    for (const auto& comm : self().comms_) {
      if (comm->registered.contains(memory)) self().breach("mem_free of registered memory");
    }
    std::free(memory);
    return NcclResult::kSuccess;
  }

  static NcclResult comm_register(NcclComm handle, void* memory, std::size_t bytes, void** known) {
    return at_once("comm_register", handle, [&](Comm& comm) {
      const std::lock_guard all(memory_mutex);
      const auto block = memory_blocks.find(memory);
      if (block == memory_blocks.end() || block->second < bytes) {
        self().breach("comm_register of memory that is not NCCL's");
      }
      if (!comm.registered.emplace(memory, memory).second) {
        self().breach("memory is registered twice");
      }
      *known = memory;
    });
  }

  static NcclResult comm_deregister(NcclComm handle, void* known) {
    return at_once("comm_deregister", handle, [&](Comm& comm) {
      if (comm.registered.erase(known) == 0) self().breach("comm_deregister of what is not known");
    });
  }

  static NcclResult comm_abort(NcclComm handle) {
    NcclDouble& self = NcclDoubleTable::self();
    std::unique_lock lock(self.mutex_);
    self.calls_.push_back("comm_abort");
    Comm& comm = *reinterpret_cast<Comm*>(handle);
    if (comm.is_gone) self.breach("comm_abort of a communicator that is gone");
    if (comm.device != tl_device) self.breach("comm_abort while another device is current");
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
      auto* waiting = reinterpret_cast<Stream*>(stream);
      if (event->is_captured) return join(*waiting, *event);
      if (waiting->is_capturing) self().breach("a capture waits for an event from outside");
      waiting->entries.push_back(
          {.kind = Entry::Kind::kWait, .event = event, .version = event->recorded});
    });
  }

  // A stream that waits for an event of a capture is captured, too.
  static void join(Stream& waiting, Event& event) {
    NcclDouble::Capture& capture = *self().capture_;
    if (!capture.is_open) return self().breach("wait for an event of a capture that is over");
    waiting.is_capturing = true;
    const std::set<Stream*>& of = capture.of[&event];
    if (&waiting != capture.origin) capture.unjoined.insert(&waiting);
    if (&waiting == capture.origin) {
      for (Stream* joined : of) capture.unjoined.erase(joined);
    }
  }

  static CudaResult stream_is_capturing(CudaStream stream, bool* is_capturing) {
    const std::lock_guard lock(self().mutex_);
    const auto planned = self().planned_failures_.extract("stream_is_capturing");
    if (planned) return static_cast<CudaResult>(planned.mapped());
    *is_capturing = reinterpret_cast<Stream*>(stream)->is_capturing;
    return CudaResult::kSuccess;
  }

  static CudaResult event_record(CudaEvent handle, CudaStream stream_handle) {
    return self().cuda("event_record", [&] {
      auto* event = reinterpret_cast<Event*>(handle);
      auto* stream = reinterpret_cast<Stream*>(stream_handle);
      if (event->is_destroyed || stream->is_destroyed) self().breach("record of what is destroyed");
      if (event->device != stream->device) self().breach("event and stream of different devices");
      event->is_captured = stream->is_capturing;
      if (event->is_captured) {
        self().capture_->of[event] = {stream};
        return;
      }
      stream->entries.push_back(
          {.kind = Entry::Kind::kRecord, .event = event, .version = ++event->recorded});
    });
  }

  static CudaResult event_query(CudaEvent handle) {
    const std::lock_guard lock(self().mutex_);
    auto* event = reinterpret_cast<Event*>(handle);
    if (event->is_destroyed) self().breach("query of a destroyed event");
    if (event->is_captured) self().breach("query of an event of a capture");
    const auto planned = self().planned_failures_.extract("event_query");
    if (planned) return static_cast<CudaResult>(planned.mapped());
    self().pump();
    return event->reached == event->recorded ? CudaResult::kSuccess : CudaResult::kNotReady;
  }

  static CudaResult memcpy_async(void* to, const void* from, std::size_t bytes, CudaStream stream) {
    return self().cuda("memcpy_async", [&] {
      self().put(*reinterpret_cast<Stream*>(stream),
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
      .comm_init_rank_scalable = Table::comm_init_rank_scalable,
      .comm_split = Table::comm_split,
      .comm_revoke = Table::comm_revoke,
      .get_error_string = [](NcclResult) -> const char* { return "a failure that was planned"; },
      .get_last_error = [](NcclComm) -> const char* { return ""; },
      .mem_alloc = Table::mem_alloc,
      .mem_free = Table::mem_free,
      .comm_register = Table::comm_register,
      .comm_deregister = Table::comm_deregister,
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
      .stream_is_capturing = Table::stream_is_capturing,
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

const NcclApi& NcclDouble::old_api() {
  static const NcclApi kTable = [] {
    NcclApi table = api();
    table.comm_init_rank_scalable = nullptr;
    table.comm_split = nullptr;
    table.comm_revoke = nullptr;
    table.mem_alloc = nullptr;
    table.mem_free = nullptr;
    table.comm_register = nullptr;
    table.comm_deregister = nullptr;
    return table;
  }();
  return kTable;
}

}  // namespace ddprun
