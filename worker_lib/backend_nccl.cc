#include "worker_lib/backend_nccl.h"

#include <cstring>

#include "base/background_thread.h"
#include "worker_lib/cpu/group_end.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/nccl_pause.h"
#include "worker_lib/tensor_facts.h"

namespace ddprun {
namespace {

constexpr NcclType kByte = NcclType::kUint8;
constexpr Duration kWatchInterval = std::chrono::milliseconds(20);

// The device is the current one of this thread while the guard lives: events and NCCL calls belong
// to the current device, and the caller's may be another.
class DeviceGuard {
 public:
  DeviceGuard(const NcclApi& api, int device) : api_(api), device_(device) {
    if (api_.get_device(&before_) != CudaResult::kSuccess) before_ = device_;
    if (before_ != device_) api_.set_device(device_);
  }
  ~DeviceGuard() {
    if (before_ != device_) api_.set_device(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const NcclApi& api_;
  const int device_;
  int before_ = 0;
};

// The type to reduce as; nullopt where NCCL has none. Complex numbers are pairs of real ones.
std::optional<NcclType> reducible_type(torch::ScalarType type) {
  switch (type) {
    case torch::kBool:
    case torch::kUInt8: return NcclType::kUint8;
    case torch::kInt8: return NcclType::kInt8;
    case torch::kInt32: return NcclType::kInt32;
    case torch::kInt64: return NcclType::kInt64;
    case torch::kFloat16: return NcclType::kFloat16;
    case torch::kBFloat16: return NcclType::kBfloat16;
    case torch::kFloat32:
    case torch::kComplexFloat: return NcclType::kFloat32;
    case torch::kFloat64:
    case torch::kComplexDouble: return NcclType::kFloat64;
    default: return std::nullopt;
  }
}

// On bool, which travels as the bytes 0 and 1, "or" is the maximum and "and" the minimum.
std::optional<NcclOp> nccl_op(ReduceOp op, torch::ScalarType type) {
  const bool is_bool = type == torch::kBool;
  switch (op) {
    case ReduceOp::kSum: return is_bool ? NcclOp::kMax : NcclOp::kSum;
    case ReduceOp::kProduct: return is_bool ? NcclOp::kMin : NcclOp::kProd;
    case ReduceOp::kMin: return NcclOp::kMin;
    case ReduceOp::kMax: return NcclOp::kMax;
    case ReduceOp::kAvg: return NcclOp::kAvg;
    case ReduceOp::kPremulSum: return NcclOp::kSum;  // another one is made of it
    case ReduceOp::kBitAnd: return is_bool ? std::optional(NcclOp::kMin) : std::nullopt;
    case ReduceOp::kBitOr: return is_bool ? std::optional(NcclOp::kMax) : std::nullopt;
    case ReduceOp::kBitXor: return std::nullopt;
  }
  return std::nullopt;
}

std::array<char, 8> bytes_of_factor(double factor, NcclType type) {
  std::array<char, 8> bytes{};
  const auto put = [&](auto value) { std::memcpy(bytes.data(), &value, sizeof value); };
  switch (type) {
    case NcclType::kFloat16: put(c10::Half(static_cast<float>(factor))); break;
    case NcclType::kBfloat16: put(c10::BFloat16(static_cast<float>(factor))); break;
    case NcclType::kFloat32: put(static_cast<float>(factor)); break;
    case NcclType::kFloat64: put(factor); break;
    default: DDPRUN_ASSERT(false, "ProcessGroup has checked that the dtype has fractions");
  }
  return bytes;
}

// What NCCL calls the reduction; kUnsupported where it has none.
Result<NcclReduction> reduction_of(const char* call, const Reduction& how, torch::ScalarType type) {
  const std::optional<NcclType> nccl_type = reducible_type(type);
  const std::optional<NcclOp> op = nccl_op(how.op, type);
  if (nccl_type && op) {
    NcclReduction as{.type = *nccl_type, .op = *op, .values = torch::isComplexType(type) ? 2 : 1};
    as.is_premul = how.op == ReduceOp::kPremulSum;
    if (as.is_premul) as.factor = bytes_of_factor(how.factor, as.type);
    return as;
  }
  const std::string what = std::string(to_text(how.op)) + " of " + c10::toString(type);
  return Error{
      .kind = ErrorKind::kUnsupported,
      .doing = call,
      .cause = "the nccl backend has no " + what + "; use another dtype or the cpu backend"};
}

std::vector<WrittenPart> written(TensorList tensors) {
  std::vector<WrittenPart> parts;
  for (const torch::Tensor& one : tensors) {
    parts.push_back({one.mutable_data_ptr(), one.nbytes(), count_of(one)});
  }
  return parts;
}

std::vector<ReadPart> read(TensorList tensors) {
  std::vector<ReadPart> parts;
  for (const torch::Tensor& one : tensors) {
    parts.push_back({one.const_data_ptr(), one.nbytes(), count_of(one)});
  }
  return parts;
}

// Of a list that has as many tensors for each rank, those at `place`.
std::vector<torch::Tensor> of_each_rank(TensorList list, std::size_t place, std::size_t each) {
  std::vector<torch::Tensor> tensors;
  for (std::size_t at = place; at < list.size(); at += each) tensors.push_back(list[at]);
  return tensors;
}

std::vector<torch::Tensor> both(TensorList left, TensorList right) {
  std::vector<torch::Tensor> tensors(left.begin(), left.end());
  tensors.insert(tensors.end(), right.begin(), right.end());
  return tensors;
}

// Whether the tensors lie one behind the other, as the slices of one tensor do.
bool are_consecutive(const std::vector<torch::Tensor>& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const auto* end =
        static_cast<const char*>(tensors[i - 1].const_data_ptr()) + tensors[i].nbytes();
    if (tensors[i].const_data_ptr() != end) return false;
  }
  return true;
}

// A block with room for all of them, on the caller's stream.
Result<torch::Tensor> block_for(const std::vector<torch::Tensor>& tensors) {
  try {
    return torch::empty({static_cast<std::int64_t>(tensors.size() * tensors[0].nbytes())},
                        tensors[0].options().dtype(torch::kUInt8));
  } catch (...) {
    return error_in_flight("make room for the tensors of all ranks");
  }
}

NcclCall call_of(const char* name, TensorList tensors, int peer = -1) {
  NcclCall call{.name = name, .type = tensors[0].scalar_type(), .peer = peer};
  for (const torch::Tensor& one : tensors) call.elements += one.numel();
  return call;
}

Error no_tags(const char* call, int tag) {
  return Error{
      .kind = ErrorKind::kUnsupported,
      .doing = call,
      .cause = "the nccl backend has no tags: tag must be 0, but is " + std::to_string(tag)};
}

Error no_any_source(const char* call) {
  return Error{.kind = ErrorKind::kUnsupported,
               .doing = call,
               .cause = "the nccl backend cannot receive from any source; name the rank"};
}

// The result of two calls of one group: a failure counts more than "in progress", that more than
// success.
NcclResult worse(NcclResult left, NcclResult right) {
  const auto is_failure = [](NcclResult result) {
    return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
  };
  if (is_failure(left)) return left;
  return right == NcclResult::kSuccess ? left : right;
}

}  // namespace

// --- forming and ending ---

Result<std::unique_ptr<NcclBackend>> NcclBackend::form(const NcclApi& api, Store* store,
                                                       const NcclBackendOptions& options,
                                                       std::unique_ptr<CpuGroup> peers) {
  auto communicator = NcclCommunicator::form(api, store,
                                             {.rank = options.rank,
                                              .world_size = options.world_size,
                                              .name = options.name,
                                              .timeout = options.timeout,
                                              .abort_grace = options.abort_grace,
                                              .peers = peers.get()});
  if (!communicator) return communicator.error();
  std::unique_ptr<NcclBackend> backend(
      new NcclBackend(api, options, std::move(peers), std::move(*communicator)));
  const Result<void> prepared = backend->prepare();
  if (!prepared) return prepared.error();
  return backend;
}

NcclBackend::NcclBackend(const NcclApi& api, const NcclBackendOptions& options,
                         std::unique_ptr<CpuGroup> peers,
                         std::unique_ptr<NcclCommunicator> communicator)
    : api_(api),
      options_(options),
      peers_(std::move(peers)),
      communicator_(std::move(communicator)) {}

Result<void> NcclBackend::prepare() {
  const CudaResult made = api_.stream_create(&stream_);
  if (made != CudaResult::kSuccess) return cuda_error(api_, "make a stream for NCCL", made);
  try {
    token_ = torch::zeros({1}, torch::TensorOptions().dtype(torch::kUInt8).device(options_.device));
  } catch (...) {
    return error_in_flight("make the tensor of barriers");
  }
  return {};
}

NcclBackend::~NcclBackend() {
  const DeviceGuard guard(api_, device_index());
  const Deadline deadline(options_.close_grace);
  if (drain(deadline)) communicator_->close(deadline);
  fail(Error{.kind = ErrorKind::kStopped, .cause = kGroupDestroyed});
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  for (CudaEvent event : events_) api_.event_destroy(event);
  if (stream_) api_.stream_destroy(stream_);
}

// Whether everything in flight ended well before the deadline: a blocking call returns when the
// stream knows of it, so a program that ends may still have work there that its peers count on.
bool NcclBackend::drain(const Deadline& deadline) {
  NcclPause pause;
  while (!communicator_->failure()) {
    if (!inspect()) return false;
    {
      const std::lock_guard lock(mutex_);
      if (in_flight_.empty()) return true;
    }
    if (deadline.passed()) return false;
    pause.take();
  }
  return false;
}

// --- one call ---

Work NcclBackend::issue(Issue issue, CallOptions call) {
  Result<std::shared_ptr<NcclWork>> work = launch(std::move(issue), call);
  if (!work) return detail::work_of(work.error());
  return Work(std::move(*work));
}

Result<std::shared_ptr<NcclWork>> NcclBackend::launch(Issue issue, CallOptions call) {
  issue.what.number = ++calls_;
  if (const std::optional<Error> first = communicator_->failure()) {
    return group_finished(words_of(issue.what), *first);
  }
  const DeviceGuard guard(api_, device_index());
  Result<std::shared_ptr<NcclWork>> work = enqueue(issue, Deadline(call.timeout));
  if (work) return work;
  const Error error = std::move(work).error().within(words_of(issue.what));
  fail(error);
  return error;
}

// Our stream first waits for what the caller's has been given; the same event then marks the end.
Result<std::shared_ptr<NcclWork>> NcclBackend::enqueue(Issue& issue, const Deadline& deadline) {
  const Result<void> watched = start_watcher();
  if (!watched) return watched.error();
  const Result<CudaEvent> event = take_event();
  if (!event) return event.error();
  const CudaStream caller = api_.current_stream(device_index());
  auto work = std::make_shared<NcclWork>(
      issue.what,
      NcclWork::Stream{.api = api_, .device = device_index(), .caller = caller, .event = *event},
      std::move(issue.keep), issue.host_wait, deadline);

  CudaResult done = api_.event_record(*event, caller);
  if (done == CudaResult::kSuccess) done = api_.stream_wait_event(stream_, *event);
  if (done == CudaResult::kSuccess) done = copy(issue.copies_ahead);
  if (done != CudaResult::kSuccess) return cuda_error(api_, "", done);

  const Result<void> launched = communicator_->launch(issue.launch, deadline);
  if (!launched) return launched.error();

  done = copy(issue.copies_behind);
  if (done == CudaResult::kSuccess) done = api_.event_record(*event, stream_);
  if (done != CudaResult::kSuccess) return cuda_error(api_, "", done);
  const std::lock_guard lock(mutex_);
  // Whoever reported it has not seen this call, which may have been ended with the others.
  if (const std::optional<Error> first = communicator_->failure()) return *first;
  in_flight_.push_back(work);
  changed_.notify_all();
  return work;
}

CudaResult NcclBackend::copy(const std::vector<Copy>& copies) {
  for (const Copy& one : copies) {
    const CudaResult copied = api_.memcpy_async(one.to, one.from, one.bytes, stream_);
    if (copied != CudaResult::kSuccess) return copied;
  }
  return CudaResult::kSuccess;
}

Result<CudaEvent> NcclBackend::take_event() {
  const std::lock_guard lock(mutex_);
  const Result<void> reaped = reap();
  if (!reaped) return reaped.error();
  if (free_events_.empty()) {
    CudaEvent made = nullptr;
    const CudaResult result = api_.event_create(&made);
    if (result != CudaResult::kSuccess) return cuda_error(api_, "make an event", result);
    events_.push_back(made);
    free_events_.push_back(made);
  }
  const CudaEvent event = free_events_.back();
  free_events_.pop_back();
  return event;
}

// --- the watcher ---

Result<void> NcclBackend::start_watcher() {
  if (watcher_.joinable()) return {};
  return start_thread(watcher_, "ddprun-nccl", [this] { watch(); });
}

void NcclBackend::watch() {
  const DeviceGuard guard(api_, device_index());
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (in_flight_.empty()) {
      changed_.wait(lock, [this] { return closing_ || !in_flight_.empty(); });
    } else {
      changed_.wait_for(lock, kWatchInterval, [this] { return closing_; });
    }
    lock.unlock();
    const Result<void> inspected = inspect();
    if (!inspected) return fail(inspected.error());
    lock.lock();
  }
}

// Lets go of what is over, the oldest first. REQUIRES: mutex_ is held.
Result<void> NcclBackend::reap() {
  while (!in_flight_.empty()) {
    const Result<bool> is_over = in_flight_.front()->poll();
    if (!is_over) return is_over.error();
    if (!*is_over) break;
    free_events_.push_back(in_flight_.front()->event());
    in_flight_.pop_front();
  }
  return {};
}

// Finds what has failed that nobody may have noticed yet.
Result<void> NcclBackend::inspect() {
  {
    const std::lock_guard lock(mutex_);
    const Result<void> reaped = reap();
    if (!reaped) return reaped;
    for (const auto& work : in_flight_) {
      const Deadline& deadline = work->deadline();
      if (!deadline.passed()) continue;
      return timeout_error(words_of(work->call()),
                           "it is not complete; a rank has not come, or is not done",
                           deadline.waited(), deadline.allowed());
    }
  }
  const Result<void> checked = communicator_->check();
  if (!checked) return Error(checked.error()).within("nccl group");
  return {};
}

// Those who wait hear of it after the abort: until then kernels may still write to the tensors that
// they would let go of. They must not look at their events any more, either: the abort lets those
// come.
void NcclBackend::fail(const Error& failure) {
  communicator_->fail(failure);
  {
    const std::lock_guard lock(mutex_);
    for (const auto& work : in_flight_) work->doom();
  }
  communicator_->abort();
  const Error first = *communicator_->failure();
  const std::lock_guard lock(mutex_);
  for (const auto& work : in_flight_) work->fail(first);
}

void NcclBackend::abort(const std::string& reason) {
  const DeviceGuard guard(api_, device_index());
  if (peers_) peers_->abort(reason);
  fail(Error{.kind = ErrorKind::kStopped, .doing = "nccl group", .cause = reason});
}

// --- collectives ---

// The calls of one group, so that they travel side by side; a single one needs none.
NcclResult NcclBackend::grouped(std::size_t count,
                                const std::function<NcclResult(std::size_t)>& call) {
  if (count == 1) return call(0);
  NcclResult result = api_.group_start();
  if (result != NcclResult::kSuccess) return result;
  for (std::size_t i = 0; i < count; ++i) result = worse(result, call(i));
  return worse(result, api_.group_end());
}

// calls(op), with an operation that is made for them where NCCL has none of its own. It is destroyed
// when the next one is made, not behind the calls: the communicator may be in progress then. The last
// one goes with the communicator.
template <class Calls>
NcclResult NcclBackend::with_op(const NcclReduction& as, NcclComm comm, Calls calls) {
  if (!as.is_premul) return calls(as.op);
  NcclResult result = NcclResult::kSuccess;
  if (premul_sum_) result = api_.red_op_destroy(*std::exchange(premul_sum_, {}), comm);
  NcclOp op{};
  if (result == NcclResult::kSuccess) {
    result = api_.red_op_create_premul_sum(&op, as.factor.data(), as.type, comm);
  }
  // Both are done at once; "in progress" would be taken for the calls, which were not made.
  if (result == NcclResult::kInProgress) return NcclResult::kInternalError;
  if (result != NcclResult::kSuccess) return result;
  premul_sum_ = op;
  return calls(op);
}

Work NcclBackend::all_reduce(TensorList tensors, Reduction how, CallOptions call) {
  const Result<NcclReduction> as = reduction_of("all_reduce", how, tensors[0].scalar_type());
  if (!as) return detail::work_of(as.error());
  return issue({.what = call_of("all_reduce", tensors),
                .keep = both(tensors, {}),
                .launch =
                    [this, as = *as, parts = written(tensors)](NcclComm comm) {
                      return with_op(as, comm, [&](NcclOp op) {
                        return grouped(parts.size(), [&](std::size_t i) {
                          return api_.all_reduce(parts[i].data, parts[i].data,
                                                 parts[i].elements * as.values, as.type, op, comm,
                                                 stream_);
                        });
                      });
                    }},
               call);
}

Work NcclBackend::reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) {
  const Result<NcclReduction> as = reduction_of("reduce", how, tensor.scalar_type());
  if (!as) return detail::work_of(as.error());
  // Only the root is written to, though all of them name the tensor as the receiver.
  void* data = tensor.mutable_data_ptr();
  return issue({.what = call_of("reduce", {&tensor, 1}, root),
                .keep = {tensor},
                .launch =
                    [=, this, count = count_of(tensor), as = *as](NcclComm comm) {
                      return with_op(as, comm, [&](NcclOp op) {
                        return api_.reduce(data, data, count * as.values, as.type, op, root, comm,
                                           stream_);
                      });
                    }},
               call);
}

