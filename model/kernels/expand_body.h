/* The instances of `expand`, the same for every level: included behind a level's expand(), which
 * takes a struct shape of its own. */

/* name, values, scales, flavour, bias, table */
#define PACKED_FORMATS(X)                                                                          \
    X(q4_0, VALUES_4, SCALES_F16, FLAVOUR_PLAIN, 8, NULL)                                          \
    X(q4_1, VALUES_4, SCALES_F16_MIN, FLAVOUR_MIN, 0, NULL)                                        \
    X(q5_0, VALUES_5, SCALES_F16, FLAVOUR_PLAIN, 16, NULL)                                         \
    X(q5_1, VALUES_5, SCALES_F16_MIN, FLAVOUR_MIN, 0, NULL)                                        \
    X(q8_0, VALUES_8, SCALES_F16, FLAVOUR_PLAIN, 128, NULL)                                        \
    X(q2_k, VALUES_2, SCALES_K16_MIN, FLAVOUR_HALF_MIN, 0, NULL)                                   \
    X(q3_k, VALUES_3, SCALES_K16, FLAVOUR_HALF, 4, NULL)                                           \
    X(q4_k, VALUES_4, SCALES_K_MIN, FLAVOUR_MIN, 0, NULL)                                          \
    X(q5_k, VALUES_5, SCALES_K_MIN, FLAVOUR_MIN, 0, NULL)                                          \
    X(q6_k, VALUES_6, SCALES_K16, FLAVOUR_HALF, 32, NULL)                                          \
    X(iq4_nl, VALUES_TABLE, SCALES_F16, FLAVOUR_PLAIN, 0, codecs[FORMAT_IQ4_NL]->table)            \
    X(iq4_xs, VALUES_TABLE, SCALES_K, FLAVOUR_PLAIN, 0, codecs[FORMAT_IQ4_XS]->table)              \
    X(mxfp4, VALUES_TABLE, SCALES_BF16, FLAVOUR_PLAIN, 0, codecs[FORMAT_MXFP4]->table)             \
    X(tq, VALUES_2, SCALES_K, FLAVOUR_PLAIN, 1, NULL)

#define EXPAND(name, values_, scales_, flavour_, bias_, table_)                                    \
    static void expand_##name(const uint8_t *group, int blocks, int first, int count,              \
                              uint8_t *values, float *scales)                                      \
    {                                                                                              \
        expand(group, blocks, first, count, values, scales,                                        \
               (struct shape){.values = values_,                                                   \
                              .scales = scales_,                                                   \
                              .flavour = flavour_,                                                 \
                              .bias = bias_,                                                       \
                              .table = table_});                                                   \
    }
PACKED_FORMATS(EXPAND)

/* For matrix_ops.expand. */
#define EXPANDERS                                                                                  \
    {                                                                                              \
        [FORMAT_Q4_0] = expand_q4_0, [FORMAT_Q4_1] = expand_q4_1, [FORMAT_Q5_0] = expand_q5_0,     \
        [FORMAT_Q5_1] = expand_q5_1, [FORMAT_Q8_0] = expand_q8_0, [FORMAT_Q2_K] = expand_q2_k,     \
        [FORMAT_Q3_K] = expand_q3_k, [FORMAT_Q4_K] = expand_q4_k, [FORMAT_Q5_K] = expand_q5_k,     \
        [FORMAT_Q6_K] = expand_q6_k, [FORMAT_IQ4_NL] = expand_iq4_nl,                              \
        [FORMAT_IQ4_XS] = expand_iq4_xs, [FORMAT_MXFP4] = expand_mxfp4,                            \
        [FORMAT_TQ1_0] = expand_tq, [FORMAT_TQ2_0] = expand_tq,                                    \
    }
