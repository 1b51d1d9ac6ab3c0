#include "ddprun/process_group.h"

#include <algorithm>
#include <bit>

#include "base/concat.h"
#include "base/deadline.h"
#include "ddprun/backend.h"
#include "worker_lib/flight/worker_reporter.h"
#include "worker_lib/group/argument_check.h"
#include "worker_lib/group/factory.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/group/verification.h"
#include "worker_lib/group/work_state.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

// Autograd does not see the writes of a collective. With a higher version, a backward pass that
// saved the old value fails instead of silently using the new one. (Inference tensors have no
// version.)
void mark_written(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

void mark_written(TensorList tensors) {
  for (const torch::Tensor& tensor : tensors) mark_written(tensor);
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
  return parts_of(tensor, std::vector<std::int64_t>(count, tensor.numel() / count));
}

// Returns the ranks' parts of each tensor; all parts of rank 0 come first.
std::vector<torch::Tensor> equal_parts(const std::vector<torch::Tensor>& tensors, int count) {
  std::vector<torch::Tensor> parts(tensors.size() * count);
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

template <class Options>
Reduction reduction_of(const Options& options) {
  return {.op = options.op, .factor = options.premul_factor};
}

}  // namespace

// One call: its checks, its tensors and the facts for its flight record.
class ProcessGroup::Call {
 public:
  Call(ProcessGroup& group, const ArgumentCheck& arguments, FlightCall kind)
      : check(arguments), facts{.group = group.identity_.id, .call = kind}, group_(group) {}
  Call(ProcessGroup& group, const char* name, FlightCall kind)
      : Call(group, group.check_for(name), kind) {}

  // --- collectives that have several forms, each of which has checked its tensors ---

  Work all_reduce(TensorList tensors, const AllReduceOptions& options) {
    check.op(options.op, options.premul_factor, tensors[0]);
    read = written = agreed = tensors;
    return carry_out(tensors, options, [&](CallOptions call) {
      return group_.backend_->all_reduce(tensors, reduction_of(options), call);
    });
  }

  Work broadcast(TensorList tensors, const RootOptions& options) {
    check.root(options.root);
    read = on_root(options.root, tensors);
    written = off_root(options.root, tensors);
    agreed = tensors;
    return carry_out(tensors, options, [&](CallOptions call) {
      return group_.backend_->broadcast(tensors, options.root, call);
    });
  }

  // outputs: the ranks' parts of what is written.
  Work all_gather(TensorList outputs, TensorList inputs, const CollectiveOptions& options) {
    read = inputs;
    agreed = written;
    return carry_out(inputs, options, [&](CallOptions call) {
      return group_.backend_->all_gather(outputs, inputs, call);
    });
  }

  // inputs: the ranks' parts of what is read.
  Work reduce_scatter(TensorList outputs, TensorList inputs, const ReduceScatterOptions& options) {
    check.op(options.op, options.premul_factor, outputs[0]);
    written = outputs;
    return carry_out(outputs, options, [&](CallOptions call) {
      return group_.backend_->reduce_scatter(outputs, inputs, reduction_of(options), call);
    });
  }

  template <class Options>
  Work all_to_all(TensorList outputs, TensorList inputs, const Options& options) {
    const std::size_t own = group_.rank();
    if (outputs[own].numel() != inputs[own].numel()) {
      check.refuse("this rank, ", own, ", has ", inputs[own].numel(),
                   " elements for itself, but room for ", outputs[own].numel());
    }
    read = inputs;
    written = outputs;
    return carry_out(inputs, options, [&](CallOptions call) {
      return group_.backend_->all_to_all(outputs, inputs, call);
    });
  }

  // --- one call ---

  // Carries out the call. tensors: those that its flight record describes. Blocking calls end
  // here, with the result or with the failure as an exception.
  template <class Options, class Issue>
  Work carry_out(TensorList tensors, const Options& options, Issue issue) {
    how = {check.timeout(options.timeout, group_.timeout_), options.async};
    describe(tensors);
    if constexpr (requires { options.root; }) facts.peer = options.root;
    if constexpr (requires { options.tag; }) facts.tag = options.tag;
    if constexpr (requires { options.op; }) {  // the enum value of ReduceOp, plus one
      facts.op = static_cast<FlightOp>(static_cast<int>(options.op) + 1);
    }
    const Turn turn = take_turn();
    const Verify verify = group_.verify_;
    if (!is_message() && (verify.nan || verify.results)) return carry_out_verified(issue);
    if (verify.nan) expect_no_nan_here();
    return carry_out_alone(issue);
  }

  // --- the steps of carry_out(), for a batch of messages ---

  void describe(TensorList tensors) {
    for (const torch::Tensor& one : tensors) facts.bytes += one.nbytes();
    if (tensors.empty()) return;
    // The enum value of PyTorch, plus one.
    facts.dtype = static_cast<FlightType>(static_cast<int>(tensors[0].scalar_type()) + 1);
  }

  // Refuses a second thread, unless the backend allows this call on any thread.
  Turn take_turn() const {
    if (is_message() && group_.backend_->sends_on_any_thread()) return {};
    if (group_.is_called_.exchange(true, std::memory_order_acquire)) {
      refuse("two threads call into group " + group_.name() + " at a time");
    }
    return Turn(&group_.is_called_);
  }

  void expect_no_nan_here() const {
    const NanFound found = find_nan(read);
    if (found.count > 0) refuse_nan(found);
  }

  FlightTicket begin() {
    if (!is_message()) ++group_.collectives_;
    facts.collective = group_.collectives_;
    FlightTicket ticket{.facts = facts};
    if (facts.peer >= 0) ticket.facts.peer = group_.identity_.world_ranks[facts.peer];
    if (group_.reporter_->has_page()) {
      ticket.reporter = group_.reporter_;
      ticket.number = group_.reporter_->begin_call(ticket.facts);
    }
    return ticket;
  }

  // Makes the record of the call end with the call, and gives its future what the call writes.
  void attach(const Work& work, FlightTicket ticket) const {
    if (!work.state_) return ticket.end(/*failed=*/false);
    work.state_->record(std::move(ticket));
    if (how.async) work.state_->outputs.assign(written.begin(), written.end());
  }

  TensorList on_root(int root, TensorList tensors) const {
    return root == group_.rank() ? tensors : TensorList();
  }
  TensorList off_root(int root, TensorList tensors) const {
    return root == group_.rank() ? TensorList() : tensors;
  }

  ArgumentCheck check;
  FlightEntry facts;
  CallOptions how;
  // Tensors that the call reads and writes on this rank.
  TensorList read;
  TensorList written;
  TensorList agreed;  // equal on every rank after the call

 private:
  template <class Issue>
  Work carry_out_alone(Issue issue) {
    mark_written(written);
    FlightTicket ticket = begin();
    ticket.blocks = !how.async;
    Work work;
    try {
      work = issue(how);
    } catch (...) {  // it never began (for example out of memory)
      ticket.end(/*failed=*/true);
      throw;
    }
    attach(work, std::move(ticket));
    if (!how.async) work.wait();
    return work;
  }

  // One record covers everything: a rank that waits in a check counts as being in the call.
  template <class Issue>
  Work carry_out_verified(Issue issue) {
    const Verify verify = group_.verify_;
    FlightTicket ticket = begin();
    ticket.blocks = true;
    try {
      if (verify.nan) expect_no_nan();
      mark_written(written);
      issue({.timeout = how.timeout, .async = false}).wait();
      if (verify.results && !agreed.empty()) expect_agreement();
    } catch (...) {
      ticket.end(/*failed=*/true);
      throw;
    }
    ticket.end(/*failed=*/false);
    if (!how.async) return {};
    auto over = std::make_shared<detail::HostWork>();
    over->outputs.assign(written.begin(), written.end());
    over->complete({});
    return Work(std::move(over));
  }

  bool is_message() const {
    return facts.call == FlightCall::kSend || facts.call == FlightCall::kRecv;
  }

  // Returns every rank's `mine`, exchanged through the backend that carries the call. checking:
  // the reason for the exchange. Errors name it, because the program did not call this exchange.
  std::vector<std::int64_t> values_of_all(const char* checking, std::int64_t mine) const {
    const TensorList tensors = read.empty() ? written : read;
    const torch::Device device = tensors.empty() ? group_.device_ : tensors[0].device();
    const torch::Tensor own = torch::full({1}, mine, torch::kInt64).to(device);
    std::vector<torch::Tensor> all;
    for (int r = 0; r < group_.size(); ++r) all.push_back(torch::empty_like(own));
    try {
      group_.backend_->all_gather(all, list_of(own), {.timeout = how.timeout, .async = false})
          .wait();
    } catch (const DistError& failure) {
      throw within(failure, numbered_words_of(facts) + ", " + checking);
    }
    std::vector<std::int64_t> values;
    for (const torch::Tensor& one : all) values.push_back(one.cpu().item<std::int64_t>());
    return values;
  }

  // Returns "all_reduce in group tp (collective 12)". Messages are not numbered.
  std::string name() const {
    std::string text = check.call();
    if (facts.group != 0) text += " in group " + group_.name();
    if (!is_message()) text += concat(" (collective ", group_.collectives_.load(), ")");
    return text;
  }

  [[noreturn]] void refuse_nan(const NanFound& found) const {
    const int rank = group_.rank();
    refuse(concat(name(), ": what this rank, ", rank, ", gives holds ", found.count,
                  " NaN, the first in tensor ", found.tensor, " at element ", found.element,
                  "; nothing was sent"),
           DistError::Kind::kInvalidArgument, rank);
  }

  // Every rank learns of a NaN on any rank, so that no rank keeps waiting.
  void expect_no_nan() const {
    const NanFound found = find_nan(read);
    const std::vector<std::int64_t> counts = values_of_all("looking for NaN", found.count);
    if (found.count > 0) refuse_nan(found);
    for (int r = 0; r < group_.size(); ++r) {
      if (counts[r] == 0) continue;
      refuse(
          concat(name(), ": what rank ", r, " gives holds ", counts[r], " NaN; nothing was sent"),
          DistError::Kind::kInvalidArgument, r);
    }
  }

  void expect_agreement() const {
    const auto digest = std::bit_cast<std::int64_t>(digest_of(agreed));
    std::vector<std::uint64_t> digests;
    for (const std::int64_t one : values_of_all("comparing results", digest)) {
      digests.push_back(std::bit_cast<std::uint64_t>(one));
    }
    const std::string divergence = describe_divergence(digests);
    if (divergence.empty()) return;
    refuse(name() + ": " + divergence, DistError::Kind::kCorrupt);
  }

  ProcessGroup& group_;
};

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
  notes_->reporter = reporter_;
  if (!identity_.world_ranks.empty()) return;
  for (int rank = 0; rank < size(); ++rank) identity_.world_ranks.push_back(rank);
}

