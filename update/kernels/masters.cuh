// f32 to and from a rounded value and its remainder; see masters.cu. A value half way between two bf16 is rounded away from
// zero, as in publishing.
#pragma once

__device__ __forceinline__ u32 upper_half(float master) { return (__float_as_uint(master) + 0x8000u) >> 16; }

__device__ __forceinline__ void split(float master, bf16& rounded, i16& remainder, int) {
    u32 upper = upper_half(master);
    rounded.bits = (unsigned short)upper;
    remainder = (i16)(__float_as_uint(master) - (upper << 16));
}

__device__ __forceinline__ float join(bf16 rounded, i16 remainder) {
    return __uint_as_float(((u32)rounded.bits << 16) + (u32)(int)remainder);
}

__device__ __forceinline__ void split(float master, f16& rounded, float& remainder, int narrow) {
    rounded = to_f16(narrow ? __uint_as_float(upper_half(master) << 16) : master);
    remainder = master;
}

__device__ __forceinline__ float join(f16, float remainder) { return remainder; }
