#include "worker_lib/nccl/backend_nccl.h"

#include <utility>

#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/nccl/reduction.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

constexpr NcclType kByte = NcclType::kUint8;

// Memory of a tensor that a call reads or writes, without the tensor.
template <class Pointer>
struct NcclPart {
  Pointer data = nullptr;
  std::size_t bytes = 0;
  std::size_t elements = 0;
};
using WrittenPart = NcclPart<void*>;
using ReadPart = NcclPart<const void*>;

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

// Returns the tensors at `place` of each rank, from a list with `each` tensors for each rank.
std::vector<torch::Tensor> of_each_rank(TensorList list, std::size_t place, std::size_t each) {
  std::vector<torch::Tensor> tensors;
  for (std::size_t at = place; at < list.size(); at += each) tensors.push_back(list[at]);
  return tensors;
}

void keep(NcclIssue& issue, TensorList tensors) {
  issue.keep.insert(issue.keep.end(), tensors.begin(), tensors.end());
}

// Returns whether the tensors are consecutive in memory, as the slices of one tensor are.
bool are_consecutive(const std::vector<torch::Tensor>& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const auto* end =
        static_cast<const char*>(tensors[i - 1].const_data_ptr()) + tensors[i].nbytes();
    if (tensors[i].const_data_ptr() != end) return false;
  }
  return true;
}

// Returns a block with room for all of them, on the caller's stream.
Result<torch::Tensor> block_for(const std::vector<torch::Tensor>& tensors) {
  try {
    return torch::empty({static_cast<std::int64_t>(tensors.size() * tensors[0].nbytes())},
                        tensors[0].options().dtype(torch::kUInt8));
  } catch (...) {
    return error_in_flight("make room for the tensors of all ranks");
  }
}

