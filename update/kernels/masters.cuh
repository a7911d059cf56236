// f32 to and from a rounded bf16 and a signed 16-bit remainder; see masters.cu.
#pragma once

__device__ __forceinline__ void split(float master, bf16& rounded, i16& remainder) {
    u32 bits = __float_as_uint(master), upper = (bits + 0x8000u) >> 16;
    rounded.bits = (unsigned short)upper;
    remainder = (i16)(bits - (upper << 16));
}

__device__ __forceinline__ float join(bf16 rounded, i16 remainder) {
    return __uint_as_float(((u32)rounded.bits << 16) + (u32)(int)remainder);
}