// The child of a fork has none of the backend's threads, and its peers would take it for its
// parent. So in the child the backend is released and not destroyed.
ProcessGroup::~ProcessGroup() {
  notes_->has_ended = true;
  notes_->reporter.reset();
  if (!reporter_->is_of_this_process()) static_cast<void>(backend_.release());
}

ArgumentCheck ProcessGroup::check_for(const char* call) const {
  const ArgumentCheck check(call, *devices_, rank(), size());
  if (!reporter_->is_of_this_process()) [[unlikely]] {
    refuse(concat(call, ": this process was forked from the one that is in the group"),
           DistError::Kind::kUnsupported);
  }
  return check;
}

int ProcessGroup::rank() const { return backend_->rank(); }
int ProcessGroup::size() const { return backend_->size(); }
const std::string& ProcessGroup::backend_name() const { return backend_->name(); }
bool ProcessGroup::takes(torch::DeviceType type) const { return devices_->holds(type); }

Work ProcessGroup::all_reduce(const torch::Tensor& tensor, const AllReduceOptions& options) {
  Call call(*this, "all_reduce", FlightCall::kAllReduce);
  call.check.tensor("tensor", tensor);
  return call.all_reduce(list_of(tensor), options);
}

Work ProcessGroup::all_reduce_coalesced(const std::vector<torch::Tensor>& tensors,
                                        const AllReduceOptions& options) {
  Call call(*this, "all_reduce_coalesced", FlightCall::kAllReduceCoalesced);
  call.check.list_of_one_dtype("tensors", tensors);
  call.check.written_apart("tensors", tensors);
  return call.all_reduce(tensors, options);
}

