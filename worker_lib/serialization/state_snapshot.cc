#include "worker_lib/serialization/state_snapshot.h"

#include "worker_lib/cpu_kernels/stream_copy.h"

namespace ddprun {
namespace {

// Returns whether a tensor fills its memory without gaps, in any order of dimensions.
bool is_dense(const torch::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Returns whether the tree is the only owner of the tensor and of its memory.
bool is_private(const torch::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

c10::IValue StateSnapshot::take(const c10::IValue& live) {
  next_ = 0;
  const c10::IValue result = copy(live);
  buffers_.resize(next_);
  copies_.clear();
  return result;
}

c10::IValue StateSnapshot::copy(const c10::IValue& value) {
  if (value.isTensor()) return copy(value.toTensor());
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    c10::impl::GenericDict result(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) result.insert(entry.key(), copy(entry.value()));
    return result;
  }
  if (value.isList()) {
    const auto list = value.toList();
    c10::impl::GenericList result(list.elementType());
    for (const c10::IValue& element : value.toListRef()) result.push_back(copy(element));
    return result;
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
  for (const auto& [source, copied] : copies_[tensor.const_data_ptr()])
    if (same_layout(source, tensor)) return copied;
  if (next_ == buffers_.size()) buffers_.emplace_back();
  torch::Tensor& buffer = buffers_[next_++];
  const torch::Tensor plain = is_dense(tensor) ? tensor : tensor.contiguous();
  if (!buffer.defined() || !same_layout(buffer, plain))
    buffer = torch::empty_strided(plain.sizes(), plain.strides(), plain.options());
  // Bypasses the caches: the training needs them, and the copy is not read soon.
  stream_bytes(buffer.mutable_data_ptr(), plain.const_data_ptr(), plain.nbytes());
  copies_[tensor.const_data_ptr()].emplace_back(tensor, buffer);
  return buffer;
}

}  // namespace ddprun
