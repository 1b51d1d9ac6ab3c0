#include "worker_lib/serialization/state_snapshot.h"

#include <cstring>

#include "worker_lib/cpu_kernels/stream_copy.h"
#include "worker_lib/serialization/checkpoint_state.h"

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

// Returns the dict under this key; nullopt if there is none.
std::optional<c10::impl::GenericDict> dict_in(const c10::IValue& parent, const char* key) {
  if (!parent.isGenericDict()) return std::nullopt;
  const auto entries = parent.toGenericDict();
  const auto found = entries.find(key);
  if (found == entries.end() || !found->value().isGenericDict()) return std::nullopt;
  return found->value().toGenericDict();
}

// Sets all values to None. Otherwise, host copies of a GPU's tensors would stay in memory until the
// next save.
void drop_values(const c10::impl::GenericDict& dict) {
  for (const auto& entry : dict)
    if (entry.value().isGenericDict())
      drop_values(entry.value().toGenericDict());
    else
      entry.setValue(c10::IValue());
}

bool may_hold_tensors(const c10::IValue& value) {
  return value.isTensor() || value.isGenericDict() || value.isList() || value.isTuple();
}

}  // namespace

void StateSnapshot::begin() {
  next_ = 0;
  copies_.clear();
  other_copies_.clear();
}

void StateSnapshot::end() {
  buffers_.resize(next_);
  other_copies_.clear();
}

void StateSnapshot::give_back(const c10::IValue& contents) noexcept try {
  dicts_ = {};
  dicts_.model = dict_in(contents, "model");
  if (const auto optimizer = dict_in(contents, "optimizer"))
    dicts_.optimizer_states = dict_in(*optimizer, "state");
  for (const auto& dict : {dicts_.model, dicts_.optimizer_states})
    if (dict) drop_values(*dict);
} catch (...) {
  dicts_ = {};  // the next save makes new ones
}

c10::IValue StateSnapshot::take(const c10::IValue& live) {
  begin();
  c10::IValue result = copy(live);
  end();
  return result;
}

torch::Tensor StateSnapshot::tensor_for_file(const torch::Tensor& live) {
  const bool is_whole = live.is_cpu() && live.layout() == torch::kStrided && live.numel() > 0 &&
                        !live.is_conj() && !live.is_neg() &&
                        live.storage().nbytes() <= live.nbytes();
  return is_whole ? copy_once(live) : ddprun::tensor_for_file(live);
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
  return tensor.numel() == 0 || is_private(tensor) ? tensor : copy_once(tensor);
}

torch::Tensor StateSnapshot::copy_once(const torch::Tensor& tensor) {
  const void* const address = tensor.const_data_ptr();
  if (is_dense(tensor)) {
    const auto [known, is_new] = copies_.emplace(address, next_);
    if (is_new) return copy_to_buffer(tensor);
    if (same_layout(buffers_[known->second], tensor)) return buffers_[known->second];
  }
  auto& copies = other_copies_[address];
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
