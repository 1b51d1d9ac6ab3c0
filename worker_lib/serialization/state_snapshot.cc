#include "worker_lib/serialization/state_snapshot.h"

#include <cstring>

#include "worker_lib/cpu_kernels/stream_copy.h"

namespace ddprun {
namespace {

constexpr std::size_t kStreamedBytes = 16 << 10;

// Returns whether a tensor fills its memory without gaps, in any order of dimensions.
bool is_dense(const torch::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Returns whether the tree is the only owner of the tensor and of its memory.
bool is_private(const torch::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// Returns whether no other tensor of the tree has the tensor's memory: it belongs to the tree's
// tensor and to one of the program. Two tensors of the tree that share a storage which only the
// tree holds look the same. They are stored apart, with the same values.
bool is_once_in_tree(const torch::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 2;
}

bool may_hold_tensors(const c10::IValue& value) {
  return value.isTensor() || value.isGenericDict() || value.isList() || value.isTuple();
}

}  // namespace

c10::IValue StateSnapshot::take(c10::IValue live) {
  next_ = 0;
  c10::IValue result = copy(live);
  buffers_.resize(next_);
  copies_.clear();
  return result;
}

c10::IValue StateSnapshot::copy(const c10::IValue& value) {
  if (value.isTensor()) return copy(value.toTensor());
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict())
      if (may_hold_tensors(entry.value())) entry.setValue(copy(entry.value()));
    return value;
  }
  if (value.isList()) {
    const auto list = value.toList();
    for (std::size_t i = 0; i < list.size(); ++i)
      if (may_hold_tensors(value.toListRef()[i])) list.set(i, copy(value.toListRef()[i]));
    return value;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toTupleRef().elements())
      elements.push_back(copy(element));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  return value;
}

torch::Tensor StateSnapshot::copy(const torch::Tensor& tensor) {
  if (tensor.numel() == 0 || is_private(tensor)) return tensor;
  if (is_once_in_tree(tensor)) return copy_to_buffer(tensor);
  auto& copies = copies_[tensor.const_data_ptr()];
  for (const auto& [source, copied] : copies)
    if (same_layout(source, tensor)) return copied;
  return copies.emplace_back(tensor, copy_to_buffer(tensor)).second;
}

const torch::Tensor& StateSnapshot::copy_to_buffer(const torch::Tensor& tensor) {
  if (next_ == buffers_.size()) buffers_.emplace_back();
  torch::Tensor& buffer = buffers_[next_++];
  const torch::Tensor plain = is_dense(tensor) ? tensor : tensor.contiguous();
  if (!buffer.defined() || !same_layout(buffer, plain))
    buffer = torch::empty_strided(plain.sizes(), plain.strides(), plain.options());
  // Bypasses the caches: the training needs them, and the copy is not read soon. The wait for the
  // memory does not pay for small tensors.
  if (plain.nbytes() < kStreamedBytes)
    std::memcpy(buffer.mutable_data_ptr(), plain.const_data_ptr(), plain.nbytes());
  else
    stream_bytes(buffer.mutable_data_ptr(), plain.const_data_ptr(), plain.nbytes());
  return buffer;
}

}  // namespace ddprun
