#include "worker_lib/group/argument_check.h"

#include <algorithm>
#include <cstdint>

#include "base/joined.h"
#include "ddprun/p2p_op.h"
#include "worker_lib/group/tensor_facts.h"

namespace ddprun {
namespace {

// Returns "Bool, Byte, ... and Double".
std::string known_dtypes() {
  std::vector<std::string> names;
  for (const torch::ScalarType type : kCollectiveDtypes) names.emplace_back(c10::toString(type));
  return joined_with_and(names);
}

std::string element(const char* name, std::size_t index) { return concat(name, "[", index, "]"); }

// The memory range of a contiguous tensor. const_data_ptr does not materialize a lazy copy.
struct Extent {
  std::uintptr_t begin;
  std::uintptr_t end;
  std::size_t index = 0;

  bool is_empty() const { return begin == end; }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
  bool is_same(const Extent& other) const { return begin == other.begin && end == other.end; }
};

Extent extent_of(const torch::Tensor& tensor, std::size_t index = 0) {
  if (tensor.numel() == 0) return {0, 0, index};
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes(), index};
}

}  // namespace

DeviceTypes::DeviceTypes(const Backend& backend) {
  static_assert(static_cast<int>(torch::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES) <= 64);
  for (int i = 0; i < static_cast<int>(torch::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES); ++i) {
    if (backend.takes(static_cast<torch::DeviceType>(i))) types_ |= std::uint64_t{1} << i;
  }
}

std::string DeviceTypes::to_text() const {
  std::string text;
  int count = 0;
  for (int i = 0; i < static_cast<int>(torch::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES); ++i) {
    const auto type = static_cast<torch::DeviceType>(i);
    if (!holds(type)) continue;
    if (count++ > 0) text += " or ";
    text += c10::DeviceTypeName(type, /*lower_case=*/true);
  }
  return text + (count == 1 ? ", the group's device" : ", the group's devices");
}

bool ArgumentCheck::on_device(const torch::Tensor& tensor) const {
  return devices_.holds(tensor.device().type());
}

bool ArgumentCheck::on_calls_device(const torch::Tensor& tensor) {
  if (!on_device(tensor)) return false;
  const torch::Device device = tensor.device();
  if (!device_) device_ = device;
  return device.type() == device_->type() && (device.is_cpu() || device == *device_);
}

bool ArgumentCheck::is_sound(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == torch::kStrided && on_calls_device(tensor) &&
         tensor.is_contiguous() && is_collective_dtype(tensor.scalar_type()) &&
         tensor.has_storage() && !tensor.is_neg() && !tensor.is_conj();
}

void ArgumentCheck::tensor(const char* name, const torch::Tensor& tensor) {
  if (!is_sound(tensor)) [[unlikely]]
    explain(name, tensor);
}

// Finds the rule that is_sound() found broken. It is a separate function, so that the fast path
// builds no strings.
void ArgumentCheck::explain(const std::string& name, const torch::Tensor& tensor) const {
  if (!tensor.defined()) refuse(name, " must be a tensor, but is undefined");
  if (tensor.layout() != torch::kStrided) {
    refuse(name, " must be dense, but its layout is ", text_of(tensor.layout()));
  }
  if (!on_device(tensor)) {
    refuse(name, " must be on ", devices_.to_text(), ", but is on ", tensor.device().str());
  }
  if (device_ && tensor.device() != *device_) {
    refuse(name, " must be on ", device_->str(), " like the call's other tensors, but is on ",
           tensor.device().str());
  }
  if (!is_collective_dtype(tensor.scalar_type())) {
    refuse(name, " is ", c10::toString(tensor.scalar_type()), "; collectives know ",
           known_dtypes());
  }
  if (!tensor.has_storage()) refuse(name, " has no memory of its own (a wrapper or fake tensor)");
  if (tensor.is_neg()) {
    refuse(name, " is a lazily negated view; pass ", name, ".resolve_neg()");
  }
  if (tensor.is_conj()) {
    refuse(name, " is a lazily conjugated view; pass ", name, ".resolve_conj()");
  }
  refuse(name, " must be contiguous, but has strides ", text_of(tensor.strides()), " for shape ",
         text_of(tensor.sizes()), "; pass ", name,
         ".contiguous(), and copy the result back where it is written");
}

void ArgumentCheck::list(const char* name, TensorList list) {
  if (list.empty()) refuse(name, " must hold at least one tensor");
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_sound(list[i])) explain(element(name, i), list[i]);
  }
}