Work NcclBackend::broadcast(TensorList tensors, int root, CallOptions call) {
  return issue({.what = call_of("broadcast", tensors, root),
                .keep = both(tensors, {}),
                .launch =
                    [this, root, parts = written(tensors)](NcclComm comm) {
                      return grouped(parts.size(), [&](std::size_t i) {
                        return api_.broadcast(parts[i].data, parts[i].data, parts[i].bytes, kByte,
                                              root, comm, stream_);
                      });
                    }},
               call);
}

// NCCL wants one block. Outputs that lie one behind the other are one; others are copied there from
// a block that is.
Work NcclBackend::all_gather(TensorList outputs, TensorList inputs, CallOptions call) {
  Issue gather{.what = call_of("all_gather", inputs), .keep = both(outputs, inputs)};
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::vector<torch::Tensor> ours = of_each_rank(outputs, i, inputs.size());
    const bool is_direct = are_consecutive(ours);
    const Result<torch::Tensor> block = is_direct ? ours[0] : block_for(ours);
    if (!block) return detail::work_of(block.error());
    gather.keep.push_back(*block);
    blocks.push_back(block->mutable_data_ptr());
    const std::size_t bytes = inputs[i].nbytes();
    for (std::size_t r = 0; !is_direct && r < ours.size(); ++r) {
      const char* from = static_cast<const char*>(blocks.back()) + r * bytes;
      gather.copies_behind.push_back({ours[r].mutable_data_ptr(), from, bytes});
    }
  }
  gather.launch = [this, blocks, parts = read(inputs)](NcclComm comm) {
    return grouped(parts.size(), [&](std::size_t i) {
      return api_.all_gather(parts[i].data, blocks[i], parts[i].bytes, kByte, comm, stream_);
    });
  };
  return issue(std::move(gather), call);
}

