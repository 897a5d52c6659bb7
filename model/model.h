#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "attention.h"
#include "cpu.h"
#include "err.h"
#include "kvcache.h"
#include "pool.h"
#include "strbuf.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Model: what token comes next? One header for all that the server needs: open a file and read its
 * plan, load the weights, tokenise, render a chat, run a step, pick a token. */

/* ======== tokenizer: text <-> token ids. Immutable after creation: any thread. ======== */

struct tokenizer;

enum tok_kind { TOK_BPE, TOK_SPM };
enum tok_type { /* GGUF's token types */
                TOK_NORMAL = 1,
                TOK_UNKNOWN = 2,
                TOK_CONTROL = 3,
                TOK_USER = 4,
                TOK_UNUSED = 5,
                TOK_BYTE = 6
};

/* What a file says about its vocabulary. Strings need only live during tok_create. Ids are -1 when
 * absent. */
struct tok_vocab {
    enum tok_kind kind;
    const char *name; /* of the model, for what files leave unsaid (Phi-3), or NULL */
    const char
        *pre; /* name of the pre-tokenizer pattern ("llama-bpe", ...); BPE only; NULL: default */
    int size;
    const char *const
        *texts; /* [size]; BPE: in GPT-2's byte alphabet, SPM: with U+2581 for a space */
    const size_t *text_bytes;  /* [size] */
    const float *scores;       /* [size]; SPM */
    const int32_t *types;      /* [size] enum tok_type, or NULL: all normal */
    const char *const *merges; /* [n_merges] "left right"; BPE */
    const size_t *merge_bytes;
    int n_merges;
    int32_t bos, eos, eot, unk, pad;
    bool add_bos, add_eos;
    bool add_space_prefix; /* SPM: a space before the text */
    bool ignore_merges; /* BPE: a word that is a token stays whole (the pre-tokenizer's row may also
                           say so) */
};

/* Whether BOS goes in front where the file does not say. */
bool tok_default_bos(enum tok_kind kind, const char *pre);

/* ERR_UNSUPPORTED names an unknown pre-tokenizer; ERR_FORMAT a broken vocabulary. */
int tok_create(const struct tok_vocab *vocab, struct tokenizer **out, struct err *err);
void tok_destroy(struct tokenizer *t);

struct tok_ids {
    int32_t *ids; /* free(3) */
    int n, cap;
};

struct tok_options {
    bool special; /* the text of control tokens becomes those tokens, else it is plain text; that of
                     user tokens always does */
    bool add_bos; /* the model's BOS in front, where it wants one */
    const unsigned char *plain; /* [bytes] or NULL: nonzero where a byte came from a user's message
                                   and may not take part in a control or user token (white space
                                   may: it can forge nothing) */
};
/* Appends the tokens of text[0, bytes) to *out. Text is any bytes; invalid UTF-8 is encoded byte by
 * byte. */
int tok_encode(const struct tokenizer *t, const char *text, size_t bytes,
               const struct tok_options *options, struct tok_ids *out, struct err *err);

/* The bytes of one token as they appear in text. A control token gives its name when `special`,
 * else nothing. The pointer lives as long as the tokenizer. SPM: a leading space is kept. */
const char *tok_piece(const struct tokenizer *t, int32_t id, bool special, size_t *bytes);
/* The text of a list of tokens (SPM: without the space that encoding put in front). Not always
 * valid UTF-8. */
int tok_decode(const struct tokenizer *t, const int32_t *ids, int n, bool special,
               struct strbuf *out);

int tok_size(const struct tokenizer *t);
enum tok_type tok_type_of(const struct tokenizer *t, int32_t id);
/* Ends an answer: EOS, EOT, end of message ... */
bool tok_is_end(const struct tokenizer *t, int32_t id);
const int32_t *tok_ends(const struct tokenizer *t, int *n); /* all of them */
int32_t tok_bos(const struct tokenizer *t);                 /* -1: none */
int32_t tok_eos(const struct tokenizer *t);
bool tok_adds_bos(const struct tokenizer *t);
int32_t tok_find(const struct tokenizer *t, const char *text,
                 size_t bytes); /* exact token text (as tok_piece, special), -1 */

/* ======== chat templates: Jinja as published templates use it. Immutable: any thread. ======== */

struct chat_template;

int chat_template_create(const char *source, size_t bytes, struct chat_template **out,
                         struct err *err);
void chat_template_destroy(struct chat_template *t);

