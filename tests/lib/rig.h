#ifndef TESTS_RIG_H
#define TESTS_RIG_H

#include "server/engine.h"

#include "config/strbuf.h"

/* An engine with everything that it works on, for tests that ask it directly. Failures fail the
 * test. */

struct rig_options {
    const char *path;
    enum kv_type kv_type;
    int threads;          /* 0: 1 */
    int window;           /* 0: as the file says */
    int step_tokens;      /* 0: the model's */
    int most_sequences;   /* 0: 64 */
    int context;          /* 0: the model's */
    int pool_tokens;      /* of one sequence that the cache holds; 0: many */
    int lookup;           /* tokens guessed ahead; 0: none */
    double itl_target_ms; /* 0: 100 */
    bool no_sharing;
};

struct rig {
    struct model *model;
    struct kv_cache *cache;
    struct pool *pool;
    struct engine *engine;
    size_t all_blocks; /* of the first group, when the cache was empty */
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint64_t rings; /* the engine has had something to tell */
};

void rig_open(struct rig *r, const struct rig_options *options);
/* Checks that nothing is held, then closes; the engine may be gone already. */
void rig_close(struct rig *r);
/* Waits until nothing runs, then checks the cache's books and that free and cached blocks are all
 * there are. */
void rig_check_idle(struct rig *r);
struct engine_stats rig_stats(struct rig *r);
/* Waits until the engine tells something, or is idle. */
void rig_wait_ring(struct rig *r);
/* Waits until it holds; the engine rings after each step that tells something. */
void rig_wait(struct rig *r, bool (*holds)(const struct engine_stats *stats));

/* ---- asking ---- */

struct rig_ask {
    const int32_t *tokens;
    int n;
    int max_tokens;
    int candidates; /* 0: 1 */
    double temperature;
    double top_p;              /* 0: 1 */
    double repetition_penalty; /* 0: 1 */
    uint64_t seed;
    int logprobs, prompt_logprobs; /* as in job_request */
    uint64_t salt, tenant;
    int priority;
    bool shift;
    int keep;
};

/* All that came back of one candidate, in words that can be compared: for each token its id, the
 * bits of its log-probability, and the same of those beside it; then text and finish. Prompt tokens
 * are in the first candidate's. */
struct rig_answer {
    struct strbuf prompt, tokens, text;
    int n_tokens;
    int32_t *ids; /* [n_tokens] */
    enum job_finish finish;
    int cached; /* prompt tokens */
    enum kv_miss miss;
    int error;
    int64_t first_ns, last_ns, gap_ns; /* after submit; largest time between two news */
};
void rig_answer_finish(struct rig_answer *a);
bool rig_answer_equal(const struct rig_answer *a, const struct rig_answer *b);

/* A request that has not been waited for. */
struct job *rig_submit(struct rig *r, const struct rig_ask *ask);
/* Takes what has come; true when it was the last. answers: [candidates] */
bool rig_read(struct job *j, struct rig_answer *answers);
/* Waits for the end and drops the job. */
void rig_finish(struct rig *r, struct job *j, struct rig_answer *answers);
/* All at once. answers: one for each candidate of each ask, in order. */
void rig_ask(struct rig *r, const struct rig_ask *asks, int n, struct rig_answer *answers);

#endif
