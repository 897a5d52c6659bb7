#include "budget.h"

#include "engine.h"
#include "server.h"

#include <stdint.h>
#include <stdio.h>

#define MIB ((size_t)1 << 20)

/* Measured with some room: code and libraries that are touched, stacks, small buffers of the loop
 * and the engine; and each token of the tokenizer. */
#define PROGRAM_BYTES (7 * MIB)
#define TOKEN_BYTES   ((size_t)96)
#define PAGE_TABLES   512 /* one byte of them for so many */

/* Two fifths of what clients get are for sockets, the rest for the heap behind them. */
#define CLIENTS_PART      24
#define LEAST_CLIENTS     (12 * MIB)
#define MOST_CLIENTS      (512 * MIB)
#define LEAST_CONNECTIONS 16
#define MOST_CONNECTIONS  4096
#define MOST_BODY         (4 * MIB)
#define BODY_PART         4                  /* a body, its JSON and its tokens must fit */
#define STREAM_BYTES      ((size_t)36 << 10) /* a connection with a small request that waits */

static size_t within(size_t least, size_t x, size_t most)
{
    return x < least ? least : x > most ? most : x;
}

static void divide_clients(struct budget *b, const struct settings *s)
{
    size_t clients = within(LEAST_CLIENTS, b->total / CLIENTS_PART, MOST_CLIENTS);
    size_t sockets = clients * 2 / 5, heap = clients - sockets;
    size_t one = server_connection_bytes(&server_config_default);
    b->connections = s->max_connections
                         ? s->max_connections
                         : (int)within(LEAST_CONNECTIONS, sockets / one, MOST_CONNECTIONS);
    b->sockets = one * (size_t)b->connections;
    b->body = s->body_limit ? s->body_limit : within(0, heap / BODY_PART, MOST_BODY);
    size_t streams = STREAM_BYTES * (size_t)b->connections;
    heap = heap > streams ? heap : streams;
    b->requests = within(BODY_PART * b->body, heap, SIZE_MAX);
}

size_t budget_fixed(const struct budget *b)
{
    return b->weights + b->scratch + b->logits + b->program + b->sockets + b->requests;
}

/* The bookkeeping grows with the arena: take the whole rest first, then what the bookkeeping of
 * that costs. */
static void divide_cache(struct budget *b, const struct model_plan *p)
{
    size_t fixed = budget_fixed(b);
    if (b->total <= fixed)
        return;
    struct kv_config kv = p->kv;
    kv.arena_bytes = b->total - fixed;
    b->overhead = kv_overhead_bytes(&kv);
    b->arena = kv.arena_bytes > b->overhead ? kv.arena_bytes - b->overhead : 0;
}

void budget_make(struct budget *b, size_t total, const struct model_plan *p,
                 const struct settings *settings)
{
    size_t vocabulary = (size_t)p->vocabulary;
    *b = (struct budget){
        .total = total,
        .weights = p->weight_bytes,
        .scratch = p->scratch_bytes,
        .logits = (size_t)engine_logit_rows(p->threads) * vocabulary * sizeof(float),
        .program = PROGRAM_BYTES + TOKEN_BYTES * vocabulary + total / PAGE_TABLES,
    };
    divide_clients(b, settings);
    divide_cache(b, p);
}

/* Two blocks of keys and values. */
static size_t least_arena(const struct model_plan *p)
{
    return model_kv_bytes(p, 2 * KV_BLOCK_TOKENS);
}

bool budget_fits(const struct budget *b, const struct model_plan *p)
{
    return b->arena >= least_arena(p);
}

/* More never holds less: the least total is found by halving. */
size_t budget_least(const struct model_plan *p, const struct settings *settings)
{
    struct budget b;
    size_t low = 0, high = MIB;
    while (budget_make(&b, high, p, settings), !budget_fits(&b, p) && high < SIZE_MAX / 2)
        high *= 2;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        budget_make(&b, middle, p, settings);
        if (budget_fits(&b, p))
            high = middle;
        else
            low = middle;
    }
    return high;
}

struct size_text size_text(double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    struct size_text t;
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    snprintf(t.text, sizeof t.text, "%.*f %s", unit ? 1 : 0, bytes, units[unit]);
    return t;
}

void budget_lines(const struct budget *b, const struct model_plan *p,
                  struct budget_line out[BUDGET_LINES])
{
    const struct budget_line lines[BUDGET_LINES] = {
        {"weights", "weights", b->weights, "packed, and rows of the file that stay mapped"},
        {"scratch", "scratch", b->scratch, ""},
        {"logits", "logits", b->logits, ""},
        {"program", "program", b->program, "code, libraries, stacks, tokenizer, page tables"},
        {"sockets", "sockets", b->sockets, ""},
        {"requests", "requests", b->requests, ""},
        {"cache_lists", "cache lists", b->overhead, "which block holds what"},
        {"keys_and_values", "keys, values", b->arena, ""},
    };
    size_t token = p->kv_bytes_per_token ? p->kv_bytes_per_token : 1;
    for (int i = 0; i < BUDGET_LINES; i++)
        out[i] = lines[i];
    snprintf(out[1].what, sizeof out[1].what, "activations of %d tokens a step", p->batch_tokens);
    snprintf(out[2].what, sizeof out[2].what, "%d rows of %d", engine_logit_rows(p->threads),
             p->vocabulary);
    snprintf(out[4].what, sizeof out[4].what, "%d connections at most", b->connections);
    snprintf(out[5].what, sizeof out[5].what, "bodies (at most %s each), jobs, unread answers",
             size_text((double)b->body).text);
    snprintf(out[7].what, sizeof out[7].what, "%zu tokens of %s%s", b->arena / token,
             size_text((double)token).text, p->kv.groups > 1 ? ", more behind windows" : "");
}