Work ProcessGroup::reduce(const torch::Tensor& tensor, const ReduceOptions& options) {
  Call call(*this, "reduce", FlightCall::kReduce);
  call.check.tensor("tensor", tensor);
  call.check.op(options.op, options.premul_factor, tensor);
  call.check.root(options.root);
  call.read = list_of(tensor);
  call.written = call.on_root(options.root, list_of(tensor));
  return call.carry_out(list_of(tensor), options, [&](CallOptions how) {
    return backend_->reduce(tensor, reduction_of(options), options.root, how);
  });
}

Work ProcessGroup::broadcast(const torch::Tensor& tensor, const RootOptions& options) {
  Call call(*this, "broadcast", FlightCall::kBroadcast);
  call.check.tensor("tensor", tensor);
  return call.broadcast(list_of(tensor), options);
}

Work ProcessGroup::broadcast_coalesced(const std::vector<torch::Tensor>& tensors,
                                       const RootOptions& options) {
  Call call(*this, "broadcast_coalesced", FlightCall::kBroadcastCoalesced);
  call.check.list("tensors", tensors);
  call.check.written_apart("tensors", tensors);
  return call.broadcast(tensors, options);
}

Work ProcessGroup::all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                              const CollectiveOptions& options) {
  Call call(*this, "all_gather", FlightCall::kAllGather);
  call.check.tensor("input", input);
  call.check.one_per_rank("outputs", outputs, "input", input);
  call.check.written_apart("outputs", outputs);
  call.check.apart_or_own("input", input, "outputs", outputs);
  call.written = outputs;
  return call.all_gather(outputs, list_of(input), options);
}

