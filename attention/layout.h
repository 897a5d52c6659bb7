#ifndef ATTENTION_LAYOUT_H
#define ATTENTION_LAYOUT_H

#include "attention.h"

/* Where things are in one layer's part of a cache block (kernels/attn_ops.h has the pages). */
struct attn_layout {
    int value_pad;
    size_t key_bytes;  /* of one kv head's key page */
    size_t head_bytes; /* key page and value page */
};

/* The shape must have passed attn_check. */
struct attn_layout attn_layout(const struct attn_shape *s);

#endif
