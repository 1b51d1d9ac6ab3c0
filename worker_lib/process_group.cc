#include "ddprun/process_group.h"

#include <algorithm>
#include <cstring>

#include "base/deadline.h"
#include "ddprun/backend.h"
#include "worker_lib/argument_check.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/work_state.h"
#include "worker_lib/worker_reporter.h"

namespace ddprun {
namespace {

// Autograd does not see what a collective writes. A higher version makes a backward pass that saved
// the old value fail, instead of going wrong in silence. (Inference tensors have no version.)
void mark_written(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

void mark_written(const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& tensor : tensors) mark_written(tensor);
}

// CBOR, not JSON text: numbers keep every bit (JSON has no NaN or infinity), strings need not be
// UTF-8, binary values stay binary, and it is the shorter of the two.
torch::Tensor encode(const ArgumentCheck& check, const nlohmann::json& value) {
  if (value.is_discarded())
    check.refuse("value is a discarded JSON value (the result of a failed parse)");
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(value);
  torch::Tensor tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

nlohmann::json decode(const torch::Tensor& tensor, std::int64_t size, int from) {
  const torch::Tensor host = tensor.cpu();
  const auto* bytes = host.const_data_ptr<std::uint8_t>();
  try {
    return nlohmann::json::from_cbor(bytes, bytes + size, /*strict=*/true,
                                     /*allow_exceptions=*/true,
                                     nlohmann::json::cbor_tag_handler_t::store);
  } catch (const nlohmann::json::exception& malformed) {
    refuse("decode the value of rank " + std::to_string(from) + ": " + malformed.what(),
           DistError::Kind::kCorrupt);
  }
}

// What is left of a timeout that covers several collectives. Never nothing: a deadline that has
// passed is for the collective to report, with the ranks it missed.
Timeout left(const Deadline& deadline) {
  return std::max<Timeout>(deadline.remaining(), std::chrono::milliseconds(1));
}

}  // namespace

// As the flight record has it.
struct ProcessGroup::Call {
  FlightCall kind;
  std::uint64_t bytes = 0;
  int peer = -1;  // root, source or destination
  CallOptions options;
};

ProcessGroup::ProcessGroup(std::unique_ptr<Backend> backend, torch::Device device, Timeout timeout,
                           std::shared_ptr<WorkerReporter> reporter)
    : backend_(std::move(backend)),
      device_(device),
      timeout_(timeout),
      reporter_(reporter ? std::move(reporter) : std::make_shared<WorkerReporter>(nullptr)) {}

ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::rank() const { return backend_->rank(); }
int ProcessGroup::size() const { return backend_->size(); }
const std::string& ProcessGroup::backend_name() const { return backend_->name(); }

FlightTicket ProcessGroup::begin(const Call& call) {
  const bool is_message = call.kind == FlightCall::kSend || call.kind == FlightCall::kRecv;
  if (!is_message) ++collectives_;
  if (!reporter_->has_page()) return {};
  return {reporter_, reporter_->begin_call(call.kind, collectives_, call.bytes, call.peer)};
}

// Blocking calls end here: with the result, or with the failure as an exception.
template <class Issue>
Work ProcessGroup::carry_out(const Call& call, Issue issue) {
  FlightTicket ticket = begin(call);
  Work work;
  try {
    work = issue(call.options);
  } catch (...) {  // it was never begun: out of memory, say
    ticket.end(/*failed=*/true);
    throw;
  }
  keep_record(work, std::move(ticket));
  if (!call.options.async) work.wait();
  return work;
}

// The record of a call ends with it.
void ProcessGroup::keep_record(const Work& work, FlightTicket ticket) {
  if (work.state_) {
    work.state_->record(std::move(ticket));
  } else {
    ticket.end(/*failed=*/false);
  }
}

Work ProcessGroup::all_reduce(const torch::Tensor& tensor, const AllReduceOptions& options) {
  const ArgumentCheck check("all_reduce", device_, rank(), size());
  check.tensor("tensor", tensor);
  check.op(options.op, tensor);
  const Call call{.kind = FlightCall::kAllReduce,
                  .bytes = tensor.nbytes(),
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  mark_written(tensor);
  return carry_out(call,
                   [&](CallOptions how) { return backend_->all_reduce(tensor, options.op, how); });
}

Work ProcessGroup::reduce(const torch::Tensor& tensor, const ReduceOptions& options) {
  const ArgumentCheck check("reduce", device_, rank(), size());
  check.tensor("tensor", tensor);
  check.op(options.op, tensor);
  check.root(options.root);
  const Call call{.kind = FlightCall::kReduce,
                  .bytes = tensor.nbytes(),
                  .peer = options.root,
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  if (options.root == rank()) mark_written(tensor);
  return carry_out(call, [&](CallOptions how) {
    return backend_->reduce(tensor, options.op, options.root, how);
  });
}

Work ProcessGroup::broadcast(const torch::Tensor& tensor, const RootOptions& options) {
  const ArgumentCheck check("broadcast", device_, rank(), size());
  check.tensor("tensor", tensor);
  check.root(options.root);
  const Call call{.kind = FlightCall::kBroadcast,
                  .bytes = tensor.nbytes(),
                  .peer = options.root,
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  if (options.root != rank()) mark_written(tensor);
  return carry_out(call,
                   [&](CallOptions how) { return backend_->broadcast(tensor, options.root, how); });
}

Work ProcessGroup::all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                              const CollectiveOptions& options) {
  const ArgumentCheck check("all_gather", device_, rank(), size());
  check.tensor("input", input);
  check.one_per_rank("outputs", outputs, "input", input);
  check.written_apart("outputs", outputs);
  check.apart_or_own("input", input, "outputs", outputs);
  const Call call{.kind = FlightCall::kAllGather,
                  .bytes = input.nbytes(),
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  mark_written(outputs);
  return carry_out(call,
                   [&](CallOptions how) { return backend_->all_gather(outputs, input, how); });
}

Work ProcessGroup::reduce_scatter(const torch::Tensor& output,
                                  const std::vector<torch::Tensor>& inputs,
                                  const ReduceScatterOptions& options) {
  const ArgumentCheck check("reduce_scatter", device_, rank(), size());
  check.tensor("output", output);
  check.one_per_rank("inputs", inputs, "output", output);
  check.apart("output", output, "inputs", inputs);
  check.op(options.op, output);
  const Call call{.kind = FlightCall::kReduceScatter,
                  .bytes = output.nbytes(),
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  mark_written(output);
  return carry_out(call, [&](CallOptions how) {
    return backend_->reduce_scatter(output, inputs, options.op, how);
  });
}

Work ProcessGroup::gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                          const RootOptions& options) {
  const ArgumentCheck check("gather", device_, rank(), size());
  check.root(options.root);
  check.tensor("input", input);
  check.roots_list("outputs", outputs, "input", input, options.root);
  check.written_apart("outputs", outputs);
  check.apart_or_own("input", input, "outputs", outputs);
  const Call call{.kind = FlightCall::kGather,
                  .bytes = input.nbytes(),
                  .peer = options.root,
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  mark_written(outputs);
  return carry_out(
      call, [&](CallOptions how) { return backend_->gather(outputs, input, options.root, how); });
}

Work ProcessGroup::scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                           const RootOptions& options) {
  const ArgumentCheck check("scatter", device_, rank(), size());
  check.root(options.root);
  check.tensor("output", output);
  check.roots_list("inputs", inputs, "output", output, options.root);
  check.apart_or_own("output", output, "inputs", inputs);
  const Call call{.kind = FlightCall::kScatter,
                  .bytes = output.nbytes(),
                  .peer = options.root,
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  mark_written(output);
  return carry_out(
      call, [&](CallOptions how) { return backend_->scatter(output, inputs, options.root, how); });
}

Work ProcessGroup::barrier(const CollectiveOptions& options) {
  const ArgumentCheck check("barrier", device_, rank(), size());
  const Call call{.kind = FlightCall::kBarrier,
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  return carry_out(call, [&](CallOptions how) { return backend_->barrier(how); });
}

Work ProcessGroup::send(const torch::Tensor& tensor, int destination,
                        const PointToPointOptions& options) {
  const ArgumentCheck check("send", device_, rank(), size());
  check.tensor("tensor", tensor);
  check.peer("destination", destination);
  check.tag(options.tag);
  const Call call{.kind = FlightCall::kSend,
                  .bytes = tensor.nbytes(),
                  .peer = destination,
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  return carry_out(
      call, [&](CallOptions how) { return backend_->send(tensor, destination, options.tag, how); });
}

Work ProcessGroup::recv(const torch::Tensor& tensor, int source,
                        const PointToPointOptions& options) {
  const ArgumentCheck check("recv", device_, rank(), size());
  check.tensor("tensor", tensor);
  check.source(source);
  check.tag(options.tag);
  const Call call{.kind = FlightCall::kRecv,
                  .bytes = tensor.nbytes(),
                  .peer = source,
                  .options = {check.timeout(options.timeout, timeout_), options.async}};
  mark_written(tensor);
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
  const ArgumentCheck check("batch_isend_irecv", device_, rank(), size());
  const CallOptions options{check.timeout(timeout, timeout_), /*async=*/true};
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const P2POp& one = operations[i];
    const std::string name = "operations[" + std::to_string(i) + "]";
    check.tensor((name + ".tensor").c_str(), one.tensor);
    if (one.kind == P2POp::Kind::kSend) {
      check.peer((name + ".peer").c_str(), one.peer);
    } else {
      check.source(one.peer);
    }
    check.tag(one.tag);
  }
  if (operations.empty()) return {};
  std::vector<FlightTicket> tickets;
  for (const P2POp& one : operations) {
    const bool is_send = one.kind == P2POp::Kind::kSend;
    if (!is_send) mark_written(one.tensor);
    tickets.push_back(begin({.kind = is_send ? FlightCall::kSend : FlightCall::kRecv,
                             .bytes = one.tensor.nbytes(),
                             .peer = one.peer,
                             .options = options}));
  }
  std::vector<Work> works;
  try {
    works = backend_->batch(operations, options);
  } catch (...) {
    for (FlightTicket& ticket : tickets) ticket.end(/*failed=*/true);
    throw;
  }
  for (std::size_t i = 0; i < works.size(); ++i) keep_record(works[i], std::move(tickets[i]));
  return works;
}

// Sizes first, then the bytes, padded to the largest: collectives move equal shares.
std::vector<nlohmann::json> ProcessGroup::all_gather_object(const nlohmann::json& value,
                                                            std::optional<Timeout> timeout) {
  const ArgumentCheck check("all_gather_object", device_, rank(), size());
  const Deadline deadline(check.timeout(timeout, timeout_));
  return with_dist_errors("all_gather_object", [&] {
    const torch::Tensor bytes = encode(check, value);
    const torch::Tensor sizes = torch::empty({size()}, torch::kInt64).to(device_);
    all_gather(sizes.chunk(size()), torch::full({1}, bytes.numel(), torch::kInt64).to(device_),
               {.timeout = left(deadline)});
    const torch::Tensor sizes_here = sizes.cpu();
    const std::int64_t* size_of = sizes_here.const_data_ptr<std::int64_t>();
    const std::int64_t largest = *std::max_element(size_of, size_of + size());

    const torch::Tensor padded = torch::zeros({largest}, torch::kUInt8);
    padded.narrow(0, 0, bytes.numel()).copy_(bytes);
    const torch::Tensor all = torch::empty({size(), largest}, padded.options().device(device_));
    all_gather(all.unbind(), padded.to(device_), {.timeout = left(deadline)});

    std::vector<nlohmann::json> values;
    for (int r = 0; r < size(); ++r) values.push_back(decode(all[r], size_of[r], r));
    return values;
  });
}

nlohmann::json ProcessGroup::broadcast_object(const nlohmann::json& value, int root,
                                              std::optional<Timeout> timeout) {
  const ArgumentCheck check("broadcast_object", device_, rank(), size());
  check.root(root);
  const Deadline deadline(check.timeout(timeout, timeout_));
  return with_dist_errors("broadcast_object", [&] {
    const bool is_root = root == rank();
    const torch::Tensor encoded = is_root ? encode(check, value) : torch::Tensor();
    const torch::Tensor size =
        torch::full({1}, is_root ? encoded.numel() : 0, torch::kInt64).to(device_);
    broadcast(size, {.root = root, .timeout = left(deadline)});
    const auto count = size.item<std::int64_t>();

    const torch::Tensor bytes =
        (is_root ? encoded : torch::empty({count}, torch::kUInt8)).to(device_);
    broadcast(bytes, {.root = root, .timeout = left(deadline)});
    return decode(bytes, count, root);
  });
}

LongWait::LongWait(ProcessGroup& group) : reporter_(group.reporter_) {
  reporter_->begin_long_wait();
}
LongWait::~LongWait() { reporter_->end_long_wait(); }

void ProcessGroup::report_activity() { reporter_->report_activity(); }

void ProcessGroup::abort(const std::string& reason) { backend_->abort(reason); }

}  // namespace ddprun
