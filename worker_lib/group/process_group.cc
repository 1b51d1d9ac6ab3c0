#include "ddprun/process_group.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/deadline.h"
#include "ddprun/backend.h"
#include "ddprun/objects.h"
#include "worker_lib/flight/worker_reporter.h"
#include "worker_lib/group/argument_check.h"
#include "worker_lib/group/factory.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/group/verification.h"
#include "worker_lib/group/work_state.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

// How long an aborted call may take to report its reason.
constexpr auto kTimeToFail = std::chrono::seconds(10);

// Autograd does not see the writes of a collective. With a higher version, a backward pass that
// saved the old value fails instead of silently using the new one. (Inference tensors have no
// version.)
void mark_written(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

void mark_written(TensorList tensors) {
  for (const torch::Tensor& tensor : tensors) mark_written(tensor);
}

// Encodes as CBOR, not JSON text. Numbers keep every bit (JSON has no NaN or infinity), strings
// need not be UTF-8, binary values stay binary, and CBOR is shorter.
std::string encode(const ArgumentCheck& check, const nlohmann::json& value) {
  if (value.is_discarded())
    check.refuse("value is a discarded JSON value (the result of a failed parse)");
  std::string bytes;
  nlohmann::json::to_cbor(value, nlohmann::detail::output_adapter<char>(bytes));
  return bytes;
}

nlohmann::json decode(const std::string& bytes, int from) {
  try {
    return nlohmann::json::from_cbor(bytes, /*strict=*/true, /*allow_exceptions=*/true,
                                     nlohmann::json::cbor_tag_handler_t::store);
  } catch (const nlohmann::json::exception& malformed) {
    refuse("decode the value of rank " + std::to_string(from) + ": " + malformed.what(),
           DistError::Kind::kCorrupt);
  }
}

std::vector<nlohmann::json> decode_all(const std::vector<std::string>& texts) {
  std::vector<nlohmann::json> values;
  for (const std::string& text : texts)
    values.push_back(decode(text, static_cast<int>(values.size())));
  return values;
}

// Returns the bytes as a tensor on the host that shares their memory.
torch::Tensor tensor_of(const std::string& bytes) {
  return torch::from_blob(const_cast<char*>(bytes.data()),
                          {static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
}

std::string bytes_of(const torch::Tensor& tensor) {
  const torch::Tensor host = tensor.cpu();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

// Returns the same memory as a flat tensor, split into parts of these lengths.
std::vector<torch::Tensor> parts_of(const torch::Tensor& tensor,
                                    const std::vector<std::int64_t>& lengths) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor row = tensor.view({-1});
  std::vector<torch::Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    parts.push_back(row.narrow(0, begin, length));
    begin += length;
  }
  return parts;
}

std::vector<torch::Tensor> equal_parts(const torch::Tensor& tensor, int count) {
  return parts_of(
      tensor, std::vector<std::int64_t>(static_cast<std::size_t>(count), tensor.numel() / count));
}

// Returns the ranks' parts of each tensor; all parts of rank 0 come first.
std::vector<torch::Tensor> equal_parts(const std::vector<torch::Tensor>& tensors, int count) {
  std::vector<torch::Tensor> parts(tensors.size() * static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<torch::Tensor> of_one = equal_parts(tensors[i], count);
    for (std::size_t r = 0; r < of_one.size(); ++r) parts[r * tensors.size() + i] = of_one[r];
  }
  return parts;
}

// Converts rows along the first dimension to elements.
std::vector<std::int64_t> in_elements(std::vector<std::int64_t> rows, const torch::Tensor& tensor) {
  const std::int64_t each = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
  for (std::int64_t& length : rows) length *= each;
  return rows;
}

std::size_t bytes_in(TensorList tensors) {
  std::size_t bytes = 0;
  for (const torch::Tensor& one : tensors) bytes += one.nbytes();
  return bytes;
}

TensorList list_of(const torch::Tensor& one) { return {&one, 1}; }

template <class Options>
Reduction reduction_of(const Options& options) {
  return {.op = options.op, .factor = options.premul_factor};
}

// Returns the rest of a timeout that covers several collectives, never zero. If the deadline has
// passed, the next collective reports it, with the ranks that are missing.
Timeout left(const Deadline& deadline) {
  return std::max<Timeout>(deadline.remaining(), std::chrono::milliseconds(1));
}

}  // namespace

// A call with the facts for its flight record.
struct ProcessGroup::Call {
  // peer: root, source or destination; -1: none.
  Call(const ArgumentCheck& check, FlightCall kind, TensorList tensors, int peer, CallOptions how,
       std::optional<ReduceOp> op = std::nullopt)
      : name(check.call()),
        facts{.call = kind, .bytes = bytes_in(tensors), .peer = peer},
        options(how) {
    // The enum values of PyTorch and of ReduceOp, plus one.
    if (!tensors.empty()) {
      facts.dtype = static_cast<FlightType>(static_cast<int>(tensors[0].scalar_type()) + 1);
    }
    if (op) facts.op = static_cast<FlightOp>(static_cast<int>(*op) + 1);
  }

  bool is_message() const {
    return facts.call == FlightCall::kSend || facts.call == FlightCall::kRecv;
  }

  // Tensors that the call reads and writes on this rank.
  Call& reads(TensorList tensors) {
    read = tensors;
    return *this;
  }
  Call& writes(TensorList tensors) {
    written = tensors;
    return *this;
  }
  // Tensors that are equal on every rank after the call.
  Call& agrees_on(TensorList tensors) {
    agreed = tensors;
    return *this;
  }

  const char* name;
  FlightFacts facts;
  CallOptions options;
  TensorList read;
  TensorList written;
  TensorList agreed;
};

template <class Options>
CallOptions ProcessGroup::how(const ArgumentCheck& check, const Options& options) const {
  return {check.timeout(options.timeout, timeout_), options.async};
}

ProcessGroup::ProcessGroup(std::unique_ptr<Backend> backend, torch::Device device, Timeout timeout,
                           std::shared_ptr<WorkerReporter> reporter, GroupIdentity identity,
                           Verify verify)
    : backend_(std::move(backend)),
      devices_(std::make_unique<DeviceTypes>(*backend_)),
      device_(device),
      object_device_(devices_->holds(torch::kCPU) ? torch::kCPU : device),
      timeout_(timeout),
      reporter_(reporter ? std::move(reporter) : std::make_shared<WorkerReporter>()),
      identity_(std::move(identity)),
      verify_(verify),
      notes_(std::make_shared<detail::GroupNotes>()) {
  if (!identity_.world_ranks.empty()) return;
  for (int rank = 0; rank < size(); ++rank) identity_.world_ranks.push_back(rank);
}

// The child of a fork has none of the backend's threads, and its peers would take it for its
// parent. So in the child the backend is released and not destroyed.
ProcessGroup::~ProcessGroup() {
  notes_->has_ended = true;
  if (!reporter_->is_of_this_process()) static_cast<void>(backend_.release());
}

ArgumentCheck ProcessGroup::check_for(const char* call) const {
  const ArgumentCheck check(call, *devices_, rank(), size());
  if (!reporter_->is_of_this_process()) [[unlikely]] {
    refuse(std::string(call) + ": this process was forked from the one that is in the group",
           DistError::Kind::kUnsupported);
  }
  return check;
}

TensorList ProcessGroup::on_root(int root, TensorList tensors) const {
  return root == rank() ? tensors : TensorList();
}
TensorList ProcessGroup::off_root(int root, TensorList tensors) const {
  return root == rank() ? TensorList() : tensors;
}

int ProcessGroup::rank() const { return backend_->rank(); }
int ProcessGroup::size() const { return backend_->size(); }
const std::string& ProcessGroup::backend_name() const { return backend_->name(); }
bool ProcessGroup::takes(torch::DeviceType type) const { return devices_->holds(type); }

FlightTicket ProcessGroup::begin(const Call& call) {
  if (!call.is_message()) ++collectives_;
  FlightFacts facts = call.facts;
  facts.collective = collectives_;
  facts.group = identity_.id;
  if (facts.peer >= 0) facts.peer = identity_.world_ranks[static_cast<std::size_t>(facts.peer)];
  if (!reporter_->has_page()) return {.facts = facts};
  return {reporter_, reporter_->begin_call(facts), facts};
}

// Refuses a second thread, unless the backend allows this call on any thread.
ProcessGroup::Turn ProcessGroup::take_turn(bool is_message) {
  if (is_message && backend_->sends_on_any_thread()) return {};
  if (is_called_.exchange(true, std::memory_order_acquire)) {
    refuse("two threads call into group " + name() + " at a time");
  }
  return Turn(&is_called_);
}

// Blocking calls end here, with the result or with the failure as an exception.
template <class Issue>
Work ProcessGroup::carry_out(const Call& call, Issue issue) {
  const Turn turn = take_turn(call.is_message());
  if (call.is_message()) {
    if (verify_.nan) expect_no_nan_here(call);
    return carry_out_alone(call, call.options, issue);
  }
  if (!verify_.nan && !verify_.results) return carry_out_alone(call, call.options, issue);

  // One record covers everything: a rank that waits in a check counts as being in the call.
  FlightTicket ticket = begin(call);
  try {
    if (verify_.nan) expect_no_nan(call);
    mark_written(call.written);
    issue({.timeout = call.options.timeout, .async = false}).wait();
    if (verify_.results && !call.agreed.empty()) expect_agreement(call);
  } catch (...) {
    ticket.end(/*failed=*/true);
    throw;
  }
  ticket.end(/*failed=*/false);
  if (!call.options.async) return {};
  auto over = std::make_shared<detail::HostWork>();
  over->outputs.assign(call.written.begin(), call.written.end());
  over->complete({});
  return Work(std::move(over));
}

template <class Issue>
Work ProcessGroup::carry_out_alone(const Call& call, CallOptions options, Issue issue) {
  mark_written(call.written);
  FlightTicket ticket = begin(call);
  Work work;
  try {
    work = issue(options);
  } catch (...) {  // it never began (for example out of memory)
    ticket.end(/*failed=*/true);
    throw;
  }
  keep_record(work, std::move(ticket));
  if (options.async && work.state_) {
    work.state_->outputs.assign(call.written.begin(), call.written.end());
  }
  if (!options.async) work.wait();
  return work;
}

// Returns every rank's `mine`, exchanged through the backend that carries the call. checking:
// the reason for the exchange. Errors name it, because the program did not call this exchange.
std::vector<std::int64_t> ProcessGroup::values_of_all(const Call& call, const char* checking,
                                                      std::int64_t mine) {
  const TensorList tensors = call.read.empty() ? call.written : call.read;
  const torch::Device device = tensors.empty() ? device_ : tensors[0].device();
  const torch::Tensor own = torch::full({1}, mine, torch::kInt64).to(device);
  std::vector<torch::Tensor> all;
  for (int r = 0; r < size(); ++r) all.push_back(torch::empty_like(own));
  try {
    backend_->all_gather(all, list_of(own), {.timeout = call.options.timeout, .async = false})
        .wait();
  } catch (const DistError& failure) {
    FlightFacts facts = call.facts;
    facts.collective = collectives_;
    throw DistError(failure.kind(), words_of(facts) + ", " + checking + ": " + failure.what(),
                    failure.peer_rank(), failure.waited(), failure.allowed());
  }
  std::vector<std::int64_t> values;
  for (const torch::Tensor& one : all) values.push_back(one.cpu().item<std::int64_t>());
  return values;
}

// Returns " in group tp0"; empty for the world.
std::string ProcessGroup::in_group() const {
  return identity_.id == 0 ? "" : " in group " + identity_.name;
}

// Returns "all_reduce in group tp (collective 12)". Messages are not numbered.
std::string ProcessGroup::name_of(const Call& call) const {
  const std::string name = call.name + in_group();
  return call.is_message() ? name : name + " (collective " + std::to_string(collectives_) + ")";
}

void ProcessGroup::refuse_nan(const Call& call, const NanFound& found) const {
  refuse(name_of(call) + ": what this rank, " + std::to_string(rank()) + ", gives holds " +
             std::to_string(found.count) + " NaN, the first in tensor " +
             std::to_string(found.tensor) + " at element " + std::to_string(found.element) +
             "; nothing was sent",
         DistError::Kind::kInvalidArgument, rank());
}

// Every rank learns of a NaN on any rank, so that no rank keeps waiting.
void ProcessGroup::expect_no_nan(const Call& call) {
  const NanFound found = find_nan(call.read);
  const std::vector<std::int64_t> counts = values_of_all(call, "looking for NaN", found.count);
  if (found.count > 0) refuse_nan(call, found);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] == 0) continue;
    refuse(name_of(call) + ": what rank " + std::to_string(r) + " gives holds " +
               std::to_string(counts[r]) + " NaN; nothing was sent",
           DistError::Kind::kInvalidArgument, static_cast<int>(r));
  }
}

