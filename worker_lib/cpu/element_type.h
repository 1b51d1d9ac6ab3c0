// The element types that the CPU engine can reduce. It knows nothing of LibTorch. Value types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun {

enum class ElementType : std::uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };

constexpr std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kBool:
    case ElementType::kU8:
    case ElementType::kI8: return 1;
    case ElementType::kI16:
    case ElementType::kF16:
    case ElementType::kBF16: return 2;
    case ElementType::kI32:
    case ElementType::kF32: return 4;
    case ElementType::kI64:
    case ElementType::kF64: return 8;
  }
  return 0;
}

}  // namespace ddprun
