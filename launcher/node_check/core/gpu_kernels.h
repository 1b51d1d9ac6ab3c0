// The programs that check a GPU, in PTX, which each driver since CUDA 9 compiles for GPUs since
// sm_50. All numbers are whole, so each GPU gives the same results.
//
// Constant; any thread.
#pragma once

namespace ddprun {

// multiply() needs a grid of kMatrixSide blocks of kMatrixSide threads: work for all
// multiprocessors. The others need a thread for each word.
inline constexpr unsigned kMatrixSide = 256;
inline constexpr unsigned kMatrixDepth = 64;

// fill(words, count, mask): words[i] = i * 2654435761 ^ mask.
// count_wrong(words, count, mask, wrong): adds to *wrong how many words are not what fill() writes.
// multiply(left, right, product, depth): the product of two matrices of u32, modulo 2^32. The rows
// of `left` and the columns of `right` have `depth` words.
inline constexpr const char* kGpuKernels = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry fill(.param .u64 words, .param .u32 count, .param .u32 mask)
{
  .reg .pred %p<1>;
  .reg .b32 %r<7>;
  .reg .b64 %rd<2>;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  ld.param.u32 %r4, [count];
  setp.ge.u32 %p0, %r3, %r4;
  @%p0 bra done;
  mul.lo.u32 %r5, %r3, 2654435761;
  ld.param.u32 %r6, [mask];
  xor.b32 %r5, %r5, %r6;
  ld.param.u64 %rd0, [words];
  cvta.to.global.u64 %rd0, %rd0;
  mul.wide.u32 %rd1, %r3, 4;
  add.u64 %rd0, %rd0, %rd1;
  st.global.u32 [%rd0], %r5;
done:
  ret;
}

.visible .entry count_wrong(.param .u64 words, .param .u32 count, .param .u32 mask,
                            .param .u64 wrong)
{
  .reg .pred %p<1>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<2>;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  ld.param.u32 %r4, [count];
  setp.ge.u32 %p0, %r3, %r4;
  @%p0 bra done;
  mul.lo.u32 %r5, %r3, 2654435761;
  ld.param.u32 %r6, [mask];
  xor.b32 %r5, %r5, %r6;
  ld.param.u64 %rd0, [words];
  cvta.to.global.u64 %rd0, %rd0;
  mul.wide.u32 %rd1, %r3, 4;
  add.u64 %rd0, %rd0, %rd1;
  ld.global.u32 %r7, [%rd0];
  setp.eq.u32 %p0, %r7, %r5;
  @%p0 bra done;
  ld.param.u64 %rd0, [wrong];
  cvta.to.global.u64 %rd0, %rd0;
  red.global.add.u32 [%rd0], 1;
done:
  ret;
}

.visible .entry multiply(.param .u64 left, .param .u64 right, .param .u64 product,
                         .param .u32 depth)
{
  .reg .pred %p<1>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<5>;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  ld.param.u32 %r8, [depth];
  mul.lo.u32 %r3, %r0, %r8;
  ld.param.u64 %rd0, [left];
  cvta.to.global.u64 %rd0, %rd0;
  mul.wide.u32 %rd3, %r3, 4;
  add.u64 %rd0, %rd0, %rd3;
  ld.param.u64 %rd1, [right];
  cvta.to.global.u64 %rd1, %rd1;
  mul.wide.u32 %rd3, %r2, 4;
  add.u64 %rd1, %rd1, %rd3;
  mul.wide.u32 %rd4, %r1, 4;
  mov.u32 %r4, 0;
  mov.u32 %r5, 0;
next:
  ld.global.u32 %r6, [%rd0];
  ld.global.u32 %r7, [%rd1];
  mad.lo.u32 %r4, %r6, %r7, %r4;
  add.u64 %rd0, %rd0, 4;
  add.u64 %rd1, %rd1, %rd4;
  add.u32 %r5, %r5, 1;
  setp.lt.u32 %p0, %r5, %r8;
  @%p0 bra next;
  ld.param.u64 %rd2, [product];
  cvta.to.global.u64 %rd2, %rd2;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  mul.wide.u32 %rd3, %r3, 4;
  add.u64 %rd2, %rd2, %rd3;
  st.global.u32 [%rd2], %r4;
  ret;
}
)";

}  // namespace ddprun