void ProcessGroup::expect_no_nan_here(const Call& call) {
  const NanFound found = find_nan(call.read);
  if (found.count > 0) refuse_nan(call, found);
}

void ProcessGroup::expect_agreement(const Call& call) {
  const auto digest = std::bit_cast<std::int64_t>(digest_of(call.agreed));
  std::vector<std::uint64_t> digests;
  for (const std::int64_t one : values_of_all(call, "comparing results", digest)) {
    digests.push_back(std::bit_cast<std::uint64_t>(one));
  }
  const std::string divergence = describe_divergence(digests);
  if (divergence.empty()) return;
  refuse(name_of(call) + ": " + divergence, DistError::Kind::kCorrupt);
}

// Makes the record of a call end with the call.
void ProcessGroup::keep_record(const Work& work, FlightTicket ticket) {
  if (work.state_) {
    work.state_->record(std::move(ticket));
  } else {
    ticket.end(/*failed=*/false);
  }
}

Work ProcessGroup::all_reduce(const torch::Tensor& tensor, const AllReduceOptions& options) {
  ArgumentCheck check = check_for("all_reduce");
  check.tensor("tensor", tensor);
  check.op(options.op, options.premul_factor, tensor);
  Call call(check, FlightCall::kAllReduce, list_of(tensor), -1, how(check, options), options.op);
  call.reads(list_of(tensor)).writes(list_of(tensor)).agrees_on(list_of(tensor));
  return carry_out(call, [&](CallOptions how) {
    return backend_->all_reduce(list_of(tensor), reduction_of(options), how);
  });
}