Work ProcessGroup::all_gather_coalesced(const std::vector<std::vector<torch::Tensor>>& outputs,
                                        const std::vector<torch::Tensor>& inputs,
                                        const CollectiveOptions& options) {
  Call call(*this, "all_gather_coalesced", FlightCall::kAllGatherCoalesced);
  call.check.list("inputs", inputs);
  std::vector<torch::Tensor> all;
  for (const std::vector<torch::Tensor>& of_rank : outputs) {
    call.check.as_many("outputs of a rank", of_rank, "inputs", inputs);
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  call.check.written_apart("outputs", all);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string input = concat("inputs[", i, "]");
    std::vector<torch::Tensor> like_it;
    for (const std::vector<torch::Tensor>& of_rank : outputs) like_it.push_back(of_rank[i]);
    call.check.one_per_rank("outputs", like_it, input.c_str(), inputs[i]);
    call.check.apart_or_own(input.c_str(), inputs[i], "outputs", like_it);
  }
  call.written = all;
  return call.all_gather(all, inputs, options);
}

Work ProcessGroup::all_gather_into_tensor(const torch::Tensor& output, const torch::Tensor& input,
                                          const CollectiveOptions& options) {
  Call call(*this, "all_gather_into_tensor", FlightCall::kAllGather);
  call.check.tensor("input", input);
  call.check.parts_of_all("output", output, "input", input);
  const std::vector<torch::Tensor> outputs = equal_parts(output, size());
  call.check.apart_or_own("input", input, "output's parts", outputs);
  call.written = list_of(output);
  return call.all_gather(outputs, list_of(input), options);
}

Work ProcessGroup::all_gather_into_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                                    const std::vector<torch::Tensor>& inputs,
                                                    const CollectiveOptions& options) {
  Call call(*this, "all_gather_into_tensor_coalesced", FlightCall::kAllGatherCoalesced);
  call.check.list("inputs", inputs);
  call.check.parts_of_each("outputs", outputs, "inputs", inputs);
  call.check.written_apart("outputs", outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    call.check.apart_or_own("inputs", inputs[i], "an output's parts",
                            equal_parts(outputs[i], size()));
  }
  call.written = outputs;
  return call.all_gather(equal_parts(outputs, size()), inputs, options);
}

