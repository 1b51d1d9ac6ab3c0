#include "worker_lib/nccl/backend_nccl.h"

#include <utility>

#include "base/concat.h"
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

WrittenPart written(const torch::Tensor& one) {
  return {one.mutable_data_ptr(), one.nbytes(), count_of(one)};
}

ReadPart read(const torch::Tensor& one) {
  return {one.const_data_ptr(), one.nbytes(), count_of(one)};
}

std::vector<WrittenPart> written(TensorList tensors) {
  std::vector<WrittenPart> parts;
  for (const torch::Tensor& one : tensors) parts.push_back(written(one));
  return parts;
}

std::vector<ReadPart> read(TensorList tensors) {
  std::vector<ReadPart> parts;
  for (const torch::Tensor& one : tensors) parts.push_back(read(one));
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

// NCCL needs the tensors of all ranks as one block.
struct Block {
  torch::Tensor memory;
  // The ranks' tensors, if the block is not their own memory but a temporary one.
  std::vector<torch::Tensor> apart = {};
};

// Returns the blocks of a list with `each` tensors for each rank, one for each place. New ones are
// allocated on the caller's stream. The issue keeps all tensors.
Result<std::vector<Block>> blocks_of(NcclIssue& issue, TensorList list, std::size_t each) {
  keep(issue, list);
  std::vector<Block> blocks;
  for (std::size_t place = 0; place < each; ++place) {
    std::vector<torch::Tensor> tensors = of_each_rank(list, place, each);
    if (are_consecutive(tensors)) {
      blocks.push_back({.memory = tensors[0]});
      continue;
    }
    try {
      const std::size_t bytes = tensors.size() * tensors[0].nbytes();
      blocks.push_back({torch::empty({static_cast<std::int64_t>(bytes)},
                                     tensors[0].options().dtype(torch::kUInt8)),
                        std::move(tensors)});
    } catch (...) {
      return error_in_flight("make room for the tensors of all ranks");
    }
    issue.keep.push_back(blocks.back().memory);
  }
  return blocks;
}

std::vector<std::size_t> bytes_of(TensorList tensors) {
  std::vector<std::size_t> bytes;
  for (const torch::Tensor& one : tensors) bytes.push_back(one.nbytes());
  return bytes;
}

// Refuses a message that NCCL cannot carry.
Result<void> check_message(const char* call, int peer, int tag) {
  const auto unsupported = [call](std::string cause) {
    return Error{.kind = ErrorKind::kUnsupported, .doing = call, .cause = std::move(cause)};
  };
  if (tag != 0)
    return unsupported(concat("the nccl backend has no tags: tag must be 0, but is ", tag));
  if (peer == kAnySource)
    return unsupported("the nccl backend cannot receive from any source; name the rank");
  return {};
}

class NcclBackend final : public Backend {
 public:
  NcclBackend(const NcclApi& api, std::shared_ptr<Store> store, const NcclBackendOptions& options,
              std::shared_ptr<CpuGroup> peers, std::shared_ptr<NcclCommunicator> seed)
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
    NcclIssue reduce = collective(CallKind::kAllReduce, tensors, -1, how.op);
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
    NcclIssue reduce = collective(CallKind::kReduce, list_of(tensor), root, how.op);
    // Only the root's tensor is written, although all ranks pass theirs as the receive buffer.
    reduce.launch = [this, root, as = *as, part = written(tensor)](const NcclLaneView& lane) {
      return with_op(as, lane, [&](NcclOp op) {
        return engine_.api().reduce(part.data, part.data, part.elements * as.values, as.type, op,
                                    root, lane.comm, lane.stream);
      });
    };
    return issue(std::move(reduce), call);
  }

  Work broadcast(TensorList tensors, int root, CallOptions call) override {
    NcclIssue broadcast = collective(CallKind::kBroadcast, tensors, root);
    broadcast.launch = [this, root, parts = written(tensors)](const NcclLaneView& lane) {
      return grouped(parts.size(), [&](std::size_t i) {
        return engine_.api().broadcast(parts[i].data, parts[i].data, parts[i].bytes, kByte, root,
                                       lane.comm, lane.stream);
      });
    };
    return issue(std::move(broadcast), call);
  }

  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override {
    NcclIssue gather = collective(CallKind::kAllGather, inputs);
    const Result<std::vector<Block>> blocks = blocks_of(gather, outputs, inputs.size());
    if (!blocks) return fail(blocks.error());
    std::vector<void*> to;
    for (const auto& [memory, apart] : *blocks) {
      auto* at = static_cast<char*>(memory.mutable_data_ptr());
      to.push_back(at);
      for (const torch::Tensor& one : apart) {
        gather.copies_behind.push_back({one.mutable_data_ptr(), at, one.nbytes()});
        at += one.nbytes();
      }
    }
    gather.launch = [this, to, from = read(inputs)](const NcclLaneView& lane) {
      return grouped(from.size(), [&](std::size_t i) {
        return engine_.api().all_gather(from[i].data, to[i], from[i].bytes, kByte, lane.comm,
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
    NcclIssue scatter = collective(CallKind::kReduceScatter, outputs, -1, how.op);
    const Result<std::vector<Block>> blocks = blocks_of(scatter, inputs, outputs.size());
    if (!blocks) return fail(blocks.error());
    std::vector<const void*> from;
    for (const auto& [memory, apart] : *blocks) {
      from.push_back(memory.const_data_ptr());
      std::size_t offset = 0;
      for (const torch::Tensor& one : apart) {
        char* at = static_cast<char*>(memory.mutable_data_ptr()) + offset;
        scatter.copies_ahead.push_back({at, one.const_data_ptr(), one.nbytes()});
        offset += one.nbytes();
      }
    }
    scatter.launch = [this, as = *as, from, to = written(outputs)](const NcclLaneView& lane) {
      return with_op(as, lane, [&](NcclOp op) {
        return grouped(to.size(), [&](std::size_t i) {
          return engine_.api().reduce_scatter(from[i], to[i].data, to[i].elements * as.values,
                                              as.type, op, lane.comm, lane.stream);
        });
      });
    };
    return issue(std::move(scatter), call);
  }

  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override {
    std::vector<WrittenPart> to = written(outputs);
    std::vector<ReadPart> from(size());
    from[root] = read(input);
    NcclIssue gather = collective(CallKind::kGather, list_of(input), root);
    keep(gather, outputs);
    return issue_messages(std::move(gather), std::move(to), std::move(from), call);
  }

  Work scatter(const torch::Tensor& output, TensorList inputs, int root,
               CallOptions call) override {
    std::vector<WrittenPart> to(size());
    to[root] = written(output);
    std::vector<ReadPart> from = read(inputs);
    NcclIssue scatter = collective(CallKind::kScatter, list_of(output), root);
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
    const Result<void> good = check_message("send", destination, tag);
    if (!good) return detail::work_of(good);
    NcclIssue message = issue_of("send", list_of(tensor), destination);
    message.messages = {send_of(read(tensor), destination)};
    return issue(std::move(message), call);
  }

  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override {
    const Result<void> good = check_message("recv", source, tag);
    if (!good) return detail::work_of(good);
    NcclIssue message = issue_of("recv", list_of(tensor), source);
    message.what.source = source;
    message.messages = {recv_of(written(tensor), source)};
    return issue(std::move(message), call);
  }

  // One group, so that NCCL starts them together.
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override {
    const auto all = [&](const Work& work) { return std::vector<Work>(operations.size(), work); };
    NcclIssue batch{.device = device_of(operations[0].tensor),
                    .what = {.name = "batch_isend_irecv"}};
    for (const P2POp& one : operations) {
      Result<void> good = check_message(batch.what.name, one.peer, one.tag);
      if (good && device_of(one.tensor) != batch.device) {
        good = invalid_argument("its tensors are on several devices").within(batch.what.name);
      }
      if (!good) return all(detail::work_of(good));
      batch.keep.push_back(one.tensor);
      batch.what.elements += one.tensor.numel();
      batch.what.type = one.tensor.scalar_type();
      const bool is_send = one.kind == P2POp::Kind::kSend;
      batch.messages.push_back(is_send ? send_of(read(one.tensor), one.peer)
                                       : recv_of(written(one.tensor), one.peer));
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
    Result<std::shared_ptr<NcclCommunicator>> part = engine_.split_off(color, key, call);
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
  NcclIssue collective(CallKind kind, TensorList tensors, int root = -1,
                       std::optional<ReduceOp> op = {}) const {
    NcclIssue issue = issue_of(to_text(kind), tensors, root);
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
    std::vector<NcclIssue::Message> messages;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      if (from[r].bytes > 0) messages.push_back(send_of(from[r], r));
      if (to[r].bytes > 0) messages.push_back(recv_of(to[r], r));
    }
    issue.launch = [this, messages = std::move(messages)](const NcclLaneView& lane) {
      return grouped(messages.size(), [&](std::size_t i) {
        return messages[i].pass(lane.comm, messages[i].peer, lane.stream);
      });
    };
    return this->issue(std::move(issue), call);
  }

  NcclIssue::Message send_of(const ReadPart& part, int peer) const {
    return {.peer = peer,
            .is_send = true,
            .bytes = part.bytes,
            .pass = [&api = engine_.api(), part](NcclComm comm, int to, CudaStream stream) {
              return api.send(part.data, part.bytes, kByte, to, comm, stream);
            }};
  }

  NcclIssue::Message recv_of(const WrittenPart& part, int peer) const {
    return {.peer = peer,
            .is_send = false,
            .bytes = part.bytes,
            .pass = [&api = engine_.api(), part](NcclComm comm, int from, CudaStream stream) {
              return api.recv(part.data, part.bytes, kByte, from, comm, stream);
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
  return cuda_error(api_, concat("select device cuda:", index), selected);
}

std::unique_ptr<Backend> BackendFactory::make(std::shared_ptr<Store> store,
                                              const NcclBackendOptions& options,
                                              std::shared_ptr<CpuGroup> peers,
                                              std::shared_ptr<void> seed) const {
  return std::make_unique<NcclBackend>(api_, std::move(store), options, std::move(peers),
                                       std::static_pointer_cast<NcclCommunicator>(seed));
}

}  // namespace ddprun
