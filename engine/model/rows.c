/* Attention of single tokens over keys and values where they lie in the cache, in float32.

   Knows how a block lies in memory (kv_cache.py) and AVX-512. Must not know weights, layers or scheduling.

   Each block of 16 tokens is read once for all query heads that share it, and its scores are one register; the softmax
   goes along: what was found before is scaled down when a larger score comes. */

#include "vector.h"

enum { BLOCK = 16, MOST_SHARING = 16, MOST_SIZE = 256 };

/* What one query head has found so far: the largest score, the sum of weights lane by lane, the weighted values. */
typedef struct {
    float most;
    __m512 weights;
    __m512 values[MOST_SIZE / LANES];
} Found;

/* The sum of each of 16 registers, in order. */
static inline __m512 sums_of(__m512 *parts)
{
    for (int at = 0; at < 8; at++)
        parts[at] = _mm512_add_ps(_mm512_unpacklo_ps(parts[2 * at], parts[2 * at + 1]),
                                  _mm512_unpackhi_ps(parts[2 * at], parts[2 * at + 1]));
    for (int at = 0; at < 4; at++) {
        const __m512d one = _mm512_castps_pd(parts[2 * at]), two = _mm512_castps_pd(parts[2 * at + 1]);
        parts[at] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(one, two)),
                                  _mm512_castpd_ps(_mm512_unpackhi_pd(one, two)));
    }
    for (int left = 2; left > 0; left /= 2)
        for (int at = 0; at < left; at++)
            parts[at] = _mm512_add_ps(_mm512_shuffle_f32x4(parts[2 * at], parts[2 * at + 1], 0x88),
                                      _mm512_shuffle_f32x4(parts[2 * at], parts[2 * at + 1], 0xDD));
    return parts[0];
}

/* The scores of a block's tokens `first` to before `last` for one query; -inf for the others. */
static ALWAYS_INLINE __m512 score(const float *query, const float *keys, const long size, long first, long last)
{
    __m512 parts[BLOCK];
    for (long token = 0; token < BLOCK; token++) {
        parts[token] = _mm512_setzero_ps();
        for (long at = 0; at < size; at += LANES)
            parts[token] = _mm512_fmadd_ps(
                _mm512_loadu_ps(query + at), _mm512_loadu_ps(keys + token * size + at), parts[token]);
    }
    const __mmask16 seen = (__mmask16)((1u << last) - (1u << first));
    return _mm512_mask_blend_ps(seen, _mm512_set1_ps(-__builtin_inff()), sums_of(parts));
}

static ALWAYS_INLINE void add_block(
    Found *found, __m512 scores, const float *values, const long size, long first, long last)
{
    const float most = _mm512_reduce_max_ps(scores);
    if (most > found->most) {
        const __m512 shrink = power_of_two(_mm512_set1_ps(found->most - most));
        found->most = most;
        found->weights = _mm512_mul_ps(found->weights, shrink);
        for (long at = 0; at < size / LANES; at++)
            found->values[at] = _mm512_mul_ps(found->values[at], shrink);
    }
    const __m512 weights = power_of_two(_mm512_sub_ps(scores, _mm512_set1_ps(found->most)));
    found->weights = _mm512_add_ps(found->weights, weights);
    float weight[BLOCK];
    _mm512_storeu_ps(weight, weights);
    __m512 sums[MOST_SIZE / LANES];
    for (long at = 0; at < size / LANES; at++)
        sums[at] = found->values[at];
    /* What lies beyond the seen ones may be anything, and nothing times anything is not always nothing. */
    for (long token = first; token < last; token++)
        for (long at = 0; at < size / LANES; at++)
            sums[at] = _mm512_fmadd_ps(
                _mm512_set1_ps(weight[token]), _mm512_loadu_ps(values + token * size + at * LANES), sums[at]);
    for (long at = 0; at < size / LANES; at++)
        found->values[at] = sums[at];
}

