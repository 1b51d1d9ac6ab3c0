#include "worker_lib/cpu/argument_checks.h"

#include <string>

#include "worker_lib/cpu/fold_kernels.h"

namespace ddprun {
namespace {

Error invalid(std::string doing, std::string cause) {
  return Error{
      .kind = ErrorKind::kInvalidArgument, .doing = std::move(doing), .cause = std::move(cause)};
}

std::string range_text(int size) { return "ranks go from 0 to " + std::to_string(size - 1); }

}  // namespace

Result<void> check_operation(ElementType type, ReduceOp op) {
  if (fold_kernel(type, op, FoldForm::kWhole, InstructionSet::kBaseline)) return {};
  return invalid(std::string("reduce ") + to_text(type) + " by " + to_text(op),
                 is_floating(type) ? "bitwise operations are for integers and bool"
                                   : "avg is for floating-point types; sum and divide instead");
}

Result<void> check_root(const char* collective, Rank root, int size) {
  if (root.value >= 0 && root.value < size) return {};
  return invalid(std::string(collective) + " with root " + to_text(root), range_text(size));
}

Result<void> check_one_per_rank(const char* collective, const char* what, std::size_t given,
                                int wanted) {
  if (given == static_cast<std::size_t>(wanted)) return {};
  return invalid(std::string(collective) + " with " + std::to_string(given) + " " + what,
                 wanted == 0
                     ? "only the root gives any"
                     : "there must be one for each of the " + std::to_string(wanted) + " ranks");
}

Result<void> check_partner(const char* call, Rank partner, int rank, int size) {
  const std::string doing = std::string(call) + " with rank " + to_text(partner);
  if (partner.value < 0 || partner.value >= size) return invalid(doing, range_text(size));
  if (partner.value == rank)
    return invalid(doing, "this is rank " + std::to_string(rank) + " itself");
  return {};
}

}  // namespace ddprun
