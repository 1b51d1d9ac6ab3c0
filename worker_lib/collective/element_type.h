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

// By number.
struct ElementFacts {
  ElementType type;
  std::size_t bytes;
  const char* name;
};
inline constexpr ElementFacts kElementFacts[] = {
    {ElementType::kBool, 1, "bool"},
    {ElementType::kU8, 1, "u8"},
    {ElementType::kI8, 1, "i8"},
    {ElementType::kI16, 2, "i16"},
    {ElementType::kI32, 4, "i32"},
    {ElementType::kI64, 8, "i64"},
    {ElementType::kF16, 2, "f16"},
    {ElementType::kBF16, 2, "bf16"},
    {ElementType::kF32, 4, "f32"},
    {ElementType::kF64, 8, "f64"},
    {ElementType::kC64, 8, "c64"},
    {ElementType::kC128, 16, "c128"},
    {ElementType::kU16, 2, "u16"},
    {ElementType::kU32, 4, "u32"},
    {ElementType::kU64, 8, "u64"},
    {ElementType::kF8E5M2, 1, "f8e5m2"},
    {ElementType::kF8E4M3, 1, "f8e4m3"},
    {ElementType::kF8E5M2Fnuz, 1, "f8e5m2fnuz"},
    {ElementType::kF8E4M3Fnuz, 1, "f8e4m3fnuz"},
    {ElementType::kF8E8M0, 1, "f8e8m0"},
};
constexpr ElementFacts facts_of(ElementType type) {
  const auto at = static_cast<std::size_t>(type);
  const bool is_known = at < sizeof kElementFacts / sizeof kElementFacts[0];
  return is_known ? kElementFacts[at] : ElementFacts{type, 0, "?"};
}
constexpr bool is_in_order() {
  for (const ElementFacts& one : kElementFacts) {
    if (facts_of(one.type).type != one.type) return false;
  }
  return facts_of(ElementType::kF8E8M0).bytes > 0;
}
static_assert(is_in_order(), "the table has every type at its number");

constexpr std::size_t size_of(ElementType type) { return facts_of(type).bytes; }
constexpr const char* to_text(ElementType type) { return facts_of(type).name; }

// Returns whether the engine has operations for the type.
constexpr bool is_reducible(ElementType type) { return type <= ElementType::kC128; }

constexpr bool is_complex(ElementType type) {
  return type == ElementType::kC64 || type == ElementType::kC128;
}

// Returns the type of partial sums, also on the way between nodes.
constexpr ElementType accumulator_of(ElementType type) {
  return type == ElementType::kF16 || type == ElementType::kBF16 ? ElementType::kF32 : type;
}

}  // namespace ddprun
