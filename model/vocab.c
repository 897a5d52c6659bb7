#include "vocab.h"

#include <stdlib.h>
#include <string.h>

/* Arrays as tok_create wants them, in memory of ours until it has copied them. */
struct lists {
    struct weights_string *strings; /* tokens, then merges */
    const char **texts;
    size_t *bytes;
    float *scores;
    int32_t *types;
};

static void lists_finish(struct lists *l)
{
    free(l->strings);
    free(l->texts);
    free(l->bytes);
    free(l->scores);
    free(l->types);
}

static int lists_init(struct lists *l, size_t tokens, size_t merges, struct err *err)
{
    size_t n = tokens + merges + 1;
    l->strings = calloc(n, sizeof *l->strings);
    l->texts = calloc(n, sizeof *l->texts);
    l->bytes = calloc(n, sizeof *l->bytes);
    l->scores = calloc(n, sizeof *l->scores);
    l->types = calloc(n, sizeof *l->types);
    if (!l->strings || !l->texts || !l->bytes || !l->scores || !l->types)
        return err_set(err, ERR_NOMEM, "no memory for a vocabulary of %zu tokens", tokens);
    return 0;
}

static int read_id(const struct weights *w, const char *key, int vocabulary, int32_t *out,
                   struct err *err)
{
    int64_t id = -1;
    *out = -1;
    int rc = weights_int(w, key, &id, err);
    if (rc <= 0)
        return rc;
    if (id == UINT32_MAX || id == -1) /* how some writers say "none" */
        return 0;
    if (id < 0 || id >= vocabulary)
        return err_set(err, ERR_FORMAT, "%s: %s is %lld, but the vocabulary has %d tokens",
                       weights_path(w), key, (long long)id, vocabulary);
    *out = (int32_t)id;
    return 0;
}

static int read_ids(const struct weights *w, struct tok_vocab *v, struct err *err)
{
    const struct {
        const char *key;
        int32_t *out;
    } rows[] = {
        {"tokenizer.ggml.bos_token_id", &v->bos},     {"tokenizer.ggml.eos_token_id", &v->eos},
        {"tokenizer.ggml.eot_token_id", &v->eot},     {"tokenizer.ggml.unknown_token_id", &v->unk},
        {"tokenizer.ggml.padding_token_id", &v->pad},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && rc == 0; i++)
        rc = read_id(w, rows[i].key, v->size, rows[i].out, err);
    return rc;
}

static int read_flags(const struct weights *w, struct tok_vocab *v, struct err *err)
{
    v->add_bos = tok_default_bos(v->kind, v->pre);
    v->add_space_prefix = v->kind == TOK_SPM;
    int rc = weights_bool(w, "tokenizer.ggml.add_bos_token", &v->add_bos, err);
    if (rc >= 0)
        rc = weights_bool(w, "tokenizer.ggml.add_eos_token", &v->add_eos, err);
    if (rc >= 0)
        rc = weights_bool(w, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix, err);
    return rc < 0 ? rc : 0;
}

/* The optional arrays must be absent or have one entry a token. */
static int check_array(const struct weights *w, const char *key, int size, struct err *err)
{
    int64_t n = weights_array_size(w, key);
    if (n && n != size)
        return err_set(err, ERR_FORMAT, "%s: %s has %lld entries, but the vocabulary has %d tokens",
                       weights_path(w), key, (long long)n, size);
    return 0;
}