Work ProcessGroup::all_reduce_coalesced(const std::vector<torch::Tensor>& tensors,
                                        const AllReduceOptions& options) {
  ArgumentCheck check = check_for("all_reduce_coalesced");
  check.list_of_one_dtype("tensors", tensors);
  check.written_apart("tensors", tensors);
  check.op(options.op, options.premul_factor, tensors[0]);
  Call call(check, FlightCall::kAllReduceCoalesced, tensors, -1, how(check, options), options.op);
  call.reads(tensors).writes(tensors).agrees_on(tensors);
  return carry_out(call, [&](CallOptions how) {
    return backend_->all_reduce(tensors, reduction_of(options), how);
  });
}

Work ProcessGroup::reduce(const torch::Tensor& tensor, const ReduceOptions& options) {
  ArgumentCheck check = check_for("reduce");
  check.tensor("tensor", tensor);
  check.op(options.op, options.premul_factor, tensor);
  check.root(options.root);
  Call call(check, FlightCall::kReduce, list_of(tensor), options.root, how(check, options),
            options.op);
  call.reads(list_of(tensor)).writes(on_root(options.root, list_of(tensor)));
  return carry_out(call, [&](CallOptions how) {
    return backend_->reduce(tensor, reduction_of(options), options.root, how);
  });
}

