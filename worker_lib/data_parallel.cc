#include "ddprun/data_parallel.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "base/assert.h"
#include "worker_lib/checkpoint_state.h"  // tensors_of
#include "worker_lib/core/bucket_plan.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/reducer.h"
#include "worker_lib/sha256.h"
#include "worker_lib/tensor_facts.h"

namespace ddprun::detail {
namespace {

using nlohmann::json;

constexpr const char* kConstruct = "construct DistributedDataParallel";
constexpr std::uint64_t kBroadcastChunkBytes = 250 << 20;

[[noreturn]] void refuse_to_construct(const std::string& what,
                                      DistError::Kind kind = DistError::Kind::kInvalidArgument) {
  refuse(std::string(kConstruct) + ": " + what, kind);
}

// What must be the same on every rank, one line for each thing, in order.
std::vector<std::string> describe(const torch::nn::Module& module,
                                  const DataParallelOptions& options) {
  std::vector<std::string> lines;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& p = item.value();
    lines.push_back("parameter '" + item.key() + "' " + dtype_and_shape(p) + " strides " +
                    text_of(p.strides()) + " on " + c10::DeviceTypeName(p.device().type(), true) +
                    (p.requires_grad() ? " requires grad" : " requires no grad"));
  }
  for (const auto& item : module.named_buffers())
    lines.push_back("buffer '" + item.key() + "' " + dtype_and_shape(item.value()));
  lines.push_back("option 'first_bucket_bytes' " + std::to_string(options.first_bucket_bytes));
  lines.push_back("option 'bucket_bytes' " + std::to_string(options.bucket_bytes));
  lines.push_back(std::string("option 'broadcast_buffers' ") +
                  (options.broadcast_buffers ? "on" : "off"));
  return lines;
}

// All ranks exchange a digest; only if it differs, the descriptions themselves.
void expect_same_everywhere(const std::vector<std::string>& lines, ProcessGroup& group,
                            std::optional<Timeout> timeout) {
  const auto digests = group.all_gather_object(sha256_hex(json(lines).dump()), timeout);
  if (std::ranges::all_of(digests, [&](const json& digest) { return digest == digests[0]; }))
    return;
  const auto all = group.all_gather_object(lines, timeout);
  const auto line = [&](std::size_t rank, std::size_t i) {
    return i < all[rank].size() ? all[rank][i].get<std::string>() : std::string("nothing more");
  };
  for (std::size_t i = 0; i <= lines.size(); ++i)
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (line(rank, i) != line(0, i))
        refuse_to_construct("the ranks have different modules: rank 0 has " + line(0, i) +
                            " where rank " + std::to_string(rank) + " has " + line(rank, i));
  DDPRUN_ASSERT(false, "texts with different digests differ");
}

// Makes the tensors rank 0's, through one flat block of bytes.
void broadcast_block(std::span<const torch::Tensor> tensors, std::uint64_t bytes,
                     ProcessGroup& group, std::optional<Timeout> timeout) {
  const auto flat = torch::empty({static_cast<std::int64_t>(bytes)},
                                 torch::dtype(torch::kUInt8).device(group.device()));
  const auto place = [&, offset = std::uint64_t{0}](const torch::Tensor& tensor) mutable {
    const auto part = flat.narrow(0, static_cast<std::int64_t>(offset),
                                  static_cast<std::int64_t>(tensor.nbytes()));
    offset += slot_aligned(tensor.nbytes());
    return part.view(tensor.scalar_type()).view(tensor.sizes());
  };
  if (group.rank() == 0)
    for (auto to = place; const torch::Tensor& tensor : tensors) to(tensor).copy_(tensor);
  group.broadcast(flat, {.timeout = timeout});
  if (group.rank() != 0)
    for (auto from = place; torch::Tensor tensor : tensors) tensor.copy_(from(tensor));
}

void broadcast_coalesced(const std::vector<torch::Tensor>& tensors, ProcessGroup& group,
                         std::optional<Timeout> timeout) {
  torch::NoGradGuard no_grad;
  for (std::size_t first = 0; first < tensors.size();) {
    std::uint64_t bytes = 0;
    std::size_t last = first;
    while (last < tensors.size() && (bytes == 0 || bytes < kBroadcastChunkBytes))
      bytes += slot_aligned(tensors[last++].nbytes());
    broadcast_block({&tensors[first], last - first}, bytes, group, timeout);
    first = last;
  }
}

// Each parameter once, under the first of its names.
std::vector<Reducer::Parameter> trainable(const torch::nn::Module& module) {
  std::vector<Reducer::Parameter> result;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      result.push_back({item.key(), item.value()});
  return result;
}

void expect_on_device(const torch::nn::Module& module, torch::Device device) {
  const auto expect = [device](const std::string& what, const auto& tensors) {
    for (const auto& item : tensors)
      if (item.value().device() != device)
        refuse_to_construct(what + " '" + item.key() + "' is on " + item.value().device().str() +
                            ", the group works on " + device.str() + "; move the module first");
  };
  expect("parameter", module.named_parameters());
  expect("buffer", module.named_buffers());
}

void expect_supported(const torch::nn::Module* module, const DataParallelOptions& options) {
  if (!module) refuse_to_construct("there is no module");
  if (options.find_unused_parameters)
    refuse_to_construct("'find_unused_parameters' is not supported yet",
                        DistError::Kind::kUnsupported);
  if (options.static_graph)
    refuse_to_construct("'static_graph' is not supported yet", DistError::Kind::kUnsupported);
  if (options.first_bucket_bytes == 0 || options.bucket_bytes == 0)
    refuse_to_construct(
        "a bucket of 0 bytes holds nothing; the options 'first_bucket_bytes' and 'bucket_bytes' "
        "are "
        "at least 1");
}

}  // namespace

