#include "worker_lib/cpu_kernels/stream_copy.h"

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ddprun {

#if defined(__SSE2__)

namespace {
constexpr std::size_t kLine = 64;
}

void stream_bytes(void* to, const void* from, std::size_t bytes) {
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (bytes < head + kLine) return copy_bytes(to, from, bytes);
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  copy_bytes(out, in, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    __m128i words[4];
    for (int i = 0; i < 4; ++i) {
      words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at) + i);
    }
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + at) + i, words[i]);
    }
  }
  _mm_sfence();
  copy_bytes(out + at, in + at, bytes - at);
}

#else

void stream_bytes(void* to, const void* from, std::size_t bytes) { copy_bytes(to, from, bytes); }

#endif

}  // namespace ddprun