Work ProcessGroup::broadcast(const torch::Tensor& tensor, const RootOptions& options) {
  ArgumentCheck check = check_for("broadcast");
  check.tensor("tensor", tensor);
  check.root(options.root);
  Call call(check, FlightCall::kBroadcast, list_of(tensor), options.root, how(check, options));
  call.reads(on_root(options.root, list_of(tensor)))
      .writes(off_root(options.root, list_of(tensor)))
      .agrees_on(list_of(tensor));
  return carry_out(call, [&](CallOptions how) {
    return backend_->broadcast(list_of(tensor), options.root, how);
  });
}

Work ProcessGroup::broadcast_coalesced(const std::vector<torch::Tensor>& tensors,
                                       const RootOptions& options) {
  ArgumentCheck check = check_for("broadcast_coalesced");
  check.list("tensors", tensors);
  check.written_apart("tensors", tensors);
  check.root(options.root);
  Call call(check, FlightCall::kBroadcastCoalesced, tensors, options.root, how(check, options));
  call.reads(on_root(options.root, tensors))
      .writes(off_root(options.root, tensors))
      .agrees_on(tensors);
  return carry_out(
      call, [&](CallOptions how) { return backend_->broadcast(tensors, options.root, how); });
}

Work ProcessGroup::all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                              const CollectiveOptions& options) {
  ArgumentCheck check = check_for("all_gather");
  check.tensor("input", input);
  check.one_per_rank("outputs", outputs, "input", input);
  check.written_apart("outputs", outputs);
  check.apart_or_own("input", input, "outputs", outputs);
  Call call(check, FlightCall::kAllGather, list_of(input), -1, how(check, options));
  call.reads(list_of(input)).writes(outputs).agrees_on(outputs);
  return carry_out(
      call, [&](CallOptions how) { return backend_->all_gather(outputs, list_of(input), how); });
}

Work ProcessGroup::all_gather_into_tensor(const torch::Tensor& output, const torch::Tensor& input,
                                          const CollectiveOptions& options) {
  ArgumentCheck check = check_for("all_gather_into_tensor");
  check.tensor("input", input);
  check.parts_of_all("output", output, "input", input);
  const std::vector<torch::Tensor> outputs = equal_parts(output, size());
  check.apart_or_own("input", input, "output's parts", outputs);
  Call call(check, FlightCall::kAllGather, list_of(input), -1, how(check, options));
  call.reads(list_of(input)).writes(list_of(output)).agrees_on(list_of(output));
  return carry_out(
      call, [&](CallOptions how) { return backend_->all_gather(outputs, list_of(input), how); });
}

Work ProcessGroup::all_gather_into_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                                    const std::vector<torch::Tensor>& inputs,
                                                    const CollectiveOptions& options) {
  ArgumentCheck check = check_for("all_gather_into_tensor_coalesced");
  check.list("inputs", inputs);
  check.parts_of_each("outputs", outputs, "inputs", inputs);
  check.written_apart("outputs", outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check.apart_or_own("inputs", inputs[i], "an output's parts", equal_parts(outputs[i], size()));
  }
  Call call(check, FlightCall::kAllGatherCoalesced, inputs, -1, how(check, options));
  call.reads(inputs).writes(outputs).agrees_on(outputs);
  return carry_out(call, [&](CallOptions how) {
    return backend_->all_gather(equal_parts(outputs, size()), inputs, how);
  });
}

Work ProcessGroup::reduce_scatter(const torch::Tensor& output,
                                  const std::vector<torch::Tensor>& inputs,
                                  const ReduceScatterOptions& options) {
  ArgumentCheck check = check_for("reduce_scatter");
  check.tensor("output", output);
  check.one_per_rank("inputs", inputs, "output", output);
  check.apart_or_own("output", output, "inputs", inputs);
  check.op(options.op, options.premul_factor, output);
  Call call(check, FlightCall::kReduceScatter, list_of(output), -1, how(check, options),
            options.op);
  call.reads(inputs).writes(list_of(output));
  return carry_out(call, [&](CallOptions how) {
    return backend_->reduce_scatter(list_of(output), inputs, reduction_of(options), how);
  });
}

