#include "worker_lib/serialization/core/crc32.h"

#include <array>
#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddprun {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;  // bit 31 is x^0
constexpr std::size_t kSlices = 8;

// tables[k][b]: the remainder of byte b followed by k bytes of zeros.
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < kSlices; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  return tables;
}

constexpr Tables kTables = make_tables();

// Computes the remainder without the inversions at both ends.
std::uint32_t remainder_by_tables(const unsigned char* data, std::size_t bytes,
                                  std::uint32_t remainder) {
  for (; bytes >= kSlices; bytes -= kSlices, data += kSlices) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < kSlices; ++i) {
      const std::uint32_t mixed = i < 4 ? data[i] ^ ((remainder >> (8 * i)) & 0xff) : data[i];
      next ^= kTables[kSlices - 1 - i][mixed];
    }
    remainder = next;
  }
  for (; bytes > 0; --bytes, ++data)
    remainder = (remainder >> 8) ^ kTables[0][(remainder ^ *data) & 0xff];
  return remainder;
}

#if defined(__x86_64__)

bool multiplies_without_carry() {
  static const bool result = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return result;
}

// Moves 16 bytes on by the number of bits n of the factors, which are x^(n+32) and x^(n-32)
// modulo the polynomial, reflected.
__attribute__((target("pclmul,sse4.1"))) inline __m128i moved_on(__m128i value, __m128i factors) {
  return _mm_xor_si128(_mm_clmulepi64_si128(value, factors, 0x00),
                       _mm_clmulepi64_si128(value, factors, 0x11));
}

// Folds all blocks of 64 bytes into 16 bytes with the same remainder (V. Gopal et al., "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009). It works on
// four lanes at a time, because a multiplication takes several cycles. bytes: at least 64; the
// function advances data and bytes past what it has reduced.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t remainder_by_folding(
    const unsigned char*& data, std::size_t& bytes, std::uint32_t remainder) {
  const __m128i by_512_bits = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  const __m128i by_128_bits = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  const auto load = [](const unsigned char* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  __m128i lanes[4];
  for (int i = 0; i < 4; ++i) lanes[i] = load(data + 16 * i);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(remainder)));
  for (data += 64, bytes -= 64; bytes >= 64; data += 64, bytes -= 64)
    for (int i = 0; i < 4; ++i)
      lanes[i] = _mm_xor_si128(moved_on(lanes[i], by_512_bits), load(data + 16 * i));
  for (int i = 1; i < 4; ++i)
    lanes[i] = _mm_xor_si128(moved_on(lanes[i - 1], by_128_bits), lanes[i]);
  unsigned char folded[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(folded), lanes[3]);
  return remainder_by_tables(folded, sizeof folded, 0);
}

#endif

}  // namespace

std::uint32_t crc32_by_tables(std::string_view bytes, std::uint32_t so_far) {
  return ~remainder_by_tables(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                              ~so_far);
}

std::uint32_t crc32(std::string_view bytes, std::uint32_t so_far) {
#if defined(__x86_64__)
  if (bytes.size() >= 64 && multiplies_without_carry()) {
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    std::size_t left = bytes.size();
    const std::uint32_t remainder = remainder_by_folding(data, left, ~so_far);
    return ~remainder_by_tables(data, left, remainder);
  }
#endif
  return crc32_by_tables(bytes, so_far);
}

}  // namespace ddprun