struct chat_text {
    char *text;           /* free(3) */
    unsigned char *plain; /* [bytes]: 1 where the byte came from the context's strings (messages,
                             tools ...); free(3) */
    size_t bytes;
};
/* Renders with the variables of the JSON object `context` ("messages", "tools",
 * "add_generation_prompt", ...). Strings of `context`, keys among them, are plain (cannot become
 * special tokens) except those of `trusted`, a second object of variables (bos_token, eos_token,
 * ...; it wins), or NULL, and except the usual roles of messages (system, user, assistant, tool
 * ...), which templates put into tokens: '<|' + role + '|>'. "tools" and "documents" are none and
 * "add_generation_prompt" is false when they are not given, as in transformers. ERR_ARG with the
 * template's own message when it raises an exception, ERR_ARG with a sentence of ours when it and
 * the messages do not go together. `now` (seconds since 1970, local time is UTC) serves
 * strftime_now. Bounded in steps, depth, memory and text: a template that runs away ends with
 * ERR_LIMIT. *out is written on success only. */
int chat_template_render(const struct chat_template *t, const json_t *context,
                         const json_t *trusted, int64_t now, struct chat_text *out,
                         struct err *err);

/* ======== sampling ======== */

/* Every field's zero value is not "off": start from sampler_params_default. Applied in this order:
 * bias, penalties, DRY, bars, top_n_sigma, top_k, temperature, typical_p, top_p, min_p, XTC. */
struct sampler_params {
    double temperature;                         /* 0: the most likely token */
    int top_k;                                  /* 0 or less: off */
    double top_p, min_p;                        /* 1, 0: off */
    double typical_p;                           /* 1: off */
    double top_n_sigma;                         /* 0 or less: off */
    double xtc_probability, xtc_threshold;      /* 0, 0.1 */
    double repetition_penalty;                  /* 1: off; counts prompt and answer */
    double presence_penalty, frequency_penalty; /* 0; count the answer only */
    double dry_multiplier, dry_base;            /* 0 (off), 1.75 */
    int dry_allowed_length, dry_last_n;         /* 2, -1 (all) */
    const char *const
        *dry_breakers; /* strings that end a repetition; NULL: newline, colon, quote, star */
    int n_dry_breakers;
    uint64_t seed;
    int min_tokens;          /* end and stop tokens are barred before */
    const int32_t *bias_ids; /* logit bias, added first */
    const float *bias;
    int n_bias;
    const int32_t *stop_ids; /* bars these, too, before min_tokens */
    int n_stop_ids;
    const int32_t *allowed; /* NULL or the only tokens allowed */
    int n_allowed;
    const struct tok_ids *bad_words; /* [n_bad_words] token sequences that may not be completed */
    int n_bad_words;
};
extern const struct sampler_params sampler_params_default;

struct sampler;
/* Copies what it needs from params. candidate: 0 .. n-1 of a request; draws depend on (seed,
 * candidate, position) only. */
int sampler_create(const struct sampler_params *params, const struct tokenizer *t, int candidate,
                   struct sampler **out, struct err *err);
void sampler_destroy(struct sampler *s);
/* A prompt or answer token has been fixed; call for each, in order. ERR_NOMEM: it is not counted.
 */
int sampler_accept(struct sampler *s, int32_t token, bool answer);
/* Picks the next token from logits [vocab], which it may change. */
int32_t sampler_pick(struct sampler *s, float *logits, int vocab);

/* Log-probabilities of the raw model (before any sampling setting): log softmax of logits. */
struct token_logprob {
    int32_t id;
    float logprob;
};
/* The k most likely (k < 0: all), best first, ties by lower id; out must hold k (or vocab) entries.
 * Returns how many. Also the log of the sum of exp(logits) so that logprob(i) = logits[i] -
 * *log_sum. */
int logprobs_top(const float *logits, int vocab, int k, struct token_logprob *out, double *log_sum);
double logits_log_sum(const float *logits, int vocab);
/* logit - log_sum. What cannot be (NaN, or infinity less infinity) is the extreme that it is
 * nearest to. */
float logits_logprob(double logit, double log_sum);

/* ======== the model ======== */

struct model;

struct model_options {
    const char *path;
    int window;                /* sliding window: -1 as the file says, 0 none, else tokens */
    const char *kernels;       /* "auto", "float", or the name of an isa */
    const char *kv;            /* type of keys and values: "f16" (NULL: that), or one per group:
                                  "full=q8_0,window=f16"; groups not named keep f16 */
    int context;               /* longest sequence; 0: as the file says */
    int batch_tokens;          /* most tokens of a step; 0: default (512) */
    int activation_bits;       /* 8 or 16; 0: 8 */
    const char *repack_dir;    /* packed weights are kept there, in a file that processes share
                                  (repack.h); NULL: they are not */
    int threads;               /* that the pool will have; scratch is sized for them */
    const char *chat_template; /* NULL: as the file says */
};

/* With kernels "float": the value that OPENBLAS_CORETYPE should have when the program starts,
 * because this build of OpenBLAS does not know the CPU; NULL: all is well. Set it and start again.
 */
const char *model_blas_core(void);

