#ifndef SERVER_BUDGET_H
#define SERVER_BUDGET_H

#include "model.h"
#include "settings.h"

/* One number of bytes pays for everything that the process is charged for. What is fixed comes
 * first; keys and values get the rest. */

struct budget {
    size_t total;    /* what the process may use */
    size_t weights;  /* packed, and those that stay in the mapped file */
    size_t scratch;  /* activations of a step, on all threads */
    size_t logits;   /* of the rows that are sampled at once */
    size_t program;  /* code and libraries, stacks, the tokenizer, page tables */
    size_t sockets;  /* kernel memory of `connections` */
    size_t requests; /* heap: bodies, waiting requests, unread answers */
    size_t overhead; /* the cache's bookkeeping */
    size_t arena;    /* keys and values */
    int connections; /* most at once */
    size_t body;     /* longest request body */
};

/* arena is 0 when the total does not even pay for the rest. */
void budget_make(struct budget *b, size_t total, const struct model_plan *p,
                 const struct settings *settings);
/* All but the cache's part. */
size_t budget_fixed(const struct budget *b);
/* The smallest total that would do, and whether this one does. */
size_t budget_least(const struct model_plan *p, const struct settings *settings);
bool budget_fits(const struct budget *b, const struct model_plan *p);

/* The lines that the log at start and `ropewalk plan` show. */
#define BUDGET_LINES 8
struct budget_line {
    const char *key, *name; /* in JSON, for people */
    size_t bytes;
    char what[112]; /* that it pays for */
};
void budget_lines(const struct budget *b, const struct model_plan *p,
                  struct budget_line out[BUDGET_LINES]);
/* "120.8 MiB" */
struct size_text {
    char text[24];
};
struct size_text size_text(double bytes);

#endif