Work ProcessGroup::reduce_scatter_tensor(const torch::Tensor& output, const torch::Tensor& input,
                                         const ReduceScatterOptions& options) {
  ArgumentCheck check = check_for("reduce_scatter_tensor");
  check.tensor("output", output);
  check.parts_of_all("input", input, "output", output);
  const std::vector<torch::Tensor> inputs = equal_parts(input, size());
  check.apart_or_own("output", output, "input's parts", inputs);
  check.op(options.op, options.premul_factor, output);
  Call call(check, FlightCall::kReduceScatter, list_of(output), -1, how(check, options),
            options.op);
  call.reads(list_of(input)).writes(list_of(output));
  return carry_out(call, [&](CallOptions how) {
    return backend_->reduce_scatter(list_of(output), inputs, reduction_of(options), how);
  });
}

Work ProcessGroup::reduce_scatter_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                                   const std::vector<torch::Tensor>& inputs,
                                                   const ReduceScatterOptions& options) {
  ArgumentCheck check = check_for("reduce_scatter_tensor_coalesced");
  check.list_of_one_dtype("outputs", outputs);
  check.parts_of_each("inputs", inputs, "outputs", outputs);
  check.written_apart("outputs", outputs);
  check.apart_or_own_share("outputs", outputs, "inputs", inputs);
  check.op(options.op, options.premul_factor, outputs[0]);
  Call call(check, FlightCall::kReduceScatterCoalesced, outputs, -1, how(check, options),
            options.op);
  call.reads(inputs).writes(outputs);
  return carry_out(call, [&](CallOptions how) {
    return backend_->reduce_scatter(outputs, equal_parts(inputs, size()), reduction_of(options),
                                    how);
  });
}

Work ProcessGroup::all_to_all(const std::vector<torch::Tensor>& outputs,
                              const std::vector<torch::Tensor>& inputs,
                              const CollectiveOptions& options) {
  ArgumentCheck check = check_for("all_to_all");
  check.one_dtype_per_rank("inputs", inputs, "inputs[0]", inputs);
  check.one_dtype_per_rank("outputs", outputs, "inputs[0]", inputs);
  check.written_apart("outputs", outputs);
  check.apart("outputs", outputs, "inputs", inputs);
  return exchange(check, outputs, inputs, how(check, options));
}

Work ProcessGroup::all_to_all_single(const torch::Tensor& output, const torch::Tensor& input,
                                     const AllToAllSingleOptions& options) {
  ArgumentCheck check = check_for("all_to_all_single");
  check.tensor("output", output);
  check.tensor("input", input);
  check.same_dtype("output", output, "input", input);
  const std::vector<std::int64_t> incoming =
      check.splits("output_splits", options.output_splits, "output", output);
  const std::vector<std::int64_t> outgoing =
      check.splits("input_splits", options.input_splits, "input", input);
  check.apart("output", output, "input", {input});
  return exchange(check, parts_of(output, in_elements(incoming, output)),
                  parts_of(input, in_elements(outgoing, input)), how(check, options));
}

Work ProcessGroup::exchange(const ArgumentCheck& check, const std::vector<torch::Tensor>& outputs,
                            const std::vector<torch::Tensor>& inputs, CallOptions options) {
  const auto own = static_cast<std::size_t>(rank());
  if (outputs[own].numel() != inputs[own].numel()) {
    check.refuse("this rank, " + std::to_string(rank()) + ", has " +
                 std::to_string(inputs[own].numel()) + " elements for itself, but room for " +
                 std::to_string(outputs[own].numel()));
  }
  Call call(check, FlightCall::kAllToAll, inputs, -1, options);
  call.reads(inputs).writes(outputs);
  return carry_out(call,
                   [&](CallOptions how) { return backend_->all_to_all(outputs, inputs, how); });
}

Work ProcessGroup::gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                          const RootOptions& options) {
  ArgumentCheck check = check_for("gather");
  check.root(options.root);
  check.tensor("input", input);
  check.roots_list("outputs", outputs, "input", input, options.root);
  check.written_apart("outputs", outputs);
  check.apart_or_own("input", input, "outputs", outputs);
  Call call(check, FlightCall::kGather, list_of(input), options.root, how(check, options));
  call.reads(list_of(input)).writes(outputs);
  return carry_out(
      call, [&](CallOptions how) { return backend_->gather(outputs, input, options.root, how); });
}

Work ProcessGroup::scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                           const RootOptions& options) {
  ArgumentCheck check = check_for("scatter");
  check.root(options.root);
  check.tensor("output", output);
  check.roots_list("inputs", inputs, "output", output, options.root);
  check.apart_or_own("output", output, "inputs", inputs);
  Call call(check, FlightCall::kScatter, list_of(output), options.root, how(check, options));
  call.reads(inputs).writes(list_of(output));
  return carry_out(
      call, [&](CallOptions how) { return backend_->scatter(output, inputs, options.root, how); });
}

Work ProcessGroup::barrier(const CollectiveOptions& options) {
  ArgumentCheck check = check_for("barrier");
  const Call call(check, FlightCall::kBarrier, {}, -1, how(check, options));
  return carry_out(call, [&](CallOptions how) { return backend_->barrier(how); });
}

void ProcessGroup::monitored_barrier(std::optional<Timeout> timeout) {
  ArgumentCheck check = check_for("monitored_barrier");
  const Call call(check, FlightCall::kMonitoredBarrier, {}, -1,
                  {check.timeout(timeout, timeout_), /*async=*/false});
  carry_out(call, [&](CallOptions how) { return backend_->monitored_barrier(how); });
}