Work NcclBackend::reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                                 CallOptions call) {
  const Result<NcclReduction> as = reduction_of("reduce_scatter", how, outputs[0].scalar_type());
  if (!as) return detail::work_of(as.error());
  Issue scatter{.what = call_of("reduce_scatter", outputs), .keep = both(outputs, inputs)};
  std::vector<const void*> blocks;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<torch::Tensor> ours = of_each_rank(inputs, i, outputs.size());
    const bool is_direct = are_consecutive(ours);
    const Result<torch::Tensor> block = is_direct ? ours[0] : block_for(ours);
    if (!block) return detail::work_of(block.error());
    scatter.keep.push_back(*block);
    blocks.push_back(block->const_data_ptr());
    const std::size_t bytes = outputs[i].nbytes();
    for (std::size_t r = 0; !is_direct && r < ours.size(); ++r) {
      char* to = static_cast<char*>(block->mutable_data_ptr()) + r * bytes;
      scatter.copies_ahead.push_back({to, ours[r].const_data_ptr(), bytes});
    }
  }
  scatter.launch = [this, as = *as, blocks, parts = written(outputs)](NcclComm comm) {
    return with_op(as, comm, [&](NcclOp op) {
      return grouped(parts.size(), [&](std::size_t i) {
        return api_.reduce_scatter(blocks[i], parts[i].data, parts[i].elements * as.values, as.type,
                                   op, comm, stream_);
      });
    });
  };
  return issue(std::move(scatter), call);
}