void ArgumentCheck::list_of_one_dtype(const char* name, TensorList list) {
  this->list(name, list);
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (list[i].scalar_type() == list[0].scalar_type()) continue;
    refuse(name, " must have one dtype, but ", element(name, 0), " is ",
           c10::toString(list[0].scalar_type()), " and ", element(name, i), " is ",
           c10::toString(list[i].scalar_type()));
  }
}

void ArgumentCheck::must_be_one_per_rank(const char* name, TensorList list) const {
  if (list.size() == static_cast<std::size_t>(size_)) return;
  refuse(name, " must hold one tensor per rank, ", size_, ", but holds ", list.size());
}

void ArgumentCheck::one_dtype_per_rank(const char* name, TensorList list, const char* like_name,
                                       TensorList like) {
  must_be_one_per_rank(name, list);
  this->list(name, list);
  for (std::size_t i = 0; i < list.size(); ++i) {
    same_dtype(element(name, i).c_str(), list[i], like_name, like[0]);
  }
}

void ArgumentCheck::same_dtype(const char* name, const torch::Tensor& tensor, const char* like_name,
                               const torch::Tensor& like) const {
  if (tensor.scalar_type() == like.scalar_type()) return;
  refuse(name, " must be ", c10::toString(like.scalar_type()), " like ", like_name, ", but is ",
         c10::toString(tensor.scalar_type()));
}

void ArgumentCheck::parts_of_all(const std::string& name, const torch::Tensor& whole,
                                 const std::string& part_name, const torch::Tensor& part) {
  tensor(name.c_str(), whole);
  if (whole.scalar_type() == part.scalar_type() && whole.numel() == size_ * part.numel()) return;
  refuse(name, " must hold ", size_, " times the elements of ", part_name, ", ",
         dtype_and_shape(part), ", but is ", dtype_and_shape(whole));
}

void ArgumentCheck::as_many(const char* name, TensorList list, const char* like_name,
                            TensorList like) const {
  if (list.size() == like.size()) return;
  refuse(name, " must hold as many tensors as ", like_name, ", ", like.size(), ", but holds ",
         list.size());
}

void ArgumentCheck::parts_of_each(const char* name, TensorList wholes, const char* part_name,
                                  TensorList parts) {
  as_many(name, wholes, part_name, parts);
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    parts_of_all(element(name, i), wholes[i], element(part_name, i), parts[i]);
  }
}

std::vector<std::int64_t> ArgumentCheck::splits(const char* name,
                                                const std::vector<std::int64_t>& given,
                                                const char* tensor_name,
                                                const torch::Tensor& tensor) const {
  if (tensor.dim() == 0) refuse(tensor_name, " must have at least one dimension");
  const std::int64_t rows = tensor.size(0);
  if (given.empty()) {
    if (rows % size_ != 0) {
      refuse("the first dimension of ", tensor_name, ", ", rows,
             ", must be a multiple of the number of ranks, ", size_, ", or ", name, " be given");
    }
    return std::vector<std::int64_t>(size_, rows / size_);
  }
  if (given.size() != static_cast<std::size_t>(size_)) {
    refuse(name, " must have one length per rank, ", size_, ", but has ", given.size());
  }
  std::int64_t left = rows;
  for (const std::int64_t length : given) {
    if (length < 0 || length > left) left = -1;
    if (left >= 0) left -= length;
  }
  if (left != 0) {
    refuse(name, " ", text_of(torch::IntArrayRef(given)),
           " must be lengths of at least 0 that add up to ", rows, ", the first dimension of ",
           tensor_name);
  }
  return given;
}

void ArgumentCheck::one_per_rank(const char* name, TensorList list, const char* like_name,
                                 const torch::Tensor& like) {
  must_be_one_per_rank(name, list);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_sound(list[i])) explain(element(name, i), list[i]);
    if (list[i].scalar_type() != like.scalar_type() || list[i].sizes() != like.sizes()) {
      refuse(element(name, i), " must be like ", like_name, ", ", dtype_and_shape(like),
             ", but is ", dtype_and_shape(list[i]));
    }
  }
}

void ArgumentCheck::roots_list(const char* name, TensorList list, const char* like_name,
                               const torch::Tensor& like, int root) {
  if (rank_ == root) return one_per_rank(name, list, like_name, like);
  if (!list.empty()) {
    refuse(name, " must be empty on every rank but the root, ", root, ", but holds ", list.size(),
           " tensors on rank ", rank_);
  }
}

void ArgumentCheck::roots_values(const char* name, std::size_t given, int root) const {
  const auto wanted = rank_ == root ? static_cast<std::size_t>(size_) : 0;
  if (given == wanted) return;
  refuse(name, " must hold one value per rank, ", size_, ", on the root, ", root,
         ", and none elsewhere, but holds ", given, " on rank ", rank_);
}

