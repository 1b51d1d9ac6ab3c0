#include "worker_lib/cpu/solo_group.h"

#include <cstring>
#include <mutex>
#include <optional>

#include "worker_lib/cpu/group_end.h"
#include "worker_lib/cpu/requirements.h"

namespace ddprun {
namespace {

class SoloGroup final : public CpuGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Result<void> all_reduce(void*, std::size_t, ElementType type, ReduceOp op, Duration) override {
    require_operation(type, op);
    return done("all_reduce");
  }
  Result<void> reduce(void*, std::size_t, ElementType type, ReduceOp op, Rank root,
                      Duration) override {
    require_root(root, 1);
    require_operation(type, op);
    return done("reduce");
  }
  Result<void> broadcast(void*, std::size_t, Rank root, Duration) override {
    require_root(root, 1);
    return done("broadcast");
  }
  Result<void> all_gather(const void* input, std::span<void* const> outputs, std::size_t bytes,
                          Duration) override {
    require_count(outputs.size(), 1);
    return copy("all_gather", outputs[0], input, bytes);
  }
  Result<void> reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                              ElementType type, ReduceOp op, Duration) override {
    require_count(inputs.size(), 1);
    require_operation(type, op);
    return copy("reduce_scatter", output, inputs[0], count * size_of(type));
  }
  Result<void> gather(const void* input, std::span<void* const> outputs, std::size_t bytes,
                      Rank root, Duration) override {
    require_root(root, 1);
    require_count(outputs.size(), 1);
    return copy("gather", outputs[0], input, bytes);
  }
  Result<void> scatter(std::span<const void* const> inputs, void* output, std::size_t bytes,
                       Rank root, Duration) override {
    require_root(root, 1);
    require_count(inputs.size(), 1);
    return copy("scatter", output, inputs[0], bytes);
  }
  Result<void> barrier(Duration) override { return done("barrier"); }
  Result<void> send(const void*, std::size_t, Rank, int, Duration) override { refuse_partner(); }
  Result<Rank> recv(void*, std::size_t, std::optional<Rank>, int, Duration) override {
    refuse_partner();
  }
  void start_send(const void*, std::size_t, Rank, int, Duration, TransferDone) override {
    refuse_partner();
  }
  void start_recv(void*, std::size_t, std::optional<Rank>, int, Duration, TransferDone) override {
    refuse_partner();
  }

  std::optional<Error> failure() const override {
    const std::lock_guard lock(mutex_);
    if (!aborted_) return std::nullopt;
    return Error{.kind = ErrorKind::kStopped, .cause = *aborted_};
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = reason;
  }

 private:
  Result<void> copy(const char* collective, void* to, const void* from, std::size_t bytes) {
    const Result<void> usable = done(collective);
    if (usable && to != from && bytes > 0) std::memcpy(to, from, bytes);
    return usable;
  }

  Result<void> done(const char* collective) {
    const std::lock_guard lock(mutex_);
    if (!aborted_) return {};
    return Error{
        .kind = ErrorKind::kStopped, .doing = collective, .cause = group_aborted(*aborted_)};
  }

  mutable std::mutex mutex_;
  std::optional<std::string> aborted_;
};

}  // namespace

std::unique_ptr<CpuGroup> make_solo_group() { return std::make_unique<SoloGroup>(); }

}  // namespace ddprun
