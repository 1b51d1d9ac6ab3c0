// ElementType: the element types of the CPU engine, independent of LibTorch. Value types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun {

enum class ElementType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,  // two f32: real part, imaginary part
  kC128,
  // The following types are moved, but not reduced.
  kU16,
  kU32,
  kU64,
  kF8E5M2,
  kF8E4M3,
  kF8E5M2Fnuz,
  kF8E4M3Fnuz,
  kF8E8M0,
};

constexpr std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kBool:
    case ElementType::kU8:
    case ElementType::kI8:
    case ElementType::kF8E5M2:
    case ElementType::kF8E4M3:
    case ElementType::kF8E5M2Fnuz:
    case ElementType::kF8E4M3Fnuz:
    case ElementType::kF8E8M0: return 1;
    case ElementType::kI16:
    case ElementType::kU16:
    case ElementType::kF16:
    case ElementType::kBF16: return 2;
    case ElementType::kI32:
    case ElementType::kU32:
    case ElementType::kF32: return 4;
    case ElementType::kI64:
    case ElementType::kU64:
    case ElementType::kF64:
    case ElementType::kC64: return 8;
    case ElementType::kC128: return 16;
  }
  return 0;
}

constexpr const char* to_text(ElementType type) {
  switch (type) {
    case ElementType::kBool: return "bool";
    case ElementType::kU8: return "u8";
    case ElementType::kI8: return "i8";
    case ElementType::kI16: return "i16";
    case ElementType::kI32: return "i32";
    case ElementType::kI64: return "i64";
    case ElementType::kF16: return "f16";
    case ElementType::kBF16: return "bf16";
    case ElementType::kF32: return "f32";
    case ElementType::kF64: return "f64";
    case ElementType::kC64: return "c64";
    case ElementType::kC128: return "c128";
    case ElementType::kU16: return "u16";
    case ElementType::kU32: return "u32";
    case ElementType::kU64: return "u64";
    case ElementType::kF8E5M2: return "f8e5m2";
    case ElementType::kF8E4M3: return "f8e4m3";
    case ElementType::kF8E5M2Fnuz: return "f8e5m2fnuz";
    case ElementType::kF8E4M3Fnuz: return "f8e4m3fnuz";
    case ElementType::kF8E8M0: return "f8e8m0";
  }
  return "?";
}

// Returns whether the engine has operations for the type.
constexpr bool is_reducible(ElementType type) { return type <= ElementType::kC128; }

constexpr bool is_floating(ElementType type) {
  return type == ElementType::kF16 || type == ElementType::kBF16 || type == ElementType::kF32 ||
         type == ElementType::kF64;
}

constexpr bool is_complex(ElementType type) {
  return type == ElementType::kC64 || type == ElementType::kC128;
}

// Returns the type of partial sums, also on the way between nodes.
constexpr ElementType accumulator_of(ElementType type) {
  return type == ElementType::kF16 || type == ElementType::kBF16 ? ElementType::kF32 : type;
}

}  // namespace ddprun
