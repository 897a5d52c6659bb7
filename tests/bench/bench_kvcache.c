#include "kvcache.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* What the cache's own work costs, blocks being tiny: a decode step, opening on a cached prefix
 * among thousands of conversations, and computing under eviction. */

#define CONVERSATIONS 5000
#define PREFIX        4000
#define OWN           200

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void make_prompt(int32_t *tokens, int n, int own)
{
    for (int i = 0; i < n; i++)
        tokens[i] = i < PREFIX ? i : (own * 7919 + i * 31) & 0xffff;
}

static struct kv_seq *run(struct kv_cache *c, const int32_t *tokens, int n)
{
    struct kv_seq *s;
    struct kv_match match;
    if (kv_seq_open(c, 0, tokens, n, n - 1, &s, &match, NULL))
        exit(1);
    for (int at = kv_seq_length(s); at < n; at = kv_seq_length(s)) {
        int piece = n - at < 512 ? n - at : 512;
        if (kv_seq_extend(s, tokens + at, piece))
            exit(1);
        kv_seq_commit(s, at + piece);
    }
    return s;
}

static void report(const char *what, double ns, int count)
{
    printf("%-48s %10.0f ns\n", what, ns / count);
}

static void bench(const char *name, const struct kv_config *config)
{
    static int32_t tokens[PREFIX + OWN + 1000];
    struct kv_cache *c;
    struct err err;
    if (kv_create(config, &c, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    printf("%s, bookkeeping %zu of %zu bytes\n", name, kv_overhead_bytes(config),
           config->arena_bytes);

    double start = now();
    for (int i = 0; i < CONVERSATIONS; i++) {
        make_prompt(tokens, PREFIX + OWN, i);
        kv_seq_close(run(c, tokens, PREFIX + OWN));
    }
    report("  prompt of 4000 cached and 200 own, all calls", now() - start, CONVERSATIONS);

    struct kv_seq *s;
    struct kv_match match;
    start = now();
    for (int i = 0; i < CONVERSATIONS; i++) {
        make_prompt(tokens, PREFIX + OWN, i);
        if (kv_seq_open(c, 0, tokens, PREFIX + OWN, PREFIX + OWN - 1, &s, &match, NULL))
            exit(1);
        kv_seq_close(s);
    }
    report("  open and close on a conversation", now() - start, CONVERSATIONS);

    struct kv_seq *running[32];
    for (int i = 0; i < 32; i++) {
        make_prompt(tokens, PREFIX + OWN, i);
        running[i] = run(c, tokens, PREFIX + OWN);
    }
    start = now();
    for (int step = 0; step < 800; step++)
        for (int i = 0; i < 32; i++) {
            int32_t token = i * 1000 + step;
            if (kv_seq_extend(running[i], &token, 1))
                exit(1);
            kv_seq_commit(running[i], kv_seq_length(running[i]));
        }
    report("  one token of one of 32 sequences", now() - start, 800 * 32);
    for (int i = 0; i < 32; i++)
        kv_seq_close(running[i]);

    struct kv_stats stats;
    kv_stats(c, &stats);
    printf("  evicted %llu, copied %llu blocks\n", (unsigned long long)stats.evicted_blocks,
           (unsigned long long)stats.copied_blocks);
    kv_destroy(c);
}

int main(void)
{
    struct kv_config config = {.groups = 1,
                               .group = {{"full", 0, 1024}},
                               .arena_bytes = (size_t)50000 * 1024,
                               .share = true};
    bench("full, all fits", &config);
    config.arena_bytes = (size_t)5000 * 1024;
    bench("full, evicting", &config);
    config = (struct kv_config){.groups = 2,
                                .group = {{"full", 0, 1024}, {"window", 512, 5 * 1024}},
                                .arena_bytes = (size_t)5000 * 1024 * 6,
                                .share = true};
    bench("full and window of 512, evicting", &config);
    return 0;
}