// Messages, as NCCL has no such collectives. What stays on this rank is copied.
Work NcclBackend::issue_messages(Issue issue, std::vector<WrittenPart> to,
                                 std::vector<ReadPart> from, CallOptions call) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto own = static_cast<std::size_t>(rank());
  to.resize(ranks);
  from.resize(ranks);
  if (to[own].bytes > 0 && to[own].data != from[own].data) {
    issue.copies_ahead.push_back({to[own].data, from[own].data, to[own].bytes});
  }
  using Message = std::function<NcclResult(NcclComm)>;
  std::vector<Message> messages;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const auto at = static_cast<std::size_t>(r);
    if (from[at].bytes > 0) {
      messages.push_back([this, r, part = from[at]](NcclComm comm) {
        return api_.send(part.data, part.bytes, kByte, r, comm, stream_);
      });
    }
    if (to[at].bytes > 0) {
      messages.push_back([this, r, part = to[at]](NcclComm comm) {
        return api_.recv(part.data, part.bytes, kByte, r, comm, stream_);
      });
    }
  }
  issue.launch = [this, messages = std::move(messages)](NcclComm comm) {
    return grouped(messages.size(), [&](std::size_t i) { return messages[i](comm); });
  };
  return this->issue(std::move(issue), call);
}

Work NcclBackend::gather(TensorList outputs, const torch::Tensor& input, int root,
                         CallOptions call) {
  std::vector<WrittenPart> to = written(outputs);
  std::vector<ReadPart> from(static_cast<std::size_t>(size()));
  from[static_cast<std::size_t>(root)] = read({&input, 1})[0];
  return issue_messages(
      {.what = call_of("gather", {&input, 1}, root), .keep = both(outputs, {&input, 1})},
      std::move(to), std::move(from), call);
}

