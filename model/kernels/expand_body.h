/* The instances of `expand`, the same for every level: included behind a level's expand(), which
 * takes a struct shape of its own. What follows the prefix of the names goes into that shape. */

/* name, values, scales, flavour, bias, table */
#define PACKED_FORMATS(X, prefix, ...)                                                             \
    X(prefix##q4_0, VALUES_4, SCALES_F16, FLAVOUR_PLAIN, 8, NULL, __VA_ARGS__)                     \
    X(prefix##q4_1, VALUES_4, SCALES_F16_MIN, FLAVOUR_MIN, 0, NULL, __VA_ARGS__)                   \
    X(prefix##q5_0, VALUES_5, SCALES_F16, FLAVOUR_PLAIN, 16, NULL, __VA_ARGS__)                    \
    X(prefix##q5_1, VALUES_5, SCALES_F16_MIN, FLAVOUR_MIN, 0, NULL, __VA_ARGS__)                   \
    X(prefix##q8_0, VALUES_8, SCALES_F16, FLAVOUR_PLAIN, 128, NULL, __VA_ARGS__)                   \
    X(prefix##q2_k, VALUES_2, SCALES_K16_MIN, FLAVOUR_HALF_MIN, 0, NULL, __VA_ARGS__)              \
    X(prefix##q3_k, VALUES_3, SCALES_K16, FLAVOUR_HALF, 4, NULL, __VA_ARGS__)                      \
    X(prefix##q4_k, VALUES_4, SCALES_K_MIN, FLAVOUR_MIN, 0, NULL, __VA_ARGS__)                     \
    X(prefix##q5_k, VALUES_5, SCALES_K_MIN, FLAVOUR_MIN, 0, NULL, __VA_ARGS__)                     \
    X(prefix##q6_k, VALUES_6, SCALES_K16, FLAVOUR_HALF, 32, NULL, __VA_ARGS__)                     \
    X(prefix##iq4_nl, VALUES_TABLE, SCALES_F16, FLAVOUR_PLAIN, 0, codecs[FORMAT_IQ4_NL]->table,    \
      __VA_ARGS__)                                                                                 \
    X(prefix##iq4_xs, VALUES_TABLE, SCALES_K, FLAVOUR_PLAIN, 0, codecs[FORMAT_IQ4_XS]->table,      \
      __VA_ARGS__)                                                                                 \
    X(prefix##mxfp4, VALUES_TABLE, SCALES_BF16, FLAVOUR_PLAIN, 0, codecs[FORMAT_MXFP4]->table,     \
      __VA_ARGS__)                                                                                 \
    X(prefix##tq, VALUES_2, SCALES_K, FLAVOUR_PLAIN, 1, NULL, __VA_ARGS__)

#define EXPAND(name, values_, scales_, flavour_, bias_, table_, ...)                               \
    static void name(const uint8_t *group, int blocks, int first, int count, uint8_t *values,      \
                     float *scales)                                                                \
    {                                                                                              \
        expand(group, blocks, first, count, values, scales,                                        \
               (struct shape){.values = values_,                                                   \
                              .scales = scales_,                                                   \
                              .flavour = flavour_,                                                 \
                              .bias = bias_,                                                       \
                              .table = table_,                                                     \
                              __VA_ARGS__});                                                       \
    }
PACKED_FORMATS(EXPAND, expand_, )

/* For matrix_ops.expand. */
#define EXPANDERS(prefix)                                                                          \
    {                                                                                              \
        [FORMAT_Q4_0] = prefix##q4_0, [FORMAT_Q4_1] = prefix##q4_1, [FORMAT_Q5_0] = prefix##q5_0,  \
        [FORMAT_Q5_1] = prefix##q5_1, [FORMAT_Q8_0] = prefix##q8_0, [FORMAT_Q2_K] = prefix##q2_k,  \
        [FORMAT_Q3_K] = prefix##q3_k, [FORMAT_Q4_K] = prefix##q4_k, [FORMAT_Q5_K] = prefix##q5_k,  \
        [FORMAT_Q6_K] = prefix##q6_k, [FORMAT_IQ4_NL] = prefix##iq4_nl,                            \
        [FORMAT_IQ4_XS] = prefix##iq4_xs, [FORMAT_MXFP4] = prefix##mxfp4,                          \
        [FORMAT_TQ1_0] = prefix##tq, [FORMAT_TQ2_0] = prefix##tq,                                  \
    }

/* For matrix_ops.factors and .factored, at a level with a make_factors() and a core(). What follows
 * goes into the shape of the kernel of a whole tile. */
#define FACTORED(name, scales_, flavour_, ...)                                                     \
    static void factors_##name(const uint8_t *group, int blocks, float *out)                       \
    {                                                                                              \
        make_factors(group, blocks, out, scales_, flavour_);                                       \
    }                                                                                              \
    static void factored_##name(const struct core *c)                                              \
    {                                                                                              \
        core(c, (struct shape){                                                                    \
                    .factored = true, .scales = scales_, .flavour = flavour_, __VA_ARGS__});       \
    }
