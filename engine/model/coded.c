/* Products with matrices that stay in the four or eight bits a weight of their file, in float32's precision.

   Knows one layout of a matrix, made by coded.py, and AVX-512 with VNNI. Must not know files, formats or layers.

   weight = code * scale + minimum, for each group of 32 along a row. Codes are small whole numbers, so a group of
   inputs is made whole as well, times the power of two that takes its largest to 2^21 or more: three planes of signed
   bytes. Its product with the codes is then exact in integers, and only the sum over groups is in float32, as it would
   be for any matrix.

   Layout: 16 rows of the matrix side by side make a block; for each block, for each group: the codes, four of a row
   lying together (eight such quads; in four bits, a byte holds the quads 2j and 2j + 1), then 16 scales and 16 minima in
   float16. No scale is zero. The last block is padded with zeros. */

#include <stdlib.h>

#include "vector.h"

#ifndef __AVX512VNNI__
#error "needs AVX-512 with VNNI"
#endif

enum { GROUP = 32, QUADS = GROUP / 4, PLANES = 3, TILE = 16 };

/* With codes up to 15, the product of a group whose inputs are below 2^22 fits 32 bits. Of groups whose largest is below
   2^-60 the scales might not be floats: they count as nothing. */
enum { BITS = 22, SMALLEST = -60, BIAS = 127, MANTISSA_BITS = 23 };

/* A group of one row's inputs, each the sum of byte[p] * 256^(2 - p), times 2^power: the bytes of four lie together, and
   so do their three planes, behind which are four bytes that nobody reads. `power` is as it is added to the exponent of a
   float; `sum` is that of all inputs. */
typedef struct {
    int32_t quads[QUADS][PLANES + 1];
    int32_t power;
    float sum;
} Inputs;

/* Signed bytes of 16 numbers, four numbers to a quad. */
static inline void split(__m512i whole, int32_t *quads)
{
    const __m512i middles = _mm512_set1_epi32(0x808080);
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, 3, 7, 11, 15));
    const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(whole, middles), middles);
    _mm512_storeu_si512(quads, _mm512_shuffle_epi8(bytes, order));
}

static inline __m512 two_to_the(int power)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((BIAS + power) << MANTISSA_BITS));
}

static inline void make_whole(const float *values, Inputs *made)
{
    const __m512 first = _mm512_loadu_ps(values), second = _mm512_loadu_ps(values + LANES);
    const __m512 most = _mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second));
    /* Floats that are not negative are in the order of their bits. */
    const int exponent = (_mm512_reduce_max_epi32(_mm512_castps_si512(most)) >> MANTISSA_BITS) - BIAS + 1;
    const int power = exponent > SMALLEST ? exponent - BITS : 0;
    const __m512 factor = exponent > SMALLEST ? two_to_the(-power) : _mm512_setzero_ps();
    const __m512i one = _mm512_cvtps_epi32(_mm512_mul_ps(first, factor));
    const __m512i two = _mm512_cvtps_epi32(_mm512_mul_ps(second, factor));
    split(one, made->quads[0]);
    split(two, made->quads[QUADS / 2]);
    made->power = power * (1 << MANTISSA_BITS);
    const __m512 sum = _mm512_set1_ps((float)_mm512_reduce_add_epi32(_mm512_add_epi32(one, two)));
    made->sum = _mm512_cvtss_f32(_mm512_mul_ps(sum, two_to_the(power)));
}

static ALWAYS_INLINE __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

