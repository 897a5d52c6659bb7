#include "mem.h"
#include "tok.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(struct tok_work *w)
{
    return err_set(w->err, ERR_NOMEM, "no memory to tokenize");
}

int tok_work_emit(struct tok_work *w, int32_t id)
{
    struct tok_ids *out = w->out;
    if (out->n == out->cap) {
        if (out->cap > INT32_MAX / 2)
            return err_set(w->err, ERR_LIMIT, "the text has too many tokens");
        int cap = out->cap ? out->cap * 2 : 64;
        int32_t *ids = realloc(out->ids, (size_t)cap * sizeof *ids);
        if (!ids)
            return no_memory(w);
        out->ids = ids;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return 0;
}

int tok_work_emit_bytes(struct tok_work *w, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned byte = (unsigned char)text[i];
        int32_t id = w->t->byte_ids[byte] >= 0 ? w->t->byte_ids[byte] : w->t->unk;
        if (id < 0)
            return err_set(w->err, ERR_UNSUPPORTED,
                           "the vocabulary has no token for the byte 0x%02X, and none for unknown "
                           "text",
                           byte);
        int code = tok_work_emit(w, id);
        if (code < 0)
            return code;
    }
    return 0;
}

static int symbols_grow(struct tok_work *w)
{
    size_t cap = w->cap_symbols ? w->cap_symbols * 2 : 256;
    struct tok_symbol *symbols = realloc(w->symbols, cap * sizeof *symbols);
    if (!symbols)
        return no_memory(w);
    w->symbols = symbols;
    w->cap_symbols = cap;
    return 0;
}

int tok_work_add(struct tok_work *w, const char *text, struct tok_symbol symbol, tok_rule *rule)
{
    int code = 0;
    if (w->n_symbols == TOK_WORD_MOST)
        code = tok_work_merge(w, text, rule);
    if (code == 0 && w->n_symbols == w->cap_symbols)
        code = symbols_grow(w);
    if (code < 0)
        return code;
    int32_t at = (int32_t)w->n_symbols++;
    symbol.prev = at - 1;
    symbol.next = at + 1;
    w->symbols[at] = symbol;
    return 0;
}

/* ---- few symbols: look at all pairs for the best, again and again ---- */

enum { FEW = 32 };
#define NO_RULE UINT32_MAX

static struct tok_merge pair_rule(const struct tok_work *w, const char *text, tok_rule *rule,
                                  const struct tok_symbol *left)
{
    struct tok_merge merge;
    if (!rule(w->t, text, left, left + 1, &merge))
        merge.priority = NO_RULE;
    return merge;
}

static void merge_few(struct tok_work *w, const char *text, tok_rule *rule)
{
    struct tok_symbol *symbols = w->symbols;
    struct tok_merge merges[FEW];
    size_t n = w->n_symbols;
    for (size_t i = 0; i + 1 < n; i++)
        merges[i] = pair_rule(w, text, rule, &symbols[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (merges[i].priority < merges[best].priority)
                best = i;
        if (merges[best].priority == NO_RULE)
            break;
        symbols[best].bytes += symbols[best + 1].bytes;
        symbols[best].id = merges[best].id;
        n--;
        memmove(&symbols[best + 1], &symbols[best + 2], (n - best - 1) * sizeof *symbols);
        memmove(&merges[best], &merges[best + 1], (n - best - 1) * sizeof *merges);
        if (best > 0)
            merges[best - 1] = pair_rule(w, text, rule, &symbols[best - 1]);
        if (best + 1 < n)
            merges[best] = pair_rule(w, text, rule, &symbols[best]);
    }
    w->n_symbols = n;
}

/* ---- many: a heap of candidates; outdated ones are dropped when they come up ---- */

static bool comes_before(const struct tok_candidate *a, const struct tok_candidate *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->left < b->left;
}

static int heap_push(struct tok_work *w, struct tok_candidate c)
{
    if (w->n_heap == w->cap_heap) {
        size_t cap = w->cap_heap ? w->cap_heap * 2 : 256;
        struct tok_candidate *heap = realloc(w->heap, cap * sizeof *heap);
        if (!heap)
            return no_memory(w);
        w->heap = heap;
        w->cap_heap = cap;
    }
    size_t at = w->n_heap++;
    for (; at > 0 && comes_before(&c, &w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = c;
    return 0;
}

static struct tok_candidate heap_pop(struct tok_work *w)
{
    struct tok_candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < w->n_heap; at = child) {
        if (child + 1 < w->n_heap && comes_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!comes_before(&w->heap[child], &last))
            break;
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = last;
    return top;
}

static int candidate_add(struct tok_work *w, const char *text, tok_rule *rule, int32_t left)
{
    if (left < 0 || w->symbols[left].next >= (int32_t)w->n_symbols)
        return 0;
    const struct tok_symbol *a = &w->symbols[left], *b = &w->symbols[a->next];
    struct tok_merge merge;
    if (!rule(w->t, text, a, b, &merge))
        return 0;
    return heap_push(
        w, (struct tok_candidate){merge.priority, (uint32_t)left, a->bytes + b->bytes, merge.id});
}

static int candidate_apply(struct tok_work *w, const char *text, tok_rule *rule,
                           const struct tok_candidate *c)
{
    struct tok_symbol *a = &w->symbols[c->left];
    if (a->bytes == 0 || a->next >= (int32_t)w->n_symbols)
        return 0;
    struct tok_symbol *b = &w->symbols[a->next];
    /* The end that was promised tells whether both are still what they were: symbols only grow. */
    if (a->bytes + b->bytes != c->bytes)
        return 0;
    a->bytes = c->bytes;
    a->id = c->id;
    b->bytes = 0;
    a->next = b->next;
    if (a->next < (int32_t)w->n_symbols)
        w->symbols[a->next].prev = (int32_t)c->left;
    int code = candidate_add(w, text, rule, a->prev);
    return code < 0 ? code : candidate_add(w, text, rule, (int32_t)c->left);
}

static int merge_many(struct tok_work *w, const char *text, tok_rule *rule)
{
    int code = 0;
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_symbols && code == 0; i++)
        code = candidate_add(w, text, rule, (int32_t)i);
    while (w->n_heap && code == 0) {
        struct tok_candidate c = heap_pop(w);
        code = candidate_apply(w, text, rule, &c);
    }
    return code;
}

int tok_work_merge(struct tok_work *w, const char *text, tok_rule *rule)
{
    int code = 0;
    if (w->n_symbols <= FEW)
        merge_few(w, text, rule);
    else
        code = merge_many(w, text, rule);
    for (size_t i = 0; i < w->n_symbols && code == 0; i++) {
        const struct tok_symbol *s = &w->symbols[i];
        if (s->bytes)
            code = s->id >= 0 ? tok_work_emit(w, s->id)
                              : tok_work_emit_bytes(w, text + s->start, s->bytes);
    }
    w->n_symbols = 0;
    return code;
}