Work ProcessGroup::send(const torch::Tensor& tensor, int destination,
                        const PointToPointOptions& options) {
  ArgumentCheck check = check_for("send");
  check.tensor("tensor", tensor);
  check.peer("destination", destination);
  check.tag(options.tag);
  Call call(check, FlightCall::kSend, list_of(tensor), destination, how(check, options));
  call.reads(list_of(tensor));
  call.facts.tag = options.tag;
  return carry_out(
      call, [&](CallOptions how) { return backend_->send(tensor, destination, options.tag, how); });
}

Work ProcessGroup::recv(const torch::Tensor& tensor, int source,
                        const PointToPointOptions& options) {
  ArgumentCheck check = check_for("recv");
  check.tensor("tensor", tensor);
  check.source("source", source);
  check.tag(options.tag);
  Call call(check, FlightCall::kRecv, list_of(tensor), source, how(check, options));
  call.writes(list_of(tensor));
  call.facts.tag = options.tag;
  return carry_out(
      call, [&](CallOptions how) { return backend_->recv(tensor, source, options.tag, how); });
}

Work ProcessGroup::isend(const torch::Tensor& tensor, int destination,
                         PointToPointOptions options) {
  options.async = true;
  return send(tensor, destination, options);
}

Work ProcessGroup::irecv(const torch::Tensor& tensor, int source, PointToPointOptions options) {
  options.async = true;
  return recv(tensor, source, options);
}

std::vector<Work> ProcessGroup::batch_isend_irecv(const std::vector<P2POp>& operations,
                                                  std::optional<Timeout> timeout) {
  ArgumentCheck check = check_for("batch_isend_irecv");
  const CallOptions options{check.timeout(timeout, timeout_), /*async=*/true};
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const P2POp& one = operations[i];
    const std::string name = "operations[" + std::to_string(i) + "]";
    check.tensor((name + ".tensor").c_str(), one.tensor);
    if (one.kind == P2POp::Kind::kSend) {
      check.peer((name + ".peer").c_str(), one.peer);
    } else {
      check.source((name + ".peer").c_str(), one.peer);
    }
    check.tag(one.tag);
    if (verify_.nan && one.kind == P2POp::Kind::kSend) {
      Call call(check, FlightCall::kSend, list_of(one.tensor), one.peer, options);
      expect_no_nan_here(call.reads(list_of(one.tensor)));
    }
  }
  if (operations.empty()) return {};
  const Turn turn = take_turn(/*is_message=*/true);
  std::vector<FlightTicket> tickets;
  for (const P2POp& one : operations) {
    const bool is_send = one.kind == P2POp::Kind::kSend;
    if (!is_send) mark_written(one.tensor);
    Call call(check, is_send ? FlightCall::kSend : FlightCall::kRecv, list_of(one.tensor), one.peer,
              options);
    call.facts.tag = one.tag;
    tickets.push_back(begin(call));
  }
  std::vector<Work> works;
  try {
    works = backend_->batch(operations, options);
  } catch (...) {
    for (FlightTicket& ticket : tickets) ticket.end(/*failed=*/true);
    throw;
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    keep_record(works[i], std::move(tickets[i]));
    if (works[i].state_ && operations[i].kind == P2POp::Kind::kRecv) {
      works[i].state_->outputs = {operations[i].tensor};
    }
  }
  return works;
}

// --- objects

// If values are larger than this and of very different sizes, padding all to the largest costs
// more than one broadcast for each rank.
constexpr std::int64_t kPaddingIsCheap = std::int64_t{64} << 10;

std::vector<std::int64_t> ProcessGroup::sizes_of_all(std::size_t mine, const Deadline& deadline) {
  const torch::Tensor sizes = torch::empty({size()}, torch::kInt64).to(object_device_);
  const torch::Tensor own = torch::full({1}, static_cast<std::int64_t>(mine), torch::kInt64);
  all_gather_into_tensor(sizes, own.to(object_device_), {.timeout = left(deadline)});
  const torch::Tensor host = sizes.cpu();
  const auto* begin = host.const_data_ptr<std::int64_t>();
  return {begin, begin + size()};
}

std::vector<std::string> ProcessGroup::all_gather_text(const std::string& bytes,
                                                       const Deadline& deadline) {
  const std::vector<std::int64_t> sizes = sizes_of_all(bytes.size(), deadline);
  const std::int64_t largest = *std::ranges::max_element(sizes);
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<std::string> texts;
  if (largest > kPaddingIsCheap && largest * size() > 2 * all) {
    for (int r = 0; r < size(); ++r) {
      const torch::Tensor one =
          r == rank() ? tensor_of(bytes).to(object_device_)
                      : torch::empty({sizes[static_cast<std::size_t>(r)]},
                                     torch::TensorOptions(torch::kUInt8).device(object_device_));
      broadcast(one, {.root = r, .timeout = left(deadline)});
      texts.push_back(bytes_of(one));
    }
    return texts;
  }
  const torch::Tensor padded = torch::zeros({largest}, torch::kUInt8);
  padded.narrow(0, 0, static_cast<std::int64_t>(bytes.size())).copy_(tensor_of(bytes));
  const torch::Tensor together =
      torch::empty({size(), largest}, padded.options().device(object_device_));
  all_gather_into_tensor(together, padded.to(object_device_), {.timeout = left(deadline)});
  for (int r = 0; r < size(); ++r) {
    texts.push_back(bytes_of(together[r].narrow(0, 0, sizes[static_cast<std::size_t>(r)])));
  }
  return texts;
}

