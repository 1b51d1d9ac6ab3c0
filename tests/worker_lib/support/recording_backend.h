// RecordingBackend: a Backend that runs nothing and records the calls that ProcessGroup makes.
// For tests of what ProcessGroup checks, fills in and passes on.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ddprun/backend.h"
#include "worker_lib/group/work_state.h"

namespace ddprun {

// BackendRecord: what a RecordingBackend was asked to do. The test keeps it, because the
// ProcessGroup owns the backend.
struct BackendRecord {
  std::vector<std::string> calls;        // "reduce avg root 1 async in 5.0 s"
  Result<void> result;                   // of every call
  std::vector<Work> works;               // of the next calls, instead of `result`
  std::string aborted;                   // the reason of the abort
  std::function<void()> during = [] {};  // runs once, during the next call
  bool sends_on_any_thread = false;
  // Runs in every all_gather, with its tensors.
  std::function<void(TensorList outputs, TensorList inputs)> gather = [](TensorList, TensorList) {};
};

class RecordingBackend final : public Backend {
 public:
  RecordingBackend(BackendRecord& record, int rank, int size,
                   torch::DeviceType device = torch::kCPU)
      : record_(record), rank_(rank), size_(size), device_(device) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool takes(torch::DeviceType type) const override { return type == device_; }
  bool sends_on_any_thread() const override { return record_.sends_on_any_thread; }

  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override {
    return note("all_reduce " + list_text(tensors) + text_of(how), call);
  }
  Work reduce(const torch::Tensor&, Reduction how, int root, CallOptions call) override {
    return note("reduce" + text_of(how) + root_text(root), call);
  }
  Work broadcast(TensorList tensors, int root, CallOptions call) override {
    return note("broadcast " + list_text(tensors) + root_text(root), call);
  }
  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override {
    record_.gather(outputs, inputs);
    return note("all_gather " + list_text(outputs) + " of " + list_text(inputs), call);
  }
  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override {
    return note("reduce_scatter " + list_text(outputs) + " of " + list_text(inputs) + text_of(how),
                call);
  }
  Work gather(TensorList outputs, const torch::Tensor&, int root, CallOptions call) override {
    return note("gather " + list_text(outputs) + root_text(root), call);
  }
  Work scatter(const torch::Tensor&, TensorList inputs, int root, CallOptions call) override {
    return note("scatter " + list_text(inputs) + root_text(root), call);
  }
  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override {
    return note("all_to_all " + list_text(outputs) + " of " + list_text(inputs), call);
  }
  Work barrier(CallOptions call) override { return note("barrier", call); }
  Work monitored_barrier(CallOptions call) override { return note("monitored_barrier", call); }
  Work send(const torch::Tensor&, int destination, int tag, CallOptions call) override {
    return note("send to " + std::to_string(destination) + " tag " + std::to_string(tag), call);
  }
  Work recv(const torch::Tensor&, int source, int tag, CallOptions call) override {
    return note("recv from " + std::to_string(source) + " tag " + std::to_string(tag), call);
  }
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override {
    std::string text = "batch:";
    for (const P2POp& one : operations) {
      text += (one.kind == P2POp::Kind::kSend ? " to " : " from ") + std::to_string(one.peer) +
              " tag " + std::to_string(one.tag);
    }
    return std::vector<Work>(operations.size(), note(text, call));
  }
  void abort(const std::string& reason) override { record_.aborted = reason; }

 private:
  // Returns the number of elements of each tensor, such as "[2 2 0]".
  static std::string list_text(TensorList tensors) {
    std::string text = "[";
    for (const torch::Tensor& one : tensors) {
      if (text.size() > 1) text += " ";
      text += std::to_string(one.numel());
    }
    return text + "]";
  }
  static std::string text_of(const Reduction& how) {
    const std::string factor = how.factor == 1 ? "" : " by " + std::to_string(how.factor);
    return std::string(" ") + to_text(how.op) + factor;
  }
  static std::string root_text(int root) { return " root " + std::to_string(root); }

  Work note(std::string text, CallOptions call) {
    if (call.async) text += " async";
    record_.calls.push_back(text + " in " + to_text(call.timeout));
    std::exchange(record_.during, [] {})();
    if (record_.works.empty()) return detail::work_of(record_.result);
    const Work next = record_.works.front();
    record_.works.erase(record_.works.begin());
    return next;
  }

  const std::string name_ = "recording";
  BackendRecord& record_;
  const int rank_;
  const int size_;
  const torch::DeviceType device_;
};

}  // namespace ddprun