Work NcclBackend::scatter(const torch::Tensor& output, TensorList inputs, int root,
                          CallOptions call) {
  std::vector<WrittenPart> to(static_cast<std::size_t>(size()));
  to[static_cast<std::size_t>(root)] = written({&output, 1})[0];
  std::vector<ReadPart> from = read(inputs);
  return issue_messages(
      {.what = call_of("scatter", {&output, 1}, root), .keep = both(inputs, {&output, 1})},
      std::move(to), std::move(from), call);
}

Work NcclBackend::all_to_all(TensorList outputs, TensorList inputs, CallOptions call) {
  return issue_messages({.what = call_of("all_to_all", inputs), .keep = both(outputs, inputs)},
                        written(outputs), read(inputs), call);
}

// Reduces a byte; its Work blocks the host until that is through.
Work NcclBackend::barrier(CallOptions call) {
  return issue({.what = {.name = "barrier"},
                .keep = {token_},
                .launch =
                    [this](NcclComm comm) {
                      void* data = token_.mutable_data_ptr();
                      return api_.all_reduce(data, data, 1, kByte, NcclOp::kMax, comm, stream_);
                    },
                .host_wait = NcclWork::HostWait::kAlways},
               call);
}

Work NcclBackend::monitored_barrier(CallOptions call) {
  const NcclCall what{.name = "monitored_barrier", .number = ++calls_};
  if (const std::optional<Error> first = communicator_->failure()) {
    return detail::work_of(group_finished(words_of(what), *first));
  }
  if (!peers_) {
    return detail::work_of(Error{.kind = ErrorKind::kUnsupported,
                                 .doing = "monitored_barrier",
                                 .cause = "this nccl group knows nothing of its peers"});
  }
  const Result<void> passed = peers_->barrier(call.timeout);
  if (passed) return detail::work_of(passed);
  const Error error = Error(passed.error()).within(what.name);
  fail(error);
  return detail::work_of(error);
}

