#include "tests/worker_lib/cpu_group/reference.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>

namespace ddprun {
namespace {

// f16 and bf16 by arithmetic instead of bits: exact powers of two and std::nearbyint.
struct Half {
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
  static constexpr std::uint16_t kNan = 0x7e00;
};
struct Brain {
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
  static constexpr std::uint16_t kNan = 0x7fc0;
};

template <class Format>
float decode(std::uint16_t bits) {
  constexpr int kBias = (1 << (Format::kExponentBits - 1)) - 1;
  const int exponent = (bits >> Format::kMantissaBits) & ((1 << Format::kExponentBits) - 1);
  const int mantissa = bits & ((1 << Format::kMantissaBits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << Format::kExponentBits) - 1) {
    return mantissa ? std::numeric_limits<float>::quiet_NaN()
                    : static_cast<float>(sign * std::numeric_limits<double>::infinity());
  }
  const double fraction = std::ldexp(mantissa, -Format::kMantissaBits) + (exponent ? 1 : 0);
  return static_cast<float>(sign * std::ldexp(fraction, std::max(exponent, 1) - kBias));
}

template <class Format>
std::uint16_t encode(float value) {
  constexpr int kBias = (1 << (Format::kExponentBits - 1)) - 1;
  constexpr int kInfinity = ((1 << Format::kExponentBits) - 1) << Format::kMantissaBits;
  if (std::isnan(value)) return Format::kNan;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | kInfinity);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, 1 - kBias);
  const double units = std::nearbyint(std::ldexp(magnitude, Format::kMantissaBits - exponent));
  // A carry out of the mantissa runs into the exponent. This is correct rounding up.
  const auto code = static_cast<std::int64_t>(units) +
                    (static_cast<std::int64_t>(exponent + kBias - 1) << Format::kMantissaBits);
  return static_cast<std::uint16_t>(sign | std::min<std::int64_t>(code, kInfinity));
}

template <class T>
T apply(T a, T b, ReduceOp op) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg: return a + b;
      case ReduceOp::kProduct: return a * b;
      case ReduceOp::kMin: return std::isnan(a) ? a : std::isnan(b) ? b : b < a ? b : a;
      case ReduceOp::kMax: return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? b : a;
      default: return a;
    }
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::kSum: return static_cast<T>(x + y);
      case ReduceOp::kProduct: return static_cast<T>(x * y);
      case ReduceOp::kMin: return std::min(a, b);
      case ReduceOp::kMax: return std::max(a, b);
      case ReduceOp::kBitAnd: return static_cast<T>(x & y);
      case ReduceOp::kBitOr: return static_cast<T>(x | y);
      case ReduceOp::kBitXor: return static_cast<T>(x ^ y);
      default: return a;
    }
  }
}

template <class T>
T load(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(Bytes& bytes, std::size_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}

Bytes repeat(Bytes bytes, std::size_t size) {
  const std::size_t period = bytes.size();
  bytes.resize(size);
  for (std::size_t at = period; at < size; at += period) {
    std::memcpy(bytes.data() + at, bytes.data(), std::min(period, size - at));
  }
  return bytes;
}

// Reduces in the documented order: over the ranks of each node, then over the nodes.
template <class Element, class Accumulator, class Decode, class Encode>
Bytes reduce(const std::string& letters, const std::vector<Bytes>& by_rank, ReduceOp op,
             Decode decode_one, Encode encode_one) {
  Bytes result(std::min(by_rank[0].size(), kPeriod * sizeof(Element)));
  std::vector<std::vector<std::size_t>> nodes;
  std::map<char, std::size_t> node_of;
  for (std::size_t rank = 0; rank < letters.size(); ++rank) {
    const auto [entry, is_new] = node_of.try_emplace(letters[rank], nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[entry->second].push_back(rank);
  }
  for (std::size_t i = 0; i < result.size() / sizeof(Element); ++i) {
    Accumulator total{};
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      Accumulator partial = decode_one(load<Element>(by_rank[nodes[node][0]], i));
      for (std::size_t k = 1; k < nodes[node].size(); ++k) {
        partial =
            apply<Accumulator>(partial, decode_one(load<Element>(by_rank[nodes[node][k]], i)), op);
      }
      total = node == 0 ? partial : apply<Accumulator>(total, partial, op);
    }
    if (op == ReduceOp::kAvg)
      total = static_cast<Accumulator>(total / static_cast<Accumulator>(letters.size()));
    store(result, i, encode_one(total));
  }
  return repeat(result, by_rank[0].size());
}

template <class T>
Bytes reduce_plain(const std::string& letters, const std::vector<Bytes>& by_rank, ReduceOp op) {
  const auto same = [](T value) { return value; };
  return reduce<T, T>(letters, by_rank, op, same, same);
}

ReduceOp as_bitwise(ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMax) return ReduceOp::kBitOr;
  if (op == ReduceOp::kProduct || op == ReduceOp::kMin) return ReduceOp::kBitAnd;
  return op;
}

