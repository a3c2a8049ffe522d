/* What the functions of this folder share: registers of 16 floats. Needs AVX-512. */

#pragma once
#include <immintrin.h>
#include <stdint.h>

#ifndef __AVX512F__
#error "needs AVX-512"
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum { LANES = 16 };

static const float LOG2_E = 1.44269504f;

/* 2^x, to about one unit in the last place; 0 from -126 on down. */
static ALWAYS_INLINE __m512 power_of_two(__m512 x)
{
    const __mmask16 is_large = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
    const __m512 whole = _mm512_roundscale_ps(x, 0), rest = _mm512_sub_ps(x, whole);
    __m512 sum = _mm512_set1_ps(1.535336188e-4f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.339887440e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(9.618437358e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.550332471e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(2.402264791e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.931472029e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(is_large, sum, whole);
}