Work NcclBackend::send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) {
  if (tag != 0) return detail::work_of(no_tags("send", tag));
  return issue(
      {.what = call_of("send", {&tensor, 1}, destination),
       .keep = {tensor},
       .launch =
           [=, this, from = tensor.const_data_ptr(), bytes = tensor.nbytes()](NcclComm comm) {
             return api_.send(from, bytes, kByte, destination, comm, stream_);
           }},
      call);
}

Work NcclBackend::recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) {
  if (tag != 0) return detail::work_of(no_tags("recv", tag));
  if (source == kAnySource) return detail::work_of(no_any_source("recv"));
  NcclCall what = call_of("recv", {&tensor, 1}, source);
  what.source = source;
  return issue(
      {.what = what,
       .keep = {tensor},
       .launch = [=, this, to = tensor.mutable_data_ptr(), bytes = tensor.nbytes()](
                     NcclComm comm) { return api_.recv(to, bytes, kByte, source, comm, stream_); }},
      call);
}

// One group: NCCL starts them together.
std::vector<Work> NcclBackend::batch(const std::vector<P2POp>& operations, CallOptions call) {
  Issue batch{.what = {.name = "batch_isend_irecv"}, .keep = {}};
  std::vector<std::function<NcclResult(NcclComm)>> messages;
  std::optional<Error> refusal;
  for (const P2POp& one : operations) {
    if (one.tag != 0) refusal = no_tags("batch_isend_irecv", one.tag);
    if (one.peer == kAnySource) refusal = no_any_source("batch_isend_irecv");
    batch.keep.push_back(one.tensor);
    batch.what.elements += one.tensor.numel();
    batch.what.type = one.tensor.scalar_type();
    const std::size_t bytes = one.tensor.nbytes();
    if (one.kind == P2POp::Kind::kSend) {
      messages.push_back(
          [=, this, peer = one.peer, from = one.tensor.const_data_ptr()](NcclComm comm) {
            return api_.send(from, bytes, kByte, peer, comm, stream_);
          });
    } else {
      messages.push_back(
          [=, this, peer = one.peer, to = one.tensor.mutable_data_ptr()](NcclComm comm) {
            return api_.recv(to, bytes, kByte, peer, comm, stream_);
          });
    }
  }
  if (refusal) return std::vector<Work>(operations.size(), detail::work_of(*refusal));
  batch.launch = [this, messages = std::move(messages)](NcclComm comm) {
    NcclResult result = api_.group_start();
    if (result != NcclResult::kSuccess) return result;
    for (const auto& message : messages) result = worse(result, message(comm));
    return worse(result, api_.group_end());
  };
  const Result<std::shared_ptr<NcclWork>> work = launch(std::move(batch), call);
  if (!work) return std::vector<Work>(operations.size(), detail::work_of(work.error()));
  std::vector<Work> parts;
  for (const P2POp& one : operations) {
    const int source = one.kind == P2POp::Kind::kRecv ? one.peer : -1;
    parts.push_back(Work(std::make_shared<NcclBatchPart>(*work, source)));
  }
  return parts;
}

// --- the factory ---

int BackendFactory::device_count() const {
  int count = 0;
  return api_.get_device_count(&count) == CudaResult::kSuccess ? count : 0;
}

Result<void> BackendFactory::select_device(int index) const {
  const CudaResult selected = api_.set_device(index);
  if (selected == CudaResult::kSuccess) return {};
  return cuda_error(api_, "select device cuda:" + std::to_string(index), selected);
}

Result<std::unique_ptr<Backend>> BackendFactory::form(Store* store,
                                                      const NcclBackendOptions& options,
                                                      std::unique_ptr<CpuGroup> peers) const {
  Result<std::unique_ptr<NcclBackend>> backend =
      NcclBackend::form(api_, store, options, std::move(peers));
  if (!backend) return backend.error();
  return std::unique_ptr<Backend>(std::move(*backend));
}

}  // namespace ddprun
