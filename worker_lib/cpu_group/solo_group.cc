#include "worker_lib/cpu_group/solo_group.h"

#include <mutex>
#include <optional>

#include "base/concat.h"
#include "worker_lib/collective/group_end.h"
#include "worker_lib/cpu_group/requirements.h"

namespace ddprun {
namespace {

class SoloGroup final : public CpuGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Result<void> all_reduce(WritableList, ElementType type, ReduceOp op,
                          const CpuCallOptions&) override {
    require_operation(type, op);
    return done("all_reduce");
  }
  Result<void> reduce(WritableList, ElementType type, ReduceOp op, Rank root,
                      const CpuCallOptions&) override {
    require_root(root, 1);
    require_operation(type, op);
    return done("reduce");
  }
  Result<void> broadcast(WritableList, Rank root, const CpuCallOptions&) override {
    require_root(root, 1);
    return done("broadcast");
  }
  Result<void> all_gather(ReadableList inputs, WritableList outputs,
                          const CpuCallOptions&) override {
    return copy("all_gather", inputs, outputs);
  }
  Result<void> reduce_scatter(ReadableList inputs, WritableList outputs, ElementType type,
                              ReduceOp op, const CpuCallOptions&) override {
    require_operation(type, op);
    return copy("reduce_scatter", inputs, outputs);
  }
  Result<void> gather(ReadableBytes input, WritableList outputs, Rank root,
                      const CpuCallOptions&) override {
    require_root(root, 1);
    return copy("gather", list_of(input), outputs);
  }
  Result<void> scatter(ReadableList inputs, WritableBytes output, Rank root,
                       const CpuCallOptions&) override {
    require_root(root, 1);
    return copy("scatter", inputs, list_of(output));
  }
  Result<void> all_to_all(ReadableList inputs, WritableList outputs,
                          const CpuCallOptions&) override {
    require_count(inputs.size(), 1);
    if (inputs[0].size() != outputs[0].size()) {
      return invalid_argument(concat("rank 0 sends ", inputs[0].size(),
                                     " B to itself, but expects ", outputs[0].size(), " B"))
          .within("all_to_all");
    }
    return copy("all_to_all", inputs, outputs);
  }
  Result<void> barrier(Duration) override { return done("barrier"); }
  Result<Rank> carry_out(const MessageRequest&) override { refuse_partner(); }
  void start(const MessageRequest&, TransferDone) override { refuse_partner(); }

  std::shared_ptr<char> shared_memory(std::size_t) override { return nullptr; }

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
  Result<void> copy(const char* collective, ReadableList from, WritableList to) {
    require_count(from.size(), to.size());
    const Result<void> usable = done(collective);
    for (std::size_t i = 0; usable && i < from.size(); ++i) {
      Scattered<char>(to[i]).copy_from(from[i].data(), {0, from[i].size()});
    }
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
