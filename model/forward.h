#ifndef MODEL_FORWARD_H
#define MODEL_FORWARD_H

#include "plan.h"

/* The forward pass: reads the plan's records and nothing else. One thread (the engine's) calls it;
 * the pool's workers share each phase. */

struct forward;

/* Scratch that a pass over the plan's batch_tokens takes on `threads` workers, bytes. */
size_t forward_scratch_bytes(const struct plan *p, int threads);

/* Keeps the plan and the pool. */
int forward_create(const struct plan *p, struct pool *pool, struct forward **out, struct err *err);
void forward_destroy(struct forward *f);

/* As model_step and model_logits in model.h. */
int forward_step(struct forward *f, const struct batch *batch);
void forward_logits(struct forward *f, const int *rows, int n, float *out);

#endif
