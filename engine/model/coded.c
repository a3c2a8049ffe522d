/* Products with matrices that stay in the four or eight bits a weight of their file, in float32's precision.

   Knows one layout of a matrix, made by coded.py, and AVX-512 with VNNI. Must not know files, formats or layers.

   weight = code * scale + minimum, for each group of 32 along a row. Codes are small whole numbers, so a group of
   inputs is made whole as well: its largest becomes 2^22, in three planes of signed bytes. Its product with the codes is
   then exact in integers, and only the sum over groups is in float32, as it would be for any matrix.

   Layout: 16 rows of the matrix side by side make a block; for each block, for each group: the codes, four of a row
   lying together (eight such quads; in four bits, a byte holds the quads 2j and 2j + 1), then 16 scales and 16 minima in
   float16. The last block is padded with zeros. */

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef __AVX512VNNI__
#error "needs AVX-512 with VNNI"
#endif

enum { GROUP = 32, LANES = 16, QUADS = GROUP / 4, PLANES = 3, TILE = 32 };

/* With codes up to 15, a group's product then fits 32 bits. */
static const float LARGEST = 4194304.0f;

/* A group of one row's inputs: sum of plane[p][k] * 256^(2 - p), times scale. `sum` is that of all of them. */
typedef struct {
    int8_t plane[PLANES][GROUP];
    float scale;
    float sum;
} Inputs;

static void split(__m512i whole, int8_t *upper, int8_t *middle, int8_t *lower)
{
    __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(whole, 24), 24);
    __m512i rest = _mm512_srai_epi32(_mm512_sub_epi32(whole, low), 8);
    __m512i mid = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
    __m512i high = _mm512_srai_epi32(_mm512_sub_epi32(rest, mid), 8);
    _mm_storeu_si128((__m128i *)upper, _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128((__m128i *)middle, _mm512_cvtepi32_epi8(mid));
    _mm_storeu_si128((__m128i *)lower, _mm512_cvtepi32_epi8(low));
}

static void make_whole(const float *values, Inputs *made)
{
    __m512 first = _mm512_loadu_ps(values), second = _mm512_loadu_ps(values + LANES);
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
    /* Of smaller ones the quotient may be infinite: they count as nothing. */
    __m512 factor = _mm512_set1_ps(most > 1e-30f ? LARGEST / most : 0);
    __m512i one = _mm512_cvtps_epi32(_mm512_mul_ps(first, factor));
    __m512i two = _mm512_cvtps_epi32(_mm512_mul_ps(second, factor));
    split(one, made->plane[0], made->plane[1], made->plane[2]);
    split(two, made->plane[0] + LANES, made->plane[1] + LANES, made->plane[2] + LANES);
    made->scale = most / LARGEST;
    made->sum = made->scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(one, two));
}

static inline __attribute__((always_inline)) __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

/* Adds to the sums of `count` rows what one group gives. Several at once: the processor waits less for each chain. */
static inline __attribute__((always_inline)) void add_group(
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
                const int32_t *quads = (const int32_t *)inputs[row].plane[plane];
                products[row][plane] =
                    _mm512_dpbusd_epi32(products[row][plane], codes[quad], _mm512_set1_epi32(quads[quad]));
            }
    for (int row = 0; row < count; row++) {
        __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(products[row][0], 8), products[row][1]);
        __m512i lower = products[row][2];
        __m512 product = bits == 4
            ? _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower))
            : _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(lower));
        __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(inputs[row].scale));
        __m512 sum = _mm512_fmadd_ps(minima, _mm512_set1_ps(inputs[row].sum), sums[row]);
        sums[row] = _mm512_fmadd_ps(product, scale, sum);
    }
}

/* Of one block with a tile of rows; `inputs` lie group by group. */
static inline __attribute__((always_inline)) void multiply(
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
#pragma omp for schedule(static)
        for (long block = 0; block < num_blocks; block++) {
            const uint8_t *codes = matrix + block * block_bytes;
            const long left = num_outputs - block * LANES;
            const __mmask16 lanes = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xFFFF;
            for (long first = 0; first < num_rows; first += TILE) {
                const long tile_rows = num_rows - first < TILE ? num_rows - first : TILE;
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