float random_float(Rng& rng) {
  if (rng.chance(0.01)) return 0;
  const double sign = rng.chance(0.5) ? 1 : -1;
  const double mantissa = 1 + static_cast<double>(rng.below(1 << 23)) / (1 << 23);
  return static_cast<float>(sign * std::ldexp(mantissa, static_cast<int>(rng.below(12)) - 6));
}

bool is_floating(ElementType type) {
  return type == ElementType::kF16 || type == ElementType::kBF16 || type == ElementType::kF32 ||
         type == ElementType::kF64;
}

}  // namespace

bool is_defined(ElementType type, ReduceOp op) {
  const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  if (is_complex(type)) return op == ReduceOp::kSum || op == ReduceOp::kAvg;
  return is_floating(type) ? !bitwise : op != ReduceOp::kAvg;
}

Bytes random_elements(Rng& rng, ElementType type, std::size_t count) {
  if (type == ElementType::kC64) return random_elements(rng, ElementType::kF32, 2 * count);
  if (type == ElementType::kC128) return random_elements(rng, ElementType::kF64, 2 * count);
  Bytes bytes(std::min(count, kPeriod) * size_of(type));
  for (std::size_t i = 0; i < std::min(count, kPeriod); ++i) {
    switch (type) {
      case ElementType::kBool: store(bytes, i, static_cast<std::uint8_t>(rng.below(2))); break;
      case ElementType::kU8:
      case ElementType::kI8: store(bytes, i, static_cast<std::uint8_t>(rng.next())); break;
      case ElementType::kI16: store(bytes, i, static_cast<std::uint16_t>(rng.next())); break;
      case ElementType::kI32: store(bytes, i, static_cast<std::uint32_t>(rng.next())); break;
      case ElementType::kI64: store(bytes, i, rng.next()); break;
      case ElementType::kF16: store(bytes, i, encode<Half>(random_float(rng))); break;
      case ElementType::kBF16: store(bytes, i, encode<Brain>(random_float(rng))); break;
      case ElementType::kF32: store(bytes, i, random_float(rng)); break;
      case ElementType::kF64:
        store(bytes, i, static_cast<double>(random_float(rng)) * (1 + 0x1p-40));
        break;
      case ElementType::kC64:
      case ElementType::kC128: break;  // see above
      default: break;                  // cannot be reduced
    }
  }
  return repeat(bytes, count * size_of(type));
}

std::uint16_t round_by_arithmetic(ElementType type, float value) {
  return type == ElementType::kF16 ? encode<Half>(value) : encode<Brain>(value);
}

Bytes reference_reduction(const std::string& letters, const std::vector<Bytes>& by_rank,
                          ElementType type, ReduceOp op) {
  switch (type) {
    case ElementType::kBool: return reduce_plain<std::uint8_t>(letters, by_rank, as_bitwise(op));
    case ElementType::kU8: return reduce_plain<std::uint8_t>(letters, by_rank, op);
    case ElementType::kI8: return reduce_plain<std::int8_t>(letters, by_rank, op);
    case ElementType::kI16: return reduce_plain<std::int16_t>(letters, by_rank, op);
    case ElementType::kI32: return reduce_plain<std::int32_t>(letters, by_rank, op);
    case ElementType::kI64: return reduce_plain<std::int64_t>(letters, by_rank, op);
    case ElementType::kC64:  // part by part
    case ElementType::kF32: return reduce_plain<float>(letters, by_rank, op);
    case ElementType::kC128:
    case ElementType::kF64: return reduce_plain<double>(letters, by_rank, op);
    case ElementType::kF16:
      return reduce<std::uint16_t, float>(letters, by_rank, op, decode<Half>, encode<Half>);
    case ElementType::kBF16:
      return reduce<std::uint16_t, float>(letters, by_rank, op, decode<Brain>, encode<Brain>);
    default: return {};  // cannot be reduced
  }
}

}  // namespace ddprun