/* What the header alone tells: sizes are bytes. */
struct model_plan {
    const char *name; /* of the model, or of its file */
    const char *architecture;
    int layers, width, vocabulary;
    int heads, kv_heads, key_size, value_size; /* of the first attention layer */
    uint64_t parameters;
    int trained_context, context;
    int batch_tokens;
    int threads;               /* that the pool will have */
    size_t weight_bytes;       /* resident once loaded: packed copies and what stays mapped */
    size_t scratch_bytes;      /* activations, logits, attention scratch */
    size_t kv_bytes_per_token; /* of all groups, before any window */
    struct kv_config kv;       /* groups filled in; arena_bytes 0 */
    enum kv_type kv_types[KV_MAX_GROUPS]; /* of the groups */
    int group_layers[KV_MAX_GROUPS];
    int variant_limit; /* longest sequence of variant 0; 0: the model has one variant only */
};

/* Some models (longrope: Phi-3) encode every position of a sequence otherwise once the sequence
 * has grown past a limit. So the keys and values of such a sequence come in two variants, which
 * must never meet: all of them are of variant 0 while it has at most variant_limit tokens (those
 * of the running step included), and all of variant 1 from the first token more.
 *
 * What the caller does:
 *   - before a sequence is opened in the cache: variant = model_variant(plan, n) for its n tokens,
 *     and the cache knows it under kv_salt(salt, variant);
 *   - before a step that would make it longer (a drawn token is computed): when model_variant of
 *     the new length differs from the sequence's, it closes the cache entry and opens another for
 *     all its tokens under the other salt. They are computed again as a prompt, and what others
 *     have computed under that salt is reused;
 *   - batch_item.variant says which one a chunk is computed in.
 * A prompt longer than the limit starts in variant 1. A sequence that has shifted its context keeps
 * the variant it has. */
int model_variant(const struct model_plan *p, int length);

/* Opens the file(s), checks everything and makes the plan; takes no large memory. The sentence of
 * an error says which file, which name, what was found and what was expected. */
int model_open(const struct model_options *options, struct model **out, struct err *err);
const struct model_plan *model_plan(const struct model *m);
const struct tokenizer *model_tokenizer(const struct model *m);
/* The file's (or options') template; NULL with the reason in err when there is none or it cannot be
 * parsed. */
const struct chat_template *model_chat_template(const struct model *m, struct err *err);
void model_destroy(struct model *m); /* accepts NULL */

/* KV bytes that a sequence of n tokens holds, windows counted. */
size_t model_kv_bytes(const struct model_plan *p, int n);
/* Attention's share of the arithmetic at a context: a / (2 N + a), a = 4 * layers * width * context
 * (N parameters). */
double model_attention_share(uint64_t parameters, int layers, int width, double context);
/* The same for a plan, whose layers see no further than their windows and whose heads together may
 * be wider or narrower than the model. */
double model_plan_attention_share(const struct model_plan *p, int context);

/* Reads and packs the weights, allocates scratch; uses the pool from now on. progress may be NULL.
 */
int model_load(struct model *m, struct pool *pool, void (*progress)(void *arg, double done),
               void *arg, struct err *err);

/* ---- one step ---- */

/* A chunk of one sequence: n tokens at positions [kv_seq_length - n, kv_seq_length), already
 * extended in the cache. */
struct batch_item {
    struct kv_seq *seq;
    const int32_t *tokens;
    int n;
    int position; /* of tokens[0] */
    int variant;  /* of the whole sequence: see model_variant */
    int wanted;   /* logits may be asked for of so many of its last tokens: the others need no more
                     than keys and values of the last layer */
};
struct batch {
    const struct batch_item *items;
    int n_items;
    const atomic_bool
        *stop; /* NULL, or: true ends the step early between layers (its results are void) */
};

/* Runs the decoder over the batch (at most plan.batch_tokens tokens). Keys and values are stored;
 * the hidden states of the last layer stay in the model for model_logits. Returns 0, or ERR_BUSY
 * when *stop ended it. The caller commits the cache. */
int model_step(struct model *m, const struct batch *batch);

/* Logits of rows of the last step: rows[i] counts tokens through the batch's items in order, and is
 * one of those wanted. out: [n][vocabulary]. n <= MODEL_LOGIT_ROWS. */
#define MODEL_LOGIT_ROWS 16
void model_logits(struct model *m, const int *rows, int n, float *out);

/* ---- how fast its kernels are here ---- */

/* All products of one number format with so many tokens. A second: multiplications and additions,
 * and bytes of weights as they lie in memory. */
struct model_speed {
    const char *format;
    int tokens;
    double weights, operations, bytes;
};
typedef void model_speed_fn(void *arg, const struct model_speed *speed);

/* What the pool's threads reach with nothing else to do: the kernels' own multiplication on
 * registers (0: this level does not say), and reading the weights. A second. */
struct model_ceilings {
    double operations, bytes;
};

/* Measures a loaded model between steps; takes seconds. Reports every format with several numbers
 * of tokens. */
int model_measure(struct model *m, struct model_ceilings *best, model_speed_fn *report, void *arg,
                  struct err *err);

#endif
