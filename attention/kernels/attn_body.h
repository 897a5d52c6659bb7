/* The loops around a level's kernels, the same for all of them: rows are taken in parts, and each
 * type of keys and values has its instance. Included at the end of a level's file, which has
 * defined score_rows, mix_rows and the most rows that these take (SCORE_ROWS and MIX_ROWS, up to
 * 8). */

#define ROWS_UP_TO_8(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

INLINE void scores(enum kv_type type, const struct attn_page *p, const struct attn_rows *r)
{
    uintptr_t next = distance(p->key, p->next_key);
    for (int i = 0, n; i < r->n; i += n, next = 0) {
        const float *query = r->query + (size_t)i * p->key_size;
        float *out = r->weight + (size_t)i * ATTN_LANES;
        n = part_rows(r->n - i, SCORE_ROWS);
        switch (n) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        if (n <= SCORE_ROWS)                                                                       \
            score_rows(type, n, p, query, next, out);                                              \
        break;
            ROWS_UP_TO_8(ROWS)
#undef ROWS
        }
    }
}

INLINE void mix(enum kv_type type, const struct attn_page *p, const struct attn_rows *all)
{
    uintptr_t next = distance(p->value, p->next_value);
    struct attn_rows r = *all;
    for (int left = all->n, n; left > 0; left -= n, next = 0) {
        n = part_rows(left, MIX_ROWS);
        switch (n) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        if (n <= MIX_ROWS)                                                                         \
            mix_rows(type, n, p, &r, next);                                                        \
        break;
            ROWS_UP_TO_8(ROWS)
#undef ROWS
        }
        r.weight += n * ATTN_LANES;
        r.mix += (size_t)n * p->value_pad;
        r.rescale += n;
    }
}

#define TYPE(name, type)                                                                           \
    static void scores_##name(const struct attn_page *p, const struct attn_rows *r)                \
    {                                                                                              \
        scores(type, p, r);                                                                        \
    }                                                                                              \
    static void mix_##name(const struct attn_page *p, const struct attn_rows *r)                   \
    {                                                                                              \
        mix(type, p, r);                                                                           \
    }

TYPE(f16, KV_F16)
TYPE(bf16, KV_BF16)
TYPE(f32, KV_F32)
TYPE(q8_0, KV_Q8_0)
