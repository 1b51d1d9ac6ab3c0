#include "worker_lib/cpu_backend/device_staging.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "worker_lib/cpu_backend/core/piece_plan.h"
#include "worker_lib/util/nccl_pause.h"

namespace ddprun {
namespace {

// Size of one piece. Long enough that starting a copy and a collective costs little. Short
// enough that the first and last piece, which overlap with nothing, cost little too.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

c10::impl::VirtualGuardImpl streams_of(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

// Autograd does not record collectives, and ProcessGroup has marked the written tensors.
using WithoutAutograd = at::AutoDispatchBelowADInplaceOrView;

torch::Tensor room_on_host(const torch::Tensor& tensor) {
  const auto options =
      torch::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.device().is_cuda());
  return torch::empty({tensor.numel()}, options);
}

void copy_all(const std::vector<torch::Tensor>& to, const std::vector<torch::Tensor>& from) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (from[i].numel() > 0) torch::Tensor(to[i]).copy_(from[i], /*non_blocking=*/true);
  }
}

// Their memory is not reused before the stream has finished with it.
void keep_for(const c10::Stream& stream, const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& one : tensors) {
    streams_of(stream.device()).recordDataPtrOnStream(one.storage().data_ptr(), stream);
  }
}

}  // namespace

bool can_be_staged(torch::DeviceType type) {
  return type != torch::kCPU && type != torch::kMeta && c10::impl::hasDeviceGuardImpl(type);
}

StagedCall::StagedCall(TensorList written, TensorList read, StagedAccess access)
    : device_((written.empty() ? read : written)[0].device()),
      access_(access),
      to_host_(streams_of(device_).getStreamFromGlobalPool(device_, /*isHighPriority=*/true)),
      to_device_(streams_of(device_).getStreamFromGlobalPool(device_, /*isHighPriority=*/true)),
      results_ready_(std::make_shared<c10::Event>(device_.type())) {
  const WithoutAutograd guard;
  cut_into_pieces(written, read);
  c10::Event so_far(device_.type());
  so_far.record(streams_of(device_).getStream(device_));
  so_far.block(to_host_);
  so_far.block(to_device_);
}

void StagedCall::cut_into_pieces(TensorList written, TensorList read) {
  std::vector<torch::Tensor> hosts;  // of the written tensors
  std::vector<std::size_t> sizes;
  std::size_t element = 1;
  for (const torch::Tensor& one : written) {
    hosts.push_back(room_on_host(one));
    sizes.push_back(one.numel());
    element = std::max(element, static_cast<std::size_t>(one.element_size()));
  }
  const std::size_t whole = std::size_t{1} << 62;
  for (const ddprun::Piece& parts :
       plan_pieces(sizes, access_.can_be_cut ? kPieceBytes / element : whole)) {
    Piece piece(device_.type());
    for (const TensorPart& part : parts) {
      const auto cut = [&](const torch::Tensor& tensor) {
        return tensor.view({-1}).narrow(0, static_cast<std::int64_t>(part.elements.begin),
                                        static_cast<std::int64_t>(part.elements.size()));
      };
      piece.written.push_back(cut(written[part.tensor]));
      piece.host_written.push_back(cut(hosts[part.tensor]));
    }
    pieces_.push_back(std::move(piece));
  }
  for (const torch::Tensor& one : read) {
    pieces_.front().read.push_back(one.view({-1}));
    pieces_.front().host_read.push_back(room_on_host(one));
  }
}

void StagedCall::start_copy_to_host(const ResultsEvent& previous) {
  const WithoutAutograd autograd_guard;
  if (previous && previous->device_type() == device_.type()) {
    previous->block(to_host_);
    previous->block(to_device_);
  }
  const c10::StreamGuard guard(to_host_);
  for (Piece& piece : pieces_) {
    copy_all(piece.host_read, piece.read);
    if (access_.reads_written) copy_all(piece.host_written, piece.written);
    keep_for(to_host_, piece.read);
    keep_for(to_host_, piece.written);
    piece.is_on_host.record(to_host_);
  }
}

Result<void> StagedCall::run(const CpuGroup& group, const EngineCall& engine_call,
                             const Deadline& deadline) {
  for (const Piece& piece : pieces_) {
    const Result<void> is_there = wait_for_piece(piece, group, deadline);
    if (!is_there) return is_there;
    const Result<void> done =
        engine_call(piece.host_written, piece.host_read, deadline.remaining());
    if (!done) return done;
    start_copy_to_device(piece);
  }
  record_results();
  return {};
}

// Polls, because devices send no notification when they are done.
Result<void> StagedCall::wait_for_piece(const Piece& piece, const CpuGroup& group,
                                        const Deadline& deadline) const {
  NcclPause pause;
  while (!piece.is_on_host.query()) {
    if (std::optional<Error> failed = group.failure()) return *failed;
    if (deadline.passed()) {
      return timeout_error("copy a tensor from " + device_.str() + " to the host",
                           "the device has not got so far", deadline);
    }
    pause.take();
  }
  return {};
}

void StagedCall::start_copy_to_device() {
  start_copy_to_device(pieces_.front());
  record_results();
}

void StagedCall::start_copy_to_device(const Piece& piece) {
  if (!access_.writes_on_this_rank) return;
  const WithoutAutograd autograd_guard;
  const c10::StreamGuard guard(to_device_);
  copy_all(piece.written, piece.host_written);
  keep_for(to_device_, piece.written);
}

void StagedCall::record_results() {
  results_ready_->record(to_device_);
  pieces_.clear();
}

void StagedCall::make_current_stream_wait() const {
  // Recording has ended, so block() only reads.
  results_ready_->block(streams_of(device_).getStream(device_));
}

namespace {

class StagedWork final : public detail::WorkState {
 public:
  StagedWork(std::shared_ptr<detail::WorkState> host, std::shared_ptr<StagedCall> call)
      : host_(std::move(host)), call_(std::move(call)) {}

  void wait(std::optional<Duration> timeout) override {
    host_->wait(timeout);
    call_->make_current_stream_wait();
  }
  bool is_completed() override {
    return host_->is_completed() && (host_->exception() || call_->has_results());
  }
  std::exception_ptr exception() override { return host_->exception(); }
  int source_rank() override { return host_->source_rank(); }
  void record(FlightTicket ticket) override { host_->record(std::move(ticket)); }
  void when_over(std::function<void()> then) override {
    host_->when_over([then = std::move(then), call = call_] {
      call->make_current_stream_wait();
      then();
    });
  }

 private:
  const std::shared_ptr<detail::WorkState> host_;
  const std::shared_ptr<StagedCall> call_;
};

}  // namespace

Work staged_work(std::shared_ptr<detail::WorkState> host, std::shared_ptr<StagedCall> call) {
  return Work(std::make_shared<StagedWork>(std::move(host), std::move(call)));
}

}  // namespace ddprun