std::string ProcessGroup::broadcast_text(const std::string& bytes, int root,
                                         const Deadline& deadline) {
  const bool is_root = root == rank();
  const auto own = static_cast<std::int64_t>(is_root ? bytes.size() : 0);
  const torch::Tensor size = torch::full({1}, own, torch::kInt64).to(object_device_);
  broadcast(size, {.root = root, .timeout = left(deadline)});
  const torch::Tensor text =
      (is_root ? tensor_of(bytes) : torch::empty({size.cpu().item<std::int64_t>()}, torch::kUInt8))
          .to(object_device_);
  broadcast(text, {.root = root, .timeout = left(deadline)});
  return bytes_of(text);
}

// Only the root receives data.
std::vector<std::string> ProcessGroup::gather_text(const std::string& bytes, int root,
                                                   const Deadline& deadline) {
  const bool is_root = root == rank();
  std::vector<std::int64_t> incoming = sizes_of_all(bytes.size(), deadline);
  if (!is_root) std::ranges::fill(incoming, 0);
  std::vector<std::int64_t> outgoing(incoming.size(), 0);
  outgoing[static_cast<std::size_t>(root)] = static_cast<std::int64_t>(bytes.size());
  const std::vector<torch::Tensor> parts =
      exchange_bytes(tensor_of(bytes), outgoing, incoming, deadline);
  std::vector<std::string> texts;
  for (std::size_t r = 0; is_root && r < parts.size(); ++r) texts.push_back(bytes_of(parts[r]));
  return texts;
}

std::string ProcessGroup::scatter_text(const std::vector<std::string>& texts, int root,
                                       const Deadline& deadline) {
  std::string all;
  std::vector<std::int64_t> outgoing(static_cast<std::size_t>(size()), 0);
  std::vector<torch::Tensor> sizes;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    all += texts[r];
    outgoing[r] = static_cast<std::int64_t>(texts[r].size());
    sizes.push_back(torch::full({1}, outgoing[r], torch::kInt64).to(object_device_));
  }
  const torch::Tensor mine = torch::zeros({1}, torch::kInt64).to(object_device_);
  scatter(mine, sizes, {.root = root, .timeout = left(deadline)});
  std::vector<std::int64_t> incoming(outgoing.size(), 0);
  incoming[static_cast<std::size_t>(root)] = mine.cpu().item<std::int64_t>();
  return bytes_of(
      exchange_bytes(tensor_of(all), outgoing, incoming, deadline)[static_cast<std::size_t>(root)]);
}

// Returns the bytes that came from each rank.
std::vector<torch::Tensor> ProcessGroup::exchange_bytes(const torch::Tensor& bytes,
                                                        const std::vector<std::int64_t>& outgoing,
                                                        const std::vector<std::int64_t>& incoming,
                                                        const Deadline& deadline) {
  const std::int64_t all = std::accumulate(incoming.begin(), incoming.end(), std::int64_t{0});
  const torch::Tensor got =
      torch::empty({all}, torch::TensorOptions(torch::kUInt8).device(object_device_));
  all_to_all_single(
      got, bytes.to(object_device_),
      {.output_splits = incoming, .input_splits = outgoing, .timeout = left(deadline)});
  return parts_of(got, incoming);
}

template <class Body>
auto ProcessGroup::exchange_objects(const char* name, std::optional<Timeout> timeout, Body body) {
  ArgumentCheck check = check_for(name);
  const Deadline deadline(check.timeout(timeout, timeout_));
  return with_dist_errors(name, [&] { return body(check, deadline); });
}

std::vector<std::string> ProcessGroup::all_gather_bytes(const std::string& bytes,
                                                        std::optional<Timeout> timeout) {
  return exchange_objects("all_gather_bytes", timeout, [&](const auto&, const Deadline& deadline) {
    return all_gather_text(bytes, deadline);
  });
}

std::string ProcessGroup::broadcast_bytes(const std::string& bytes, int root,
                                          std::optional<Timeout> timeout) {
  return exchange_objects("broadcast_bytes", timeout, [&](const auto& check, const auto& deadline) {
    check.root(root);
    return broadcast_text(bytes, root, deadline);
  });
}

std::vector<std::string> ProcessGroup::gather_bytes(const std::string& bytes, int root,
                                                    std::optional<Timeout> timeout) {
  return exchange_objects("gather_bytes", timeout, [&](const auto& check, const auto& deadline) {
    check.root(root);
    return gather_text(bytes, root, deadline);
  });
}