static int read_arrays(const struct weights *w, struct tok_vocab *v, struct lists *l,
                       struct err *err)
{
    int rc = check_array(w, "tokenizer.ggml.scores", v->size, err);
    if (rc == 0)
        rc = check_array(w, "tokenizer.ggml.token_type", v->size, err);
    if (rc == 0)
        rc = weights_array_strings(w, "tokenizer.ggml.tokens", l->strings, err);
    if (rc >= 0)
        rc = weights_array_strings(w, "tokenizer.ggml.merges", l->strings + v->size, err);
    if (rc >= 0 && weights_array_size(w, "tokenizer.ggml.scores"))
        rc = weights_array_floats(w, "tokenizer.ggml.scores", l->scores, err);
    if (rc >= 0 && weights_array_size(w, "tokenizer.ggml.token_type")) {
        rc = weights_array_ints(w, "tokenizer.ggml.token_type", l->types, err);
        v->types = l->types;
    }
    if (rc < 0)
        return rc;
    for (int i = 0; i < v->size + v->n_merges; i++) {
        l->texts[i] = l->strings[i].s;
        l->bytes[i] = l->strings[i].bytes;
    }
    v->texts = l->texts;
    v->text_bytes = l->bytes;
    v->merges = l->texts + v->size;
    v->merge_bytes = l->bytes + v->size;
    v->scores = l->scores;
    return 0;
}

struct names {
    char pre[128], model[128];
};

/* Zero-terminated and cut; NULL when there is none. */
static const char *copy_name(char *to, size_t bytes, const struct weights_string *s)
{
    size_t n = s->bytes < bytes - 1 ? s->bytes : bytes - 1;
    memcpy(to, s->s, n);
    to[n] = '\0';
    return n ? to : NULL;
}

static int read_kind(const struct weights *w, struct tok_vocab *v, struct names *names,
                     struct err *err)
{
    struct weights_string model = {"", 0}, pre = {"", 0}, name = {"", 0};
    struct weights_shown shown;
    int rc = weights_string(w, "tokenizer.ggml.model", &model, err);
    if (rc >= 0)
        rc = weights_string(w, "tokenizer.ggml.pre", &pre, err);
    if (rc >= 0)
        rc = weights_string(w, "general.name", &name, err);
    if (rc < 0)
        return rc;
    if (model.bytes == 4 && !memcmp(model.s, "gpt2", 4))
        v->kind = TOK_BPE;
    else if (model.bytes == 5 && !memcmp(model.s, "llama", 5))
        v->kind = TOK_SPM;
    else
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.model is \"%s\"; supported are \"gpt2\" (byte-level "
                       "BPE) and \"llama\" (SentencePiece BPE)",
                       weights_path(w), weights_show(model, &shown));
    if (pre.bytes >= sizeof names->pre)
        return err_set(err, ERR_FORMAT,
                       "%s: tokenizer.ggml.pre has %zu bytes; less than %zu was expected",
                       weights_path(w), pre.bytes, sizeof names->pre);
    v->pre = copy_name(names->pre, sizeof names->pre, &pre);
    v->name = copy_name(names->model, sizeof names->model, &name);
    return 0;
}

int vocab_create(const struct weights *w, int vocabulary, struct tokenizer **out, struct err *err)
{
    struct tok_vocab v = {.size = vocabulary};
    struct lists lists = {0};
    struct names names;
    int64_t size = weights_array_size(w, "tokenizer.ggml.tokens");
    int64_t merges = weights_array_size(w, "tokenizer.ggml.merges");
    if (size > vocabulary || size < 1 || merges > INT32_MAX - vocabulary)
        return err_set(err, ERR_FORMAT,
                       "%s: tokenizer.ggml.tokens has %lld entries; the embedding has %d rows",
                       weights_path(w), (long long)size, vocabulary);
    v.size = (int)size;
    v.n_merges = (int)merges;
    int rc = read_kind(w, &v, &names, err);
    if (rc == 0)
        rc = read_ids(w, &v, err);
    if (rc == 0)
        rc = read_flags(w, &v, err);
    if (rc == 0)
        rc = lists_init(&lists, (size_t)v.size, (size_t)v.n_merges, err);
    if (rc == 0)
        rc = read_arrays(w, &v, &lists, err);
    if (rc == 0) {
        rc = tok_create(&v, out, err);
        if (rc)
            err_prefix(err, "%s", weights_path(w));
    }
    lists_finish(&lists);
    return rc;
}
