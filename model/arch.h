#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include <stdbool.h>
#include <stddef.h>

/* What an architecture is made of, as far as the file's own tensors and settings do not say it.
 * After plan.c nobody asks for an architecture's name. */

enum norm_kind { NORM_RMS, NORM_LAYER };
enum activation { ACTIVATION_SILU, ACTIVATION_GELU_TANH, ACTIVATION_COUNT };

/* Letters of a layer pattern, repeated over the layers:
 *   F  full attention: everything before
 *   W  the file's window if it has one (or --window), full attention otherwise
 *   L  local attention: the file's window is required
 *   N  full attention, no position encoding */
struct arch {
    const char *name; /* general.architecture of a GGUF file */
    const char *pattern;
    enum norm_kind norm;
    enum activation activation;
    bool rope_neighbours; /* rotation pairs are (2i, 2i+1), not (i, i + dims/2) */
    bool parallel; /* attention and feed-forward both read the first norm; one residual sum */
    bool scale_embedding; /* embeddings are multiplied by sqrt(width) */
    int wide_layers; /* files with so many layers, which do not state it, scale attention by width /
                        heads instead of by the size of a head; 0: none does */
    bool local_rope; /* local layers rotate with rope.freq_base_swa (10000 when absent), unscaled */
};

/* NULL when no row has that name. */
const struct arch *arch_find(const char *name, size_t bytes);
/* "llama, qwen2, ..." for messages. */
const char *arch_names(void);

#endif