Work ProcessGroup::reduce_scatter(const torch::Tensor& output,
                                  const std::vector<torch::Tensor>& inputs,
                                  const ReduceScatterOptions& options) {
  Call call(*this, "reduce_scatter", FlightCall::kReduceScatter);
  call.check.tensor("output", output);
  call.check.one_per_rank("inputs", inputs, "output", output);
  call.check.apart_or_own("output", output, "inputs", inputs);
  call.read = inputs;
  return call.reduce_scatter(list_of(output), inputs, options);
}

Work ProcessGroup::reduce_scatter_tensor(const torch::Tensor& output, const torch::Tensor& input,
                                         const ReduceScatterOptions& options) {
  Call call(*this, "reduce_scatter_tensor", FlightCall::kReduceScatter);
  call.check.tensor("output", output);
  call.check.parts_of_all("input", input, "output", output);
  const std::vector<torch::Tensor> inputs = equal_parts(input, size());
  call.check.apart_or_own("output", output, "input's parts", inputs);
  call.read = list_of(input);
  return call.reduce_scatter(list_of(output), inputs, options);
}

Work ProcessGroup::reduce_scatter_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                                   const std::vector<torch::Tensor>& inputs,
                                                   const ReduceScatterOptions& options) {
  Call call(*this, "reduce_scatter_tensor_coalesced", FlightCall::kReduceScatterCoalesced);
  call.check.list_of_one_dtype("outputs", outputs);
  call.check.parts_of_each("inputs", inputs, "outputs", outputs);
  call.check.written_apart("outputs", outputs);
  call.check.apart_or_own_share("outputs", outputs, "inputs", inputs);
  call.read = inputs;
  return call.reduce_scatter(outputs, equal_parts(inputs, size()), options);
}

Work ProcessGroup::all_to_all(const std::vector<torch::Tensor>& outputs,
                              const std::vector<torch::Tensor>& inputs,
                              const CollectiveOptions& options) {
  Call call(*this, "all_to_all", FlightCall::kAllToAll);
  call.check.one_dtype_per_rank("inputs", inputs, "inputs[0]", inputs);
  call.check.one_dtype_per_rank("outputs", outputs, "inputs[0]", inputs);
  call.check.written_apart("outputs", outputs);
  call.check.apart("outputs", outputs, "inputs", inputs);
  return call.all_to_all(outputs, inputs, options);
}

Work ProcessGroup::all_to_all_single(const torch::Tensor& output, const torch::Tensor& input,
                                     const AllToAllSingleOptions& options) {
  Call call(*this, "all_to_all_single", FlightCall::kAllToAll);
  call.check.tensor("output", output);
  call.check.tensor("input", input);
  call.check.same_dtype("output", output, "input", input);
  const std::vector<std::int64_t> incoming =
      call.check.splits("output_splits", options.output_splits, "output", output);
  const std::vector<std::int64_t> outgoing =
      call.check.splits("input_splits", options.input_splits, "input", input);
  call.check.apart("output", output, "input", list_of(input));
  return call.all_to_all(parts_of(output, in_elements(incoming, output)),
                         parts_of(input, in_elements(outgoing, input)), options);
}

Work ProcessGroup::gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                          const RootOptions& options) {
  Call call(*this, "gather", FlightCall::kGather);
  call.check.root(options.root);
  call.check.tensor("input", input);
  call.check.roots_list("outputs", outputs, "input", input, options.root);
  call.check.written_apart("outputs", outputs);
  call.check.apart_or_own("input", input, "outputs", outputs);
  call.read = list_of(input);
  call.written = outputs;
  return call.carry_out(call.read, options, [&](CallOptions how) {
    return backend_->gather(outputs, input, options.root, how);
  });
}