std::string ProcessGroup::scatter_bytes(const std::vector<std::string>& bytes, int root,
                                        std::optional<Timeout> timeout) {
  return exchange_objects("scatter_bytes", timeout, [&](const auto& check, const auto& deadline) {
    check.root(root);
    check.roots_values("bytes", bytes.size(), root);
    return scatter_text(bytes, root, deadline);
  });
}

std::vector<nlohmann::json> ProcessGroup::all_gather_object(const nlohmann::json& value,
                                                            std::optional<Timeout> timeout) {
  return exchange_objects("all_gather_object", timeout,
                          [&](const auto& check, const Deadline& deadline) {
                            return decode_all(all_gather_text(encode(check, value), deadline));
                          });
}

nlohmann::json ProcessGroup::broadcast_object(const nlohmann::json& value, int root,
                                              std::optional<Timeout> timeout) {
  return exchange_objects("broadcast_object", timeout,
                          [&](const auto& check, const Deadline& deadline) {
                            check.root(root);
                            const std::string own = root == rank() ? encode(check, value) : "";
                            return decode(broadcast_text(own, root, deadline), root);
                          });
}

std::vector<nlohmann::json> ProcessGroup::gather_object(const nlohmann::json& value, int root,
                                                        std::optional<Timeout> timeout) {
  return exchange_objects("gather_object", timeout,
                          [&](const auto& check, const Deadline& deadline) {
                            check.root(root);
                            return decode_all(gather_text(encode(check, value), root, deadline));
                          });
}

nlohmann::json ProcessGroup::scatter_object(const std::vector<nlohmann::json>& values, int root,
                                            std::optional<Timeout> timeout) {
  return exchange_objects("scatter_object", timeout,
                          [&](const auto& check, const Deadline& deadline) {
                            check.root(root);
                            check.roots_values("values", values.size(), root);
                            std::vector<std::string> texts;
                            for (const nlohmann::json& value : values)
                              texts.push_back(encode(check, value));
                            return decode(scatter_text(texts, root, deadline), root);
                          });
}

void detail::refuse_to_write_object() { refuse(error_in_flight("write an object").message()); }

void detail::refuse_to_read_object() {
  refuse(error_in_flight("read an object").message(), DistError::Kind::kCorrupt);
}

std::unique_ptr<ProcessGroup> ProcessGroup::split(int color, int key, const GroupOptions& options) {
  ArgumentCheck check = check_for("split");
  const Deadline deadline(check.timeout(options.timeout, timeout_));
  if (!identity_.factory) {
    refuse("split: this group is not a Context's", DistError::Kind::kUnsupported);
  }
  return with_dist_errors("split", [&]() -> std::unique_ptr<ProcessGroup> {
    const torch::Tensor mine = torch::tensor({color, key}, torch::kInt32).to(object_device_);
    const torch::Tensor all = torch::empty({size(), 2}, mine.options());
    const Work gathered = all_gather_into_tensor(all, mine, {.timeout = left(deadline)});
    const torch::Tensor host = all.cpu();
    gathered.wait(kTimeToFail);  // throws if the call was aborted; its copy completes, too
    const auto choices = host.accessor<int, 2>();
    // Each color is passed as its first rank, so that numbers from size() on stay free for the
    // backend.
    int first = color < 0 ? -1 : 0;
    while (first >= 0 && first < size() && choices[first][0] != color) ++first;
    if (first == size())
      refuse("split: the exchange of colors ended without this rank's own; the group has failed",
             DistError::Kind::kStopped);
    std::shared_ptr<void> seed;
    backend_->split_off(first, key, &seed, {.timeout = left(deadline)}).wait();
    if (color < 0) return nullptr;
    std::vector<int> members;
    for (int r = 0; r < size(); ++r) {
      if (choices[r][0] == color) members.push_back(r);
    }
    std::ranges::stable_sort(members, {}, [&](int r) { return choices[r][1]; });
    std::vector<int> ranks;
    for (const int r : members) ranks.push_back(world_ranks()[static_cast<std::size_t>(r)]);
    return value_or_throw(identity_.factory->form(ranks, options, left(deadline), std::move(seed)));
  });
}

torch::Tensor ProcessGroup::shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) {
  ArgumentCheck check = check_for("shared_empty");
  for (const std::int64_t size : sizes) {
    if (size < 0) check.refuse("size " + std::to_string(size) + " must not be negative");
  }
  return with_dist_errors("shared_empty", [&] {
    torch::Tensor tensor = backend_->shared_empty(sizes, dtype);
    // The shared memory of the cpu backend is host memory, even if the group's device is a GPU.
    if (tensor.defined() && tensor.device().type() == device_.type()) return tensor;
    return torch::empty(sizes, torch::TensorOptions(dtype).device(device_));
  });
}

LongWait::LongWait(ProcessGroup& group) : reporter_(group.reporter_) {
  reporter_->begin_long_wait();
}
LongWait::~LongWait() { reporter_->end_long_wait(); }

void ProcessGroup::report_activity() { reporter_->report_activity(); }

void ProcessGroup::abort(const std::string& reason) {
  if (reporter_->is_of_this_process()) backend_->abort(reason);
}

}  // namespace ddprun
