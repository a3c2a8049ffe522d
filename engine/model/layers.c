/* What stands between the matrices of a transformer's layer, in float32: each in one pass over memory.

   Knows AVX-512, and that a token's heads lie together. Must not know weights, attention or scheduling. Sizes, and the
   halves of heads, are whole registers. */

#include <string.h>

#include "vector.h"

/* Fewer rows are done before a second thread is awake. */
enum { WORTH_SHARING = 16 };

#define ROWS_IN_PARALLEL _Pragma("omp parallel for schedule(static) num_threads(num_threads) if (num_rows >= WORTH_SHARING)")

/* outputs = inputs / sqrt(sum(inputs^2) + floor) * scale, row by row. */
int normalise(const float *inputs, const float *scale, const float *floor, float *outputs, long num_rows, long size,
              int num_threads)
{
    ROWS_IN_PARALLEL
    for (long row = 0; row < num_rows; row++) {
        const float *from = inputs + row * size;
        __m512 squares = _mm512_setzero_ps();
        for (long at = 0; at < size; at += LANES)
            squares = _mm512_fmadd_ps(_mm512_loadu_ps(from + at), _mm512_loadu_ps(from + at), squares);
        const __m512 factor = _mm512_set1_ps(1 / __builtin_sqrtf(_mm512_reduce_add_ps(squares) + *floor));
        for (long at = 0; at < size; at += LANES) {
            const __m512 normal = _mm512_mul_ps(_mm512_loadu_ps(from + at), factor);
            _mm512_storeu_ps(outputs + row * size + at, _mm512_mul_ps(normal, _mm512_loadu_ps(scale + at)));
        }
    }
    return 0;
}

/* outputs[rows][size] = silu of the first half of inputs[rows][2 * size], times the second half. */
int gate(const float *inputs, float *outputs, long num_rows, long size, int num_threads)
{
    ROWS_IN_PARALLEL
    for (long row = 0; row < num_rows; row++)
        for (long at = 0; at < size; at += LANES) {
            const __m512 first = _mm512_loadu_ps(inputs + row * 2 * size + at);
            const __m512 second = _mm512_loadu_ps(inputs + row * 2 * size + size + at);
            const __m512 power = power_of_two(_mm512_mul_ps(first, _mm512_set1_ps(-LOG2_E)));
            const __m512 silu = _mm512_div_ps(first, _mm512_add_ps(_mm512_set1_ps(1), power));
            _mm512_storeu_ps(outputs + row * size + at, _mm512_mul_ps(silu, second));
        }
    return 0;
}

/* Turns the heads of each row in place, pairs being a head's two halves. A row of angles, 2 * half floats, has the
   cosines, or the sines, in its second half. Rows of heads are `stride` floats apart. */
int turn(float *heads, long stride, const float *cosines, const float *sines, long num_rows, long num_heads, long half,
         int num_threads)
{
    ROWS_IN_PARALLEL
    for (long row = 0; row < num_rows; row++)
        for (long at = 0; at < half; at += LANES) {
            const __m512 cosine = _mm512_loadu_ps(cosines + (2 * row + 1) * half + at);
            const __m512 sine = _mm512_loadu_ps(sines + (2 * row + 1) * half + at);
            float *first = heads + row * stride + at;
            for (long head = 0; head < num_heads; head++, first += 2 * half) {
                const __m512 real = _mm512_loadu_ps(first), other = _mm512_loadu_ps(first + half);
                _mm512_storeu_ps(first, _mm512_fnmadd_ps(other, sine, _mm512_mul_ps(real, cosine)));
                _mm512_storeu_ps(first + half, _mm512_fmadd_ps(real, sine, _mm512_mul_ps(other, cosine)));
            }
        }
    return 0;
}

/* Copies each row's heads to their places, counted in heads, in `cache`. Rows are `stride` floats apart. */
int store(const float *heads, long stride, float *cache, const int64_t *places, long num_rows, long num_heads, long size,
          int num_threads)
{
    ROWS_IN_PARALLEL
    for (long row = 0; row < num_rows; row++)
        for (long head = 0; head < num_heads; head++)
            memcpy(cache + places[row * num_heads + head] * size, heads + row * stride + head * size,
                   (size_t)size * sizeof(float));
    return 0;
}