std::vector<std::size_t> bytes_of(TensorList tensors) {
  std::vector<std::size_t> bytes;
  for (const torch::Tensor& one : tensors) bytes.push_back(one.nbytes());
  return bytes;
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

class NcclBackend final : public Backend {
 public:
  NcclBackend(const NcclApi& api, std::shared_ptr<Store> store, const NcclBackendOptions& options,
              std::shared_ptr<CpuGroup> peers, std::shared_ptr<NcclSeed> seed)
      : engine_(api, std::move(store), options, std::move(peers), std::move(seed)) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return engine_.options().rank; }
  int size() const override { return engine_.options().world_size; }
  bool takes(torch::DeviceType type) const override {
    return type == engine_.options().device.type();
  }

  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override {
    const Result<NcclReduction> as = nccl_reduction("all_reduce", how, tensors[0].scalar_type());
    if (!as) return detail::work_of(as.error());
    NcclIssue reduce = collective("all_reduce", CallKind::kAllReduce, tensors, -1, how.op);
    reduce.launch = [this, as = *as, parts = written(tensors)](const NcclLaneView& lane) {
      return with_op(as, lane, [&](NcclOp op) {
        return grouped(parts.size(), [&](std::size_t i) {
          return engine_.api().all_reduce(parts[i].data, parts[i].data,
                                          parts[i].elements * as.values, as.type, op, lane.comm,
                                          lane.stream);
        });
      });
    };
    return issue(std::move(reduce), call);
  }

  Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) override {
    const Result<NcclReduction> as = nccl_reduction("reduce", how, tensor.scalar_type());
    if (!as) return detail::work_of(as.error());
    // Only the root's tensor is written, although all ranks pass theirs as the receive buffer.
    void* data = tensor.mutable_data_ptr();
    NcclIssue reduce = collective("reduce", CallKind::kReduce, list_of(tensor), root, how.op);
    reduce.launch = [=, this, count = count_of(tensor), as = *as](const NcclLaneView& lane) {
      return with_op(as, lane, [&](NcclOp op) {
        return engine_.api().reduce(data, data, count * as.values, as.type, op, root, lane.comm,
                                    lane.stream);
      });
    };
    return issue(std::move(reduce), call);
  }

  Work broadcast(TensorList tensors, int root, CallOptions call) override {
    NcclIssue broadcast = collective("broadcast", CallKind::kBroadcast, tensors, root);
    broadcast.launch = [this, root, parts = written(tensors)](const NcclLaneView& lane) {
      return grouped(parts.size(), [&](std::size_t i) {
        return engine_.api().broadcast(parts[i].data, parts[i].data, parts[i].bytes, kByte, root,
                                       lane.comm, lane.stream);
      });
    };
    return issue(std::move(broadcast), call);
  }

  // NCCL needs one block. Consecutive outputs are one; others are copied from a temporary block.
  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override {
    NcclIssue gather = collective("all_gather", CallKind::kAllGather, inputs);
    keep(gather, outputs);
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::vector<torch::Tensor> ours = of_each_rank(outputs, i, inputs.size());
      const bool is_direct = are_consecutive(ours);
      const Result<torch::Tensor> block = is_direct ? ours[0] : block_for(ours);
      if (!block) return fail(block.error());
      gather.keep.push_back(*block);
      blocks.push_back(block->mutable_data_ptr());
      const std::size_t bytes = inputs[i].nbytes();
      for (std::size_t r = 0; !is_direct && r < ours.size(); ++r) {
        const char* from = static_cast<const char*>(blocks.back()) + r * bytes;
        gather.copies_behind.push_back({ours[r].mutable_data_ptr(), from, bytes});
      }
    }
    gather.launch = [this, blocks, parts = read(inputs)](const NcclLaneView& lane) {
      return grouped(parts.size(), [&](std::size_t i) {
        return engine_.api().all_gather(parts[i].data, blocks[i], parts[i].bytes, kByte, lane.comm,
                                        lane.stream);
      });
    };
    return issue(std::move(gather), call);
  }

  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override {
    const Result<NcclReduction> as =
        nccl_reduction("reduce_scatter", how, outputs[0].scalar_type());
    if (!as) return detail::work_of(as.error());
    NcclIssue scatter = collective("reduce_scatter", CallKind::kReduceScatter, outputs, -1, how.op);
    keep(scatter, inputs);
    std::vector<const void*> blocks;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::vector<torch::Tensor> ours = of_each_rank(inputs, i, outputs.size());
      const bool is_direct = are_consecutive(ours);
      const Result<torch::Tensor> block = is_direct ? ours[0] : block_for(ours);
      if (!block) return fail(block.error());
      scatter.keep.push_back(*block);
      blocks.push_back(block->const_data_ptr());
      const std::size_t bytes = outputs[i].nbytes();
      for (std::size_t r = 0; !is_direct && r < ours.size(); ++r) {
        char* to = static_cast<char*>(block->mutable_data_ptr()) + r * bytes;
        scatter.copies_ahead.push_back({to, ours[r].const_data_ptr(), bytes});
      }
    }
    scatter.launch = [this, as = *as, blocks, parts = written(outputs)](const NcclLaneView& lane) {
      return with_op(as, lane, [&](NcclOp op) {
        return grouped(parts.size(), [&](std::size_t i) {
          return engine_.api().reduce_scatter(blocks[i], parts[i].data,
                                              parts[i].elements * as.values, as.type, op, lane.comm,
                                              lane.stream);
        });
      });
    };
    return issue(std::move(scatter), call);
  }

  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override {
    std::vector<WrittenPart> to = written(outputs);
    std::vector<ReadPart> from(size());
    from[root] = read(list_of(input))[0];
    NcclIssue gather = collective("gather", CallKind::kGather, list_of(input), root);
    keep(gather, outputs);
    return issue_messages(std::move(gather), std::move(to), std::move(from), call);
  }

  Work scatter(const torch::Tensor& output, TensorList inputs, int root,
               CallOptions call) override {
    std::vector<WrittenPart> to(size());
    to[root] = written(list_of(output))[0];
    std::vector<ReadPart> from = read(inputs);
    NcclIssue scatter = collective("scatter", CallKind::kScatter, list_of(output), root);
    keep(scatter, inputs);
    return issue_messages(std::move(scatter), std::move(to), std::move(from), call);
  }

  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override {
    NcclIssue exchange = issue_of("all_to_all", inputs);
    // Each pair of ranks has its own size, on which the two must agree.
    exchange.header = CallHeader{.kind = CallKind::kAllToAll, .type = content_of(inputs).type};
    exchange.pairs = balance_of(rank(), bytes_of(inputs), bytes_of(outputs));
    keep(exchange, outputs);
    return issue_messages(std::move(exchange), written(outputs), read(inputs), call);
  }

  // Reduces a byte. Its Work blocks the host until that has ended.
  Work barrier(CallOptions call) override {
    try {
      if (!token_.defined()) {
        const torch::Device device = engine_.options().device;
        token_ = torch::zeros({1}, torch::TensorOptions().dtype(torch::kUInt8).device(device));
      }
    } catch (...) {
      return fail(error_in_flight("make the tensor of barriers"));
    }
    NcclIssue barrier{.device = device_of(token_),
                      .what = {.name = "barrier"},
                      .header = CallHeader{.kind = CallKind::kBarrier},
                      .keep = {token_},
                      .host_wait = NcclWork::HostWait::kAlways};
    barrier.launch = [this](const NcclLaneView& lane) {
      void* data = token_.mutable_data_ptr();
      return engine_.api().all_reduce(data, data, 1, kByte, NcclOp::kMax, lane.comm, lane.stream);
    };
    return issue(std::move(barrier), call);
  }

  // Uses the group of peers; does not wait for the device.
  Work monitored_barrier(CallOptions call) override {
    return detail::work_of(engine_.monitored_barrier(call));
  }

  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override {
    if (tag != 0) return detail::work_of(no_tags("send", tag));
    NcclIssue message = issue_of("send", list_of(tensor), destination);
    message.messages = {send_of(tensor, destination)};
    return issue(std::move(message), call);
  }

  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override {
    if (tag != 0) return detail::work_of(no_tags("recv", tag));
    if (source == kAnySource) return detail::work_of(no_any_source("recv"));
    NcclIssue message = issue_of("recv", list_of(tensor), source);
    message.what.source = source;
    message.messages = {recv_of(tensor, source)};
    return issue(std::move(message), call);
  }

  // One group, so that NCCL starts them together.
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override {
    const auto all = [&](const Work& work) { return std::vector<Work>(operations.size(), work); };
    NcclIssue batch{.device = device_of(operations[0].tensor),
                    .what = {.name = "batch_isend_irecv"}};
    for (const P2POp& one : operations) {
      if (one.tag != 0) return all(detail::work_of(no_tags("batch_isend_irecv", one.tag)));
      if (one.peer == kAnySource) return all(detail::work_of(no_any_source("batch_isend_irecv")));
      if (device_of(one.tensor) != batch.device) {
        return all(detail::work_of(
            invalid_argument("its tensors are on several devices").within("batch_isend_irecv")));
      }
      batch.keep.push_back(one.tensor);
      batch.what.elements += one.tensor.numel();
      batch.what.type = one.tensor.scalar_type();
      const bool is_send = one.kind == P2POp::Kind::kSend;
      batch.messages.push_back(is_send ? send_of(one.tensor, one.peer)
                                       : recv_of(one.tensor, one.peer));
    }
    const Result<std::shared_ptr<NcclWork>> work = engine_.launch(std::move(batch), call);
    if (!work) return all(detail::work_of(work.error()));
    std::vector<Work> parts;
    for (const P2POp& one : operations) {
      const int source = one.kind == P2POp::Kind::kRecv ? one.peer : -1;
      parts.push_back(Work(std::make_shared<NcclBatchPart>(*work, source)));
    }
    return parts;
  }

  Work split_off(int color, int key, std::shared_ptr<void>* seed, CallOptions call) override {
    Result<std::shared_ptr<NcclSeed>> part = engine_.split_off(color, key, call);
    if (!part) return detail::work_of(part.error());
    *seed = std::move(*part);
    return {};
  }

  // Allocates NCCL memory on the group's device; undefined if there is none.
  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) override {
    const std::int64_t elements = c10::multiply_integers(sizes);
    std::shared_ptr<void> memory = engine_.memory().allocate(elements * c10::elementSize(dtype));
    if (!memory) return {};
    void* data = memory.get();
    return torch::from_blob(
        data, sizes, [memory = std::move(memory)](void*) mutable { memory.reset(); },
        torch::TensorOptions(dtype).device(engine_.options().device));
  }

  void abort(const std::string& reason) override {
    if (engine_.peers()) engine_.peers()->abort(reason);
    engine_.end(Error{.kind = ErrorKind::kStopped, .doing = "nccl group", .cause = reason});
  }

 private:
  int device_of(const torch::Tensor& tensor) const {
    const torch::Device device = tensor.is_cuda() ? tensor.device() : engine_.options().device;
    return device.has_index() ? device.index() : 0;
  }

  // Returns a call without its `launch`. It keeps the tensors.
  NcclIssue issue_of(const char* name, TensorList tensors, int peer = -1) const {
    NcclIssue issue{.device = device_of(tensors[0]),
                    .what = {.name = name, .type = tensors[0].scalar_type(), .peer = peer},
                    .keep = {tensors.begin(), tensors.end()}};
    for (const torch::Tensor& one : tensors) issue.what.elements += one.numel();
    return issue;
  }

  // The header has the facts in which the ranks must agree, as in the cpu engine. Data that is only
  // moved counts as bytes.
  NcclIssue collective(const char* name, CallKind kind, TensorList tensors, int root = -1,
                       std::optional<ReduceOp> op = {}) const {
    NcclIssue issue = issue_of(name, tensors, root);
    issue.what.op = op;
    const ContentFacts content = content_of(tensors);
    issue.header = header_of(tensors, [](const torch::Tensor& one) { return one.nbytes(); });
    issue.header->set_moved_type(content.type, content.types);
    issue.header->root = root;
    issue.header->kind = kind;
    issue.header->op = op.value_or(ReduceOp::kSum);
    return issue;
  }

  Work issue(NcclIssue issue, CallOptions call) {
    Result<std::shared_ptr<NcclWork>> work = engine_.launch(std::move(issue), call);
    if (!work) return detail::work_of(work.error());
    return Work(std::move(*work));
  }

  // For a call that this rank cannot begin, but that the others may have begun.
  Work fail(const Error& failure) {
    engine_.end(failure);
    return detail::work_of(failure);
  }

  // Runs calls(op), with an operation made for them if NCCL has none. It is destroyed when the
  // next one is made, not after the calls, because the communicator may then be in progress. The
  // last one is destroyed with the communicator.
  template <class Calls>
  NcclResult with_op(const NcclReduction& as, const NcclLaneView& lane, Calls calls) const {
    if (!as.is_premul) return calls(as.op);
    NcclResult result = NcclResult::kSuccess;
    const NcclApi& api = engine_.api();
    if (lane.premul_sum)
      result = api.red_op_destroy(*std::exchange(lane.premul_sum, {}), lane.comm);
    NcclOp op{};
    if (result == NcclResult::kSuccess) {
      result = api.red_op_create_premul_sum(&op, as.factor.data(), as.type, lane.comm);
    }
    // Both calls complete at once. "In progress" would be attributed to the calls, which were not
    // made.
    if (result == NcclResult::kInProgress) return NcclResult::kInternalError;
    if (result != NcclResult::kSuccess) return result;
    lane.premul_sum = op;
    return calls(op);
  }

  // Sends from[r] to rank r and receives to[r] from it, if there are any bytes, because NCCL has no
  // such collectives. The rank's own part is copied.
  Work issue_messages(NcclIssue issue, std::vector<WrittenPart> to, std::vector<ReadPart> from,
                      CallOptions call) {
    const std::size_t ranks = size();
    const std::size_t own = rank();
    to.resize(ranks);
    from.resize(ranks);
    if (to[own].bytes > 0 && to[own].data != from[own].data) {
      issue.copies_ahead.push_back({to[own].data, from[own].data, to[own].bytes});
    }
    std::vector<std::function<NcclResult(const NcclLaneView&)>> messages;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const std::size_t at = r;
      if (from[at].bytes > 0) {
        messages.push_back([this, r, part = from[at]](const NcclLaneView& lane) {
          return engine_.api().send(part.data, part.bytes, kByte, r, lane.comm, lane.stream);
        });
      }
      if (to[at].bytes > 0) {
        messages.push_back([this, r, part = to[at]](const NcclLaneView& lane) {
          return engine_.api().recv(part.data, part.bytes, kByte, r, lane.comm, lane.stream);
        });
      }
    }
    issue.launch = [this, messages = std::move(messages)](const NcclLaneView& lane) {
      return grouped(messages.size(), [&](std::size_t i) { return messages[i](lane); });
    };
    return this->issue(std::move(issue), call);
  }

  NcclIssue::Message send_of(const torch::Tensor& tensor, int peer) const {
    return {.peer = peer,
            .is_send = true,
            .bytes = tensor.nbytes(),
            .pass = [&api = engine_.api(), from = tensor.const_data_ptr(), bytes = tensor.nbytes()](
                        NcclComm comm, int to, CudaStream stream) {
              return api.send(from, bytes, kByte, to, comm, stream);
            }};
  }

  NcclIssue::Message recv_of(const torch::Tensor& tensor, int peer) const {
    return {.peer = peer,
            .is_send = false,
            .bytes = tensor.nbytes(),
            .pass = [&api = engine_.api(), to = tensor.mutable_data_ptr(), bytes = tensor.nbytes()](
                        NcclComm comm, int from, CudaStream stream) {
              return api.recv(to, bytes, kByte, from, comm, stream);
            }};
  }

  NcclResult grouped(std::size_t count, const std::function<NcclResult(std::size_t)>& call) const {
    return nccl_group(engine_.api(), count, call);
  }

  const std::string name_ = "nccl";
  NcclEngine engine_;
  torch::Tensor token_;  // the tensor that barriers reduce
};

}  // namespace

int BackendFactory::device_count() const {
  int count = 0;
  return api_.get_device_count(&count) == CudaResult::kSuccess ? count : 0;
}

Result<void> BackendFactory::select_device(int index) const {
  const CudaResult selected = api_.set_device(index);
  if (selected == CudaResult::kSuccess) return {};
  return cuda_error(api_, "select device cuda:" + std::to_string(index), selected);
}

std::unique_ptr<Backend> BackendFactory::make(std::shared_ptr<Store> store,
                                              const NcclBackendOptions& options,
                                              std::shared_ptr<CpuGroup> peers,
                                              std::shared_ptr<void> seed) const {
  return std::make_unique<NcclBackend>(api_, std::move(store), options, std::move(peers),
                                       std::static_pointer_cast<NcclSeed>(seed));
}

}  // namespace ddprun