Work ProcessGroup::scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                           const RootOptions& options) {
  Call call(*this, "scatter", FlightCall::kScatter);
  call.check.root(options.root);
  call.check.tensor("output", output);
  call.check.roots_list("inputs", inputs, "output", output, options.root);
  call.check.apart_or_own("output", output, "inputs", inputs);
  call.read = inputs;
  call.written = list_of(output);
  return call.carry_out(call.written, options, [&](CallOptions how) {
    return backend_->scatter(output, inputs, options.root, how);
  });
}

Work ProcessGroup::barrier(const CollectiveOptions& options) {
  return Call(*this, "barrier", FlightCall::kBarrier).carry_out({}, options, [&](CallOptions how) {
    return backend_->barrier(how);
  });
}

void ProcessGroup::monitored_barrier(std::optional<Timeout> timeout) {
  Call(*this, "monitored_barrier", FlightCall::kMonitoredBarrier)
      .carry_out({}, CollectiveOptions{.timeout = timeout},
                 [&](CallOptions how) { return backend_->monitored_barrier(how); });
}

Work ProcessGroup::send(const torch::Tensor& tensor, int destination,
                        const PointToPointOptions& options) {
  Call call(*this, "send", FlightCall::kSend);
  call.check.tensor("tensor", tensor);
  call.check.peer("destination", destination);
  call.check.tag(options.tag);
  call.facts.peer = destination;
  call.read = list_of(tensor);
  return call.carry_out(call.read, options, [&](CallOptions how) {
    return backend_->send(tensor, destination, options.tag, how);
  });
}

Work ProcessGroup::recv(const torch::Tensor& tensor, int source,
                        const PointToPointOptions& options) {
  Call call(*this, "recv", FlightCall::kRecv);
  call.check.tensor("tensor", tensor);
  call.check.source("source", source);
  call.check.tag(options.tag);
  call.facts.peer = source;
  call.written = list_of(tensor);
  return call.carry_out(call.written, options, [&](CallOptions how) {
    return backend_->recv(tensor, source, options.tag, how);
  });
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
  std::vector<Call> calls;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const P2POp& one = operations[i];
    const bool is_send = one.kind == P2POp::Kind::kSend;
    const std::string name = concat("operations[", i, "]");
    check.tensor((name + ".tensor").c_str(), one.tensor);
    if (is_send) {
      check.peer((name + ".peer").c_str(), one.peer);
    } else {
      check.source((name + ".peer").c_str(), one.peer);
    }
    check.tag(one.tag);
    Call& call = calls.emplace_back(*this, check, is_send ? FlightCall::kSend : FlightCall::kRecv);
    call.how = options;
    call.facts.peer = one.peer;
    call.facts.tag = one.tag;
    call.describe(list_of(one.tensor));
    (is_send ? call.read : call.written) = list_of(one.tensor);
    if (verify_.nan) call.expect_no_nan_here();
  }
  if (operations.empty()) return {};

  const Turn turn = calls[0].take_turn();
  std::vector<FlightTicket> tickets;
  for (Call& call : calls) {
    mark_written(call.written);
    tickets.push_back(call.begin());
  }
  std::vector<Work> works;
  try {
    works = backend_->batch(operations, options);
  } catch (...) {
    for (FlightTicket& ticket : tickets) ticket.end(/*failed=*/true);
    throw;
  }
  for (std::size_t i = 0; i < works.size(); ++i) calls[i].attach(works[i], std::move(tickets[i]));
  return works;
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
    for (const int r : members) ranks.push_back(world_ranks()[r]);
    return value_or_throw(identity_.factory->form(ranks, options, left(deadline), std::move(seed)));
  });
}

torch::Tensor ProcessGroup::shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) {
  ArgumentCheck check = check_for("shared_empty");
  for (const std::int64_t size : sizes) {
    if (size < 0) check.refuse("size ", size, " must not be negative");
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
void ProcessGroup::report_checkpoint(std::chrono::nanoseconds waited) {
  reporter_->report_checkpoint(waited);
}

void ProcessGroup::abort(const std::string& reason) {
  if (reporter_->is_of_this_process()) backend_->abort(reason);
}

}  // namespace ddprun
