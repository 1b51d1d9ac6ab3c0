#include "worker_lib/ddp/gradient_placement.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>

namespace ddprun {
namespace {

// The active placement of this thread, between begin() and end().
thread_local std::shared_ptr<GradientPlacement> current;

// Lent memory by address. c10 expects that the context of an allocator's DataPtr is its memory,
// so the lease cannot be there.
struct Lent {
  std::mutex mutex;
  std::unordered_map<void*, std::shared_ptr<void>> leases;
};

Lent& lent() {
  static Lent* const all = new Lent;  // tensors may outlive every static object
  return *all;
}

// Removes and returns the lease of `memory`; null if it is not lent.
std::shared_ptr<void> take_lease(void* memory) {
  const std::lock_guard lock(lent().mutex);
  auto found = lent().leases.extract(memory);
  return found ? std::move(found.mapped()) : nullptr;
}

using References = c10::SmallVector<const torch::Tensor*, 4>;

// Adds the tensors that a view refers to and keeps alive.
void add_bases_of(const torch::Tensor& view, References& to) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  if (!meta) return;
  if (meta->has_bw_view()) to.push_back(&meta->get_backward_view().base_);
  if (meta->has_fw_view() && !meta->shared_view_info())
    to.push_back(&meta->get_forward_view().base_);
}

// Returns whether a gradient that has just come is the only tensor in its memory. Autograd
// adopts a tensor that has no other owner, but does not check whether its storage is shared. It
// may be a view of data that later functions will read.
bool is_alone(const torch::Tensor& value, const torch::Tensor& computed) {
  References owners{&value};
  if (computed.defined() && computed.is_alias_of(value)) owners.push_back(&computed);
  References bases;
  for (const torch::Tensor* one : References(owners)) add_bases_of(*one, bases);
  const auto times_in = [](const References& list, const torch::Tensor& tensor) {
    return std::ranges::count_if(list, [&](const auto* one) { return one->is_same(tensor); });
  };
  for (const torch::Tensor* base : bases) {
    if (!base->is_alias_of(value) || times_in(owners, *base) > 0) continue;
    if (static_cast<std::int64_t>(base->use_count()) > times_in(bases, *base)) return false;
    owners.push_back(base);
  }
  return value.storage().use_count() <= owners.size();
}

}  // namespace

class GradientPlacement::Allocator final : public c10::Allocator {
 public:
  explicit Allocator(c10::Allocator& other) : other_(other) { free_ = other.raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (!current) return other_.allocate(bytes);
    if (c10::DataPtr place = current->lend(bytes)) return place;
    c10::DataPtr memory = other_.allocate(bytes);
    current->saw(bytes, memory.get());
    return memory;
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return other_.is_simple_data_ptr(data);
  }
  // For memory that is requested without a DataPtr (raw_allocate), lent or not.
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    other_.copy_data(to, from, bytes);
  }

  static void give_back(void* memory) {
    if (const std::shared_ptr<void> lease = take_lease(memory)) {
      static_cast<Lease*>(lease.get())->is_lent = false;
    } else {
      free_(memory);
    }
  }

 private:
  inline static c10::DeleterFnPtr free_ = nullptr;
  c10::Allocator& other_;
};

GradientPlacement::GradientPlacement(std::vector<torch::Tensor> parameters) {
  for (torch::Tensor& parameter : parameters) {
    if (parameter.nbytes() > 0) sizes_[parameter.nbytes()];
    slots_.push_back({.parameter = std::move(parameter), .lease = std::make_shared<Lease>()});
  }
}

std::shared_ptr<GradientPlacement> GradientPlacement::make(std::vector<torch::Tensor> parameters) {
  static const bool is_there = [] {
    c10::SetCPUAllocator(new Allocator(*c10::GetCPUAllocator()), /*priority=*/255);
    return true;
  }();
  static_cast<void>(is_there);
  return std::shared_ptr<GradientPlacement>(new GradientPlacement(std::move(parameters)));
}

// Memory lent from the old place stays lent.
void GradientPlacement::set_place(std::size_t gradient, const torch::Tensor& place) {
  slots_[gradient].lease = std::make_shared<Lease>();
  slots_[gradient].lease->place = place;
  slots_[gradient].is_in_place = false;
}

void GradientPlacement::new_pass() {
  for (Slot& slot : slots_) slot.has_come = slot.is_in_place = false;
}

void GradientPlacement::begin() {
  for (auto& [bytes, of_size] : sizes_) of_size.seen.clear();
  current = shared_from_this();
}

void GradientPlacement::end() {
  if (is_active()) current.reset();
}

bool GradientPlacement::is_active() const { return current.get() == this; }

c10::DataPtr GradientPlacement::lend(std::size_t bytes) {
  const auto of_size = sizes_.find(bytes);
  if (of_size == sizes_.end()) return {};
  auto& [seen, of] = of_size->second;
  const auto found = of.find(seen.size());
  if (found == of.end()) return {};
  const Slot& slot = slots_[found->second];
  // If a gradient exists, autograd adds to it, and the present allocation is not the gradient.
  if (!slot.may_guess || slot.has_come || slot.parameter.grad().defined() || slot.lease->is_lent)
    return {};
  void* memory = slot.lease->place.mutable_data_ptr();
  {
    const std::lock_guard lock(lent().mutex);
    if (!lent().leases.emplace(memory, slot.lease).second) return {};
  }
  slot.lease->is_lent = true;
  seen.push_back(memory);
  return {memory, memory, Allocator::give_back, torch::Device(torch::kCPU)};
}

void GradientPlacement::saw(std::size_t bytes, const void* memory) {
  const auto of_size = sizes_.find(bytes);
  if (of_size != sizes_.end()) of_size->second.seen.push_back(memory);
}

// Memory may have been given back and allocated again; the last allocation counts.
void GradientPlacement::note_gradient(std::size_t gradient, const torch::Tensor& value,
                                      const torch::Tensor& computed) {
  Slot& slot = slots_[gradient];
  slot.has_come = true;
  const void* const memory = value.const_data_ptr();
  slot.is_in_place = memory == slot.lease->place.const_data_ptr() && is_alone(value, computed);
  if (slot.ordinal || !slot.may_guess || !is_active()) return;
  OfSize& of_size = sizes_[slot.parameter.nbytes()];
  const auto last = std::find(of_size.seen.rbegin(), of_size.seen.rend(), memory);
  if (last == of_size.seen.rend()) return do_not_guess(gradient);
  const auto ordinal = static_cast<std::uint64_t>(of_size.seen.rend() - last) - 1;
  if (!of_size.of.emplace(ordinal, gradient).second) return do_not_guess(gradient);
  slot.ordinal = ordinal;
}

}  // namespace ddprun
