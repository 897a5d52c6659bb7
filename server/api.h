#ifndef SERVER_API_H
#define SERVER_API_H

#include "front.h"
#include "schema.h"

/* What routes.c points to. `_work` runs in the work pool, `_answer` on the loop. */

void completions_work(struct exchange *ex);
/* Refuses a prompt of more token ids than the context holds before they cost any memory. */
void completions_weigh(struct exchange *ex);
void chat_work(struct exchange *ex);
void generation_answer(struct exchange *ex);

void models_answer(struct exchange *ex);
void model_answer(struct exchange *ex);

void tokenize_work(struct exchange *ex);
void detokenize_work(struct exchange *ex);
extern const struct schema_field tokenize_fields[], detokenize_fields[];
void native_answer(struct exchange *ex); /* sends what _work left in ex->reply */
void health_answer(struct exchange *ex);
void ready_answer(struct exchange *ex);
void metrics_answer(struct exchange *ex);
void debug_kv_work(struct exchange *ex);

void page_answer(struct exchange *ex); /* the page at / and its files */

#endif