struct DataParallelCore::Impl {
  std::shared_ptr<torch::nn::Module> module;
  ProcessGroup& group;
  DataParallelOptions options;
  std::shared_ptr<Reducer> reducer = {};
  int no_sync_depth = 0;
  bool broadcast_due = true;
};

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module, ProcessGroup& group,
                                   const DataParallelOptions& options)
    : impl_(new Impl{std::move(module), group, options}) {
  with_dist_errors(kConstruct, [&] {
    expect_supported(impl_->module.get(), options);
    const torch::nn::Module& net = *impl_->module;
    expect_same_everywhere(describe(net, options), group, options.timeout);
    expect_on_device(net, group.device());
    std::vector<Reducer::Parameter> parameters = trainable(net);
    if (parameters.empty()) refuse_to_construct("no parameter of the module requires a gradient");
    std::vector<torch::Tensor> state;
    for (const auto& [name, tensor] : tensors_of(net)) state.push_back(tensor);
    broadcast_coalesced(state, group, options.timeout);
    impl_->reducer = Reducer::make(
        std::move(parameters), group,
        {.caps = {.first_bytes = options.first_bucket_bytes, .bytes = options.bucket_bytes},
         .timeout = options.timeout});
  });
}

DataParallelCore::~DataParallelCore() = default;

void DataParallelCore::before_forward() {
  Impl& i = *impl_;
  i.group.report_activity();
  const bool synchronise = at::GradMode::is_enabled() && i.no_sync_depth == 0;
  if (i.broadcast_due && i.options.broadcast_buffers && i.group.size() > 1)
    with_dist_errors("forward of DistributedDataParallel",
                     [&] { broadcast_coalesced(i.module->buffers(), i.group, i.options.timeout); });
  i.broadcast_due = synchronise;
  if (at::GradMode::is_enabled()) i.reducer->decide(synchronise);
}

void DataParallelCore::enter_no_sync() {
  if (impl_->no_sync_depth++ == 0) impl_->reducer->set_local(true);
}

void DataParallelCore::leave_no_sync() noexcept {
  if (--impl_->no_sync_depth == 0) impl_->reducer->set_local(false);
}

}  // namespace ddprun::detail
