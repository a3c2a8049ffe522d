/* Attention of many tokens of a sequence over keys and values where they lie in the cache, in float32.

   Knows how a block lies in memory (kv_cache.py) and AVX-512. Must not know weights, layers or scheduling.

   A tile is some queries of one sequence, each for all heads that share keys and values: its rows. The keys are taken 64
   at a time, turned so that one register is 16 keys; six rows are in registers at once. The softmax goes along: what was
   found before is scaled down when a larger score comes. */

#include "vector.h"

enum { BLOCK = 16, MOST_ROWS = 96, MOST_SIZE = 256, KEYS = 64, BLOCKS = KEYS / BLOCK, ROWS = 6, PIECES = 4 };

/* Queries from `row` on of the batch, whose tokens are those from `position` on, counted from the begin of the first of
   their blocks; these begin at `blocks`. */
typedef struct {
    int64_t row, num_queries, position, blocks;
} Tile;

/* What a row asks and finds: its query, the weighted values, the largest score, and the sum of weights lane by lane. It
   sees the tokens `first` to before `last`. */
typedef struct {
    const float *query;
    float *values;
    float most;
    long first, last;
    __m512 weights;
} Row;

/* Keys of one block, [BLOCK][size], to [size][KEYS]. */
static void turn(const float *keys, float *turned, long size)
{
    for (long at = 0; at < size; at += LANES) {
        __m512 one[LANES], two[LANES];
        for (int key = 0; key < BLOCK; key++)
            one[key] = _mm512_loadu_ps(keys + key * size + at);
        for (int key = 0; key < BLOCK; key += 2) {
            two[key] = _mm512_unpacklo_ps(one[key], one[key + 1]);
            two[key + 1] = _mm512_unpackhi_ps(one[key], one[key + 1]);
        }
        /* Four keys together: one[4 i + j] has those of the numbers j, 4 + j, 8 + j, 12 + j. */
        for (int key = 0; key < BLOCK; key += 4)
            for (int half = 0; half < 2; half++) {
                const __m512d low = _mm512_castps_pd(two[key + half]), high = _mm512_castps_pd(two[key + 2 + half]);
                one[key + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                one[key + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
            }
        for (int number = 0; number < 4; number++) {
            const __m512 front_low = _mm512_shuffle_f32x4(one[number], one[4 + number], 0x88);
            const __m512 front_high = _mm512_shuffle_f32x4(one[number], one[4 + number], 0xDD);
            const __m512 back_low = _mm512_shuffle_f32x4(one[8 + number], one[12 + number], 0x88);
            const __m512 back_high = _mm512_shuffle_f32x4(one[8 + number], one[12 + number], 0xDD);
            float *out = turned + (at + number) * KEYS;
            _mm512_storeu_ps(out, _mm512_shuffle_f32x4(front_low, back_low, 0x88));
            _mm512_storeu_ps(out + 4 * KEYS, _mm512_shuffle_f32x4(front_high, back_high, 0x88));
            _mm512_storeu_ps(out + 8 * KEYS, _mm512_shuffle_f32x4(front_low, back_low, 0xDD));
            _mm512_storeu_ps(out + 12 * KEYS, _mm512_shuffle_f32x4(front_high, back_high, 0xDD));
        }
    }
}

/* Of each row with the keys of `num_blocks`, times `scale`. */
static ALWAYS_INLINE void score(
    const Row *rows, const float *turned, long size, float scale, const int num_blocks, float scores[ROWS][KEYS])
{
    __m512 sums[ROWS][BLOCKS];
    for (int row = 0; row < ROWS; row++)
        for (int block = 0; block < num_blocks; block++)
            sums[row][block] = _mm512_setzero_ps();
    for (long at = 0; at < size; at++, turned += KEYS)
        for (int row = 0; row < ROWS; row++) {
            const __m512 query = _mm512_set1_ps(rows[row].query[at]);
            for (int block = 0; block < num_blocks; block++)
                sums[row][block] = _mm512_fmadd_ps(query, _mm512_loadu_ps(turned + block * BLOCK), sums[row][block]);
        }
    for (int row = 0; row < ROWS; row++)
        for (int block = 0; block < num_blocks; block++)
            _mm512_storeu_ps(scores[row] + block * BLOCK, _mm512_mul_ps(sums[row][block], _mm512_set1_ps(scale)));
}

/* Those of the 16 keys from `begin` on that are before `end`. */
static inline __mmask16 before(long end, long begin)
{
    const long count = end - begin;
    return count <= 0 ? 0 : count >= LANES ? (__mmask16)0xFFFF : (__mmask16)((1u << count) - 1);
}

/* Scores of the keys from `begin` on become weights. Gives what earlier values count now. */
static ALWAYS_INLINE float weigh(Row *row, float *scores, long begin, int num_blocks)
{
    const __m512 nothing = _mm512_set1_ps(-__builtin_inff());
    __m512 most = _mm512_set1_ps(row->most), sums = _mm512_setzero_ps();
    for (int block = 0; block < num_blocks; block++) {
        const long start = begin + block * BLOCK;
        const __mmask16 seen = before(row->last, start) & ~before(row->first, start);
        const __m512 seen_scores = _mm512_mask_loadu_ps(nothing, seen, scores + block * BLOCK);
        _mm512_storeu_ps(scores + block * BLOCK, seen_scores);
        most = _mm512_max_ps(most, seen_scores);
    }
    const float largest = _mm512_reduce_max_ps(most);
    /* A row that has seen nothing yet: its weights are nothing too. */
    most = _mm512_set1_ps(largest == -__builtin_inff() ? 0 : largest);
    for (int block = 0; block < num_blocks; block++) {
        const __m512 weights = power_of_two(_mm512_sub_ps(_mm512_loadu_ps(scores + block * BLOCK), most));
        _mm512_storeu_ps(scores + block * BLOCK, weights);
        sums = _mm512_add_ps(sums, weights);
    }
    const __m512 shrink = power_of_two(_mm512_sub_ps(_mm512_set1_ps(row->most), most));
    row->weights = _mm512_fmadd_ps(row->weights, shrink, sums);
    row->most = largest;
    return _mm512_cvtss_f32(shrink);
}

/* Adds to `num_pieces` registers of each row's values those of the tokens `first` to before `last` of the tile. */
static ALWAYS_INLINE void add_values(
    const Row *rows, int num_rows, const float *const *values, long size, long at, const int num_pieces,
    float weights[ROWS][KEYS], const float *shrink, long first, long last)
{
    __m512 sums[ROWS][PIECES];
    for (int row = 0; row < ROWS; row++)
        for (int piece = 0; piece < num_pieces; piece++)
            sums[row][piece] = _mm512_mul_ps(
                _mm512_loadu_ps(rows[row].values + at + piece * LANES), _mm512_set1_ps(shrink[row]));
    for (long token = first; token < last; token++) {
        const float *value = values[token / BLOCK] + token % BLOCK * size + at;
        for (int row = 0; row < ROWS; row++) {
            const __m512 weight = _mm512_set1_ps(weights[row][token]);
            for (int piece = 0; piece < num_pieces; piece++)
                sums[row][piece] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(value + piece * LANES), sums[row][piece]);
        }
    }
    for (int row = 0; row < num_rows; row++)
        for (int piece = 0; piece < num_pieces; piece++)
            _mm512_storeu_ps(rows[row].values + at + piece * LANES, sums[row][piece]);
}

/* Up to six rows, of which the last is repeated where there are fewer, with the keys from `begin` on. */
static void attend(Row *rows, int num_rows, const float *turned, const float *const *values, long size, float scale,
                   long begin)
{
    const long first = rows[0].first > begin ? rows[0].first - begin : 0;
    const long last = rows[num_rows - 1].last - begin < KEYS ? rows[num_rows - 1].last - begin : KEYS;
    if (first >= last)
        return;
    const int num_blocks = (int)((last + BLOCK - 1) / BLOCK);
    float scores[ROWS][KEYS], shrink[ROWS] = {0};
    switch (num_blocks) {
    case 1: score(rows, turned, size, scale, 1, scores); break;
    case 2: score(rows, turned, size, scale, 2, scores); break;
    case 3: score(rows, turned, size, scale, 3, scores); break;
    default: score(rows, turned, size, scale, 4, scores);
    }
    for (int row = 0; row < num_rows; row++)
        shrink[row] = weigh(&rows[row], scores[row], begin, num_blocks);
    long at = 0;
    for (; at + PIECES * LANES <= size; at += PIECES * LANES)
        add_values(rows, num_rows, values, size, at, PIECES, scores, shrink, first, last);
    for (; at < size; at += LANES)
        add_values(rows, num_rows, values, size, at, 1, scores, shrink, first, last);
}

/* For one tile and the `sharing` heads that have these keys and values. The rows of a query lie together; `answers` is
   that of the first, and the next query's are `answer_stride` floats on. */
static void attend_tile(
    const float *keys, const float *values, long block_stride, const int32_t *blocks, const Tile *tile, long window,
    const float *asking, long asking_stride, float *answers, long answer_stride, long sharing, long size, float scale)
{
    float turned[MOST_SIZE * KEYS];
    Row rows[MOST_ROWS + ROWS];
    const long num_rows = tile->num_queries * sharing, end = tile->position + tile->num_queries;
    for (long at = 0; at < num_rows + ROWS; at++) {
        const long row = at < num_rows ? at : num_rows - 1, query = row / sharing, head = row % sharing;
        const long last = tile->position + query + 1;
        rows[at] = (Row){
            .query = asking + query * asking_stride + head * size,
            .values = answers + query * answer_stride + head * size,
            .most = -__builtin_inff(),
            .first = window && last > window ? last - window : 0,
            .last = last,
            .weights = _mm512_setzero_ps(),
        };
        for (long number = 0; number < size; number++)
            rows[at].values[number] = 0;
    }
    for (long begin = rows[0].first / BLOCK * BLOCK; begin < end; begin += KEYS) {
        const float *block_values[BLOCKS];
        for (long block = 0; block < BLOCKS && begin + block * BLOCK < end; block++) {
            const long place = blocks[begin / BLOCK + block] * block_stride;
            turn(keys + place, turned + block * BLOCK, size);
            block_values[block] = values + place;
        }
        for (long row = 0; row < num_rows; row += ROWS) {
            const int count = num_rows - row < ROWS ? (int)(num_rows - row) : ROWS;
            attend(rows + row, count, turned, block_values, size, scale * LOG2_E, begin);
        }
    }
    for (long row = 0; row < num_rows; row++) {
        const __m512 factor = _mm512_set1_ps(1 / _mm512_reduce_add_ps(rows[row].weights));
        for (long at = 0; at < size; at += LANES)
            _mm512_storeu_ps(
                rows[row].values + at, _mm512_mul_ps(_mm512_loadu_ps(rows[row].values + at), factor));
    }
}

/* `cache` is a layer's first block; blocks are `block_stride` floats apart, and hold the keys of `num_kv_heads` heads,
   then the values. Rows of queries are `query_stride` floats apart. A query sees `window` tokens, itself included, or with
   0 all before it. 0, or 1 for sizes that are not for this function. */
int attend_chunks(const float *cache, long block_stride, const float *queries, long query_stride, float *outputs,
                  const Tile *tiles, long num_tiles, const int32_t *blocks, long window, long num_kv_heads, long sharing,
                  long size, float scale, int num_threads)
{
    if (size > MOST_SIZE || size % LANES)
        return 1;
    for (long number = 0; number < num_tiles; number++)
        if (tiles[number].num_queries * sharing > MOST_ROWS)
            return 1;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(num_threads)
    for (long number = 0; number < num_tiles; number++)
        for (long head = 0; head < num_kv_heads; head++) {
            const Tile *tile = tiles + number;
            const float *keys = cache + head * BLOCK * size, *values = keys + num_kv_heads * BLOCK * size;
            const long place = head * sharing * size, output_stride = num_kv_heads * sharing * size;
            attend_tile(keys, values, block_stride, blocks + tile->blocks, tile, window,
                        queries + tile->row * query_stride + place, query_stride,
                        outputs + tile->row * output_stride + place, output_stride, sharing, size, scale);
        }
    return 0;
}