/* A query's row of `queries` and `outputs`, the tokens that it sees, `first` to before `last`, counted from the begin of
   its first block, and where its blocks begin in `blocks`. */
typedef struct {
    int64_t row, first, last, blocks;
} Query;

/* For one query and the `sharing` heads that have these keys and values. `after` are the keys that are wanted next. */
static ALWAYS_INLINE void attend(
    const float *keys, const float *values, const float *after, long block_stride, const int32_t *blocks,
    const Query *query, const float *asking, float *answers, long sharing, const long size, float scale)
{
    Found found[MOST_SHARING];
    float scaled[MOST_SHARING * MOST_SIZE];
    for (long head = 0; head < sharing; head++) {
        found[head].most = -__builtin_inff();
        found[head].weights = _mm512_setzero_ps();
        for (long at = 0; at < size / LANES; at++)
            found[head].values[at] = _mm512_setzero_ps();
    }
    for (long at = 0; at < sharing * size; at++)
        scaled[at] = asking[at] * (scale * LOG2_E);
    for (long begin = 0; begin < query->last; begin += BLOCK, blocks++) {
        const long first = query->first > begin ? query->first - begin : 0;
        const long last = query->last - begin < BLOCK ? query->last - begin : BLOCK;
        const float *block_keys = keys + *blocks * block_stride, *block_values = values + *blocks * block_stride;
        /* Blocks do not lie in order: the processor cannot guess the next. */
        const float *next = begin + BLOCK < query->last ? keys + blocks[1] * block_stride : after;
        for (long at = 0; at < BLOCK * size; at += LANES) {
            _mm_prefetch((const char *)(next + at), _MM_HINT_T1);
            _mm_prefetch((const char *)(next + (values - keys) + at), _MM_HINT_T1);
        }
        for (long head = 0; head < sharing; head++) {
            const __m512 scores = score(scaled + head * size, block_keys, size, first, last);
            add_block(&found[head], scores, block_values, size, first, last);
        }
    }
    for (long head = 0; head < sharing; head++) {
        const __m512 factor = _mm512_set1_ps(1 / _mm512_reduce_add_ps(found[head].weights));
        for (long at = 0; at < size / LANES; at++)
            _mm512_storeu_ps(answers + head * size + at * LANES, _mm512_mul_ps(found[head].values[at], factor));
    }
}

/* `cache` is a layer's first block; blocks are `block_stride` floats apart, and hold the keys of `num_kv_heads` heads,
   then the values. Rows of queries are `query_stride` floats apart. 0, or 1 for sizes that are not for this function. */
int attend_rows(const float *cache, long block_stride, const float *queries, long query_stride, float *outputs,
                const Query *asked, long num_asked, const int32_t *blocks, long num_kv_heads, long sharing, long size,
                float scale, int num_threads)
{
    if (sharing > MOST_SHARING || size > MOST_SIZE || size % LANES)
        return 1;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(num_threads)
    for (long number = 0; number < num_asked; number++)
        for (long head = 0; head < num_kv_heads; head++) {
            const Query *query = asked + number;
            const float *keys = cache + head * BLOCK * size, *values = keys + num_kv_heads * BLOCK * size;
            const long place = head * sharing * size;
            const float *asking = queries + query->row * query_stride + place;
            float *answers = outputs + query->row * num_kv_heads * sharing * size + place;
            const int32_t *own = blocks + query->blocks;
            const float *after = keys + *own * block_stride + BLOCK * size;
            if (head + 1 == num_kv_heads && number + 1 < num_asked)
                after = cache + blocks[query[1].blocks] * block_stride;
            /* The same thrice: for sizes that are known here, all is kept in registers. */
            if (size == 64)
                attend(keys, values, after, block_stride, own, query, asking, answers, sharing, 64, scale);
            else if (size == 128)
                attend(keys, values, after, block_stride, own, query, asking, answers, sharing, 128, scale);
            else
                attend(keys, values, after, block_stride, own, query, asking, answers, sharing, size, scale);
        }
    return 0;
}