void ArgumentCheck::written_apart(const char* name, TensorList list) const {
  std::vector<Extent> extents;
  extents.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) extents.push_back(extent_of(list[i], i));
  std::erase_if(extents, [](const Extent& extent) { return extent.is_empty(); });
  std::ranges::sort(extents, {}, &Extent::begin);
  const auto clash = std::ranges::adjacent_find(
      extents, [](const Extent& left, const Extent& right) { return left.overlaps(right); });
  if (clash == extents.end()) return;
  refuse(element(name, clash->index), " and ", element(name, std::next(clash)->index),
         " share memory, but each is written");
}

void ArgumentCheck::apart_or_own(const char* name, const torch::Tensor& tensor,
                                 const char* list_name, TensorList list) const {
  const Extent own = extent_of(tensor);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Extent other = extent_of(list[i]);
    const bool is_own = i == static_cast<std::size_t>(rank_) && own.is_same(other);
    if (!own.overlaps(other) || is_own) continue;
    refuse(name, " shares memory with ", element(list_name, i),
           "; it may only be the same memory as ", list_name, "[rank]");
  }
}

void ArgumentCheck::apart_or_own_share(const char* name, TensorList written, const char* list_name,
                                       TensorList read) const {
  for (std::size_t i = 0; i < written.size(); ++i) {
    const Extent own = extent_of(written[i]);
    const std::uintptr_t ahead = (own.end - own.begin) * rank_;
    for (std::size_t j = 0; j < read.size(); ++j) {
      const Extent other = extent_of(read[j]);
      if (!own.overlaps(other) || (i == j && own.begin == other.begin + ahead)) continue;
      refuse(element(name, i), " shares memory with ", element(list_name, j),
             "; it may only be this rank's share of ", element(list_name, i));
    }
  }
}

void ArgumentCheck::apart(const char* name, TensorList written, const char* list_name,
                          TensorList read) const {
  for (std::size_t i = 0; i < written.size(); ++i) {
    apart(element(name, i).c_str(), written[i], list_name, read);
  }
}

void ArgumentCheck::apart(const char* name, const torch::Tensor& tensor, const char* list_name,
                          TensorList list) const {
  const Extent own = extent_of(tensor);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (own.overlaps(extent_of(list[i]))) {
      refuse(name, " shares memory with ", element(list_name, i), ", which is only read");
    }
  }
}

void ArgumentCheck::op(ReduceOp op, double factor, const torch::Tensor& tensor) const {
  const torch::ScalarType type = tensor.scalar_type();
  const bool is_real = torch::isFloatingType(type);
  const bool is_complex = torch::isComplexType(type);
  const auto refuse_dtype = [&](const char* needed) {
    refuse("op ", to_text(op), " needs ", needed, ", but this one is ", c10::toString(type));
  };
  if (!is_reducible(element_type_of(type))) {
    refuse(
        "op ", to_text(op), " cannot reduce ", c10::toString(type),
        ": tensors of this dtype can be moved (broadcast, all_gather, send, ...), but not reduced; "
        "convert it");
  }
  if (factor != 1 && op != ReduceOp::kPremulSum) {
    refuse("premul_factor is for op premul_sum, not ", to_text(op));
  }
  switch (op) {
    case ReduceOp::kSum: return;
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      if (!is_real && !is_complex) refuse_dtype("a floating-point or complex tensor");
      return;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (is_complex) refuse_dtype("a tensor of real numbers");
      return;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      if (is_real || is_complex) refuse_dtype("an integer or bool tensor");
      return;
  }
  refuse("there is no op ", static_cast<int>(op));
}

void ArgumentCheck::peer(const char* name, int peer) const {
  must_be_rank(name, peer);
  if (peer == rank_) {
    refuse(name, " ", peer, " is this rank itself; copy the tensor instead");
  }
}

void ArgumentCheck::source(const char* name, int source) const {
  if (source != kAnySource) return peer(name, source);
  if (size_ == 1) refuse(name, " is any rank, but there is no other rank in this group");
}

void ArgumentCheck::must_be_rank(const char* name, int rank) const {
  if (rank >= 0 && rank < size_) return;
  refuse(name, " ", rank, " is not a rank of this group; its ranks are 0 to ", size_ - 1);
}

void ArgumentCheck::tag(int tag) const {
  if (tag < 0) refuse("tag ", tag, " must not be negative");
}

Duration ArgumentCheck::timeout(std::optional<Duration> asked, Duration of_group) const {
  if (asked && *asked <= Duration::zero()) {
    refuse("timeout must be more than zero, but is ", to_text(*asked));
  }
  return std::min(asked.value_or(of_group), kLongestTimeout);
}

}  // namespace ddprun