/* Adds to the sums of `count` rows what one group gives. Several at once: the processor waits less for each chain. */
static ALWAYS_INLINE void add_group(
    const int bits, const int count, const __m512i *codes, __m512 scales, __m512 minima, const Inputs *inputs,
    __m512 *sums)
{
    __m512i products[2][PLANES];
    for (int row = 0; row < count; row++)
        for (int plane = 0; plane < PLANES; plane++)
            products[row][plane] = _mm512_setzero_si512();
    for (int quad = 0; quad < QUADS; quad++)
        for (int plane = 0; plane < PLANES; plane++)
            for (int row = 0; row < count; row++) {
                const __m512i quads = _mm512_set1_epi32(inputs[row].quads[quad][plane]);
                products[row][plane] = _mm512_dpbusd_epi32(products[row][plane], codes[quad], quads);
            }
    for (int row = 0; row < count; row++) {
        __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(products[row][0], 8), products[row][1]);
        __m512i lower = products[row][2];
        __m512 product = bits == 4
            ? _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower))
            : _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(lower));
        __m512 scale = _mm512_castsi512_ps(
            _mm512_add_epi32(_mm512_castps_si512(scales), _mm512_set1_epi32(inputs[row].power)));
        __m512 sum = _mm512_fmadd_ps(minima, _mm512_set1_ps(inputs[row].sum), sums[row]);
        sums[row] = _mm512_fmadd_ps(product, scale, sum);
    }
}

/* Of one block with a tile of rows; `inputs` lie group by group. */
static ALWAYS_INLINE void multiply(
    const uint8_t *block, const int bits, const Inputs *inputs, long num_groups, long num_rows, __m512 *sums)
{
    const __m512i nibble = _mm512_set1_epi8(0x0F);
    for (long row = 0; row < num_rows; row++)
        sums[row] = _mm512_setzero_ps();
    for (long group = 0; group < num_groups; group++, inputs += num_rows) {
        __m512i codes[QUADS];
        for (int quad = 0; quad < QUADS; quad += 8 / bits, block += 64) {
            codes[quad] = _mm512_loadu_si512(block);
            if (bits == 4) {
                codes[quad + 1] = _mm512_and_si512(_mm512_srli_epi16(codes[quad], 4), nibble);
                codes[quad] = _mm512_and_si512(codes[quad], nibble);
            }
        }
        const __m512 scales = halves(block), minima = halves(block + 32);
        block += 64;
        long row = 0;
        for (; row + 2 <= num_rows; row += 2)
            add_group(bits, 2, codes, scales, minima, inputs + row, sums + row);
        if (row < num_rows)
            add_group(bits, 1, codes, scales, minima, inputs + row, sums + row);
    }
}

static Inputs *room_for(long num_inputs)
{
    static _Thread_local Inputs *room;
    static _Thread_local long size;
    if (num_inputs > size) {
        free(room);
        room = malloc((size_t)num_inputs * sizeof(Inputs));
        size = room ? num_inputs : 0;
    }
    return room;
}

/* outputs[rows][num_outputs] = inputs[rows][32 * num_groups] times the matrix. 0, or 1 where memory is short. */
int multiply_coded(const uint8_t *matrix, int bits, const float *inputs, float *outputs, long num_rows,
                    long num_groups, long num_outputs, int num_threads)
{
    const long num_blocks = (num_outputs + LANES - 1) / LANES;
    const long block_bytes = num_groups * (64 * bits + 64);
    Inputs *made = room_for(num_rows * num_groups);
    if (!made)
        return 1;
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(static)
        for (long row = 0; row < num_rows; row++) {
            const long first = row / TILE * TILE;
            const long tile_rows = num_rows - first < TILE ? num_rows - first : TILE;
            for (long group = 0; group < num_groups; group++)
                make_whole(inputs + (row * num_groups + group) * GROUP,
                           made + first * num_groups + group * tile_rows + row - first);
        }
        for (long first = 0; first < num_rows; first += TILE) {
            const long tile_rows = num_rows - first < TILE ? num_rows - first : TILE;
#pragma omp for schedule(static) nowait
            for (long block = 0; block < num_blocks; block++) {
                const uint8_t *codes = matrix + block * block_bytes;
                const long left = num_outputs - block * LANES;
                const __mmask16 lanes = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xFFFF;
                __m512 sums[TILE];
                if (bits == 4)
                    multiply(codes, 4, made + first * num_groups, num_groups, tile_rows, sums);
                else
                    multiply(codes, 8, made + first * num_groups, num_groups, tile_rows, sums);
                for (long row = 0; row < tile_rows; row++)
                    _mm512_mask_storeu_ps(outputs + (first + row) * num_outputs + block * LANES, lanes, sums[row]);
            }
        }
    }
    return 0;
}
