// The part of NcclDouble that runs work: streams, collectives, messages, captures.

#include <algorithm>
#include <cstring>

#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/double_state.h"
#include "tests/worker_lib/nccl/double_types.h"

namespace ddprun {
namespace {

torch::Tensor reduced(const std::vector<torch::Tensor>& inputs, NcclOp op) {
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

}  // namespace

// Adds an entry to a stream. During a capture the entry goes into the graph and does not run.
void NcclDouble::put(Stream& stream, Entry entry) {
  if (!stream.is_capturing) {
    stream.entries.push_back(std::move(entry));
    return;
  }
  if (&stream != capture_->origin) capture_->unjoined.insert(&stream);
  capture_->entries.push_back(std::move(entry));
}

NcclDouble::Stream& NcclDouble::own_stream() {
  Stream*& stream = callers_[{std::this_thread::get_id(), current_device()}];
  if (!stream) {
    streams_.push_back(std::make_unique<Stream>(Stream{.device = current_device()}));
    stream = streams_.back().get();
  }
  return *stream;
}

void NcclDouble::pump() {
  bool is_moving = true;
  while (is_moving) {
    is_moving = run_jobs();
    for (const auto& stream : streams_) is_moving |= advance(*stream);
  }
}

bool NcclDouble::advance(Stream& stream) {
  if (stream.entries.empty() || !step(stream.entries.front())) return false;
  stream.entries.pop_front();
  return true;
}

// Returns whether the entry at the front of a stream is done.
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

// Runs the collective when the last rank has come to it. Returns whether it has run.
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
    if (one.kind == "all_reduce") write(reduced(inputs, one.op));
    if (one.kind == "reduce" && static_cast<int>(r) == one.root) write(reduced(inputs, one.op));
    if (one.kind == "broadcast") write(inputs[static_cast<std::size_t>(one.root)]);
    if (one.kind == "all_gather") write(torch::cat(inputs));
    const auto share = static_cast<std::int64_t>(one.count);
    const auto begin = static_cast<std::int64_t>(r) * share;
    if (is_scatter) write(reduced(inputs, one.op).narrow(0, begin, share));
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

// ArgsCheck: checks the root and the operation. NCCL does not notice that collectives differ
// between ranks: they hang, or worse.
NcclResult NcclDouble::add_collective(Comm& comm, Group& group, CudaStream handle,
                                      Collective collective) {
  auto& stream = *reinterpret_cast<Stream*>(handle);
  collective.comm = &comm;
  if (collective.root >= comm.clique->size) {
    breach("a collective with no rank as its root");
    return NcclResult::kInvalidArgument;
  }
  if (collective.op > NcclOp::kAvg && !comm.premul_sums.contains(collective.op)) {
    breach("an operation that was not made, or is destroyed");
    return NcclResult::kInvalidArgument;
  }
  if (!stream.is_capturing) number(collective);
  const auto shared = std::make_shared<Collective>(std::move(collective));
  if (!stream.is_capturing) {
    comm.clique->collectives[shared->number][static_cast<std::size_t>(comm.rank)] = shared;
  }
  group.launches.push_back({&stream, {.kind = Entry::Kind::kCollective, .collective = shared}});
  return NcclResult::kSuccess;
}

// Numbers the collective among those of its communicator, and compares it with the other
// ranks'.
void NcclDouble::number(Collective& collective) {
  Comm& comm = *collective.comm;
  collective.number = comm.issued++;
  if (collective.op > NcclOp::kAvg) {
    collective.factor = comm.premul_sums[collective.op];
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
}

// Adds a message to its group. The messages of one group are one entry. They wait for their
// other ends only.
NcclResult NcclDouble::add_message(Comm& comm, Group& group, CudaStream handle, Message message) {
  auto& stream = *reinterpret_cast<Stream*>(handle);
  message.comm = &comm;
  if (stream.is_capturing) breach("the double cannot capture messages");
  if (message.peer < 0 || message.peer >= comm.clique->size) {
    breach("a message to no rank");
    return NcclResult::kInvalidArgument;
  }
  const auto of_stream = std::ranges::find_if(group.launches, [&](const auto& launch) {
    return launch.first == &stream && launch.second.kind == Entry::Kind::kMessages;
  });
  const bool is_joined = of_stream != group.launches.end();
  if (!is_joined) group.launches.push_back({&stream, {.kind = Entry::Kind::kMessages}});
  Entry& entry = is_joined ? of_stream->second : group.launches.back().second;
  entry.messages.push_back(std::make_shared<Message>(std::move(message)));
  return NcclResult::kSuccess;
}

bool NcclDouble::has_outstanding(const Comm& comm) const {
  const auto is_its = [&comm](const auto& one) { return one && one->comm == &comm; };
  const auto is_of_it = [&](const Entry& entry) {
    return is_its(entry.collective) || std::ranges::any_of(entry.messages, is_its);
  };
  return std::ranges::any_of(
             streams_,
             [&](const auto& stream) { return std::ranges::any_of(stream->entries, is_of_it); }) ||
         std::ranges::any_of(jobs_, [&](const auto& job) {
           return !job->is_done && std::ranges::any_of(job->launches, [&](const auto& launch) {
             return is_of_it(launch.second);
           });
         });
}

// ncclComm::localPersistentRefs.
bool NcclDouble::is_in_graph(const Comm& comm) const {
  return capture_ && std::ranges::any_of(capture_->entries, [&](const Entry& entry) {
           return entry.collective && entry.collective->comm == &comm;
         });
}

// Stops the kernels of a communicator. Later entries of their streams go on.
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

// --- captures

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

void NcclDouble::destroy_graph() {
  const std::lock_guard lock(mutex_);
  capture_ = nullptr;
  changed_.notify_all();
  pump();
}

void NcclDouble::replay() {
  const std::lock_guard lock(mutex_);
  for (Entry entry : capture_->entries) {
    if (entry.collective) {  // each replay is the next collective of the communicator
      const auto again = std::make_shared<Collective>(*entry.collective);
      number(*again);
      again->comm->clique->collectives[again->number][static_cast<std::size_t>(again->comm->rank)] =
          again;
      own_stream().entries.push_back({.kind = Entry::Kind::kCollective, .collective = again});
    } else {
      own_stream().entries.push_back(std::move(entry));
    }
  }
  pump();
}

}  // namespace ddprun
