#include "commands.h"
#include "session.h"
#include "terminal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* `ropewalk run FILE`: one answer, or a chat, in the terminal. */

static volatile bool interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = true;
}

struct run {
    const struct settings *settings;
    struct session session;
    struct terminal terminal;
    json_t *messages; /* of the chat so far */
    struct strbuf answer;
};

static void print_text(void *arg, const char *bytes, size_t n)
{
    struct run *r = arg;
    strbuf_add(&r->answer, bytes, n);
    fwrite(bytes, 1, n, stdout);
    fflush(stdout);
}

/* The chat as the model's template writes it, or the plain text where there is no template. */
static int make_prompt(struct run *r, struct tok_ids *out, struct err *err)
{
    const struct tokenizer *t = model_tokenizer(r->session.model);
    const struct chat_template *chat = model_chat_template(r->session.model, NULL);
    if (!chat) {
        const char *text = json_string_value(json_object_get(
            json_array_get(r->messages, json_array_size(r->messages) - 1), "content"));
        const struct tok_options plain = {.special = true, .add_bos = true};
        return tok_encode(t, text, strlen(text), &plain, out, err);
    }
    size_t bos_bytes = 0, eos_bytes = 0;
    const char *bos = tok_bos(t) < 0 ? "" : tok_piece(t, tok_bos(t), true, &bos_bytes);
    const char *eos = tok_eos(t) < 0 ? "" : tok_piece(t, tok_eos(t), true, &eos_bytes);
    json_t *context = json_pack("{s:O, s:b}", "messages", r->messages, "add_generation_prompt", 1);
    json_t *trusted = json_pack("{s:s%, s:s%}", "bos_token", bos, bos_bytes, "eos_token", eos,
                                eos_bytes);
    struct chat_text text = {0};
    int rc = chat_template_render(chat, context, trusted, time(NULL), &text, err);
    if (rc == 0) {
        bool starts_with_bos = bos_bytes && text.bytes >= bos_bytes &&
                               !memcmp(text.text, bos, bos_bytes);
        const struct tok_options options = {
            .special = true, .add_bos = !starts_with_bos, .plain = text.plain};
        rc = tok_encode(t, text.text, text.bytes, &options, out, err);
    }
    free(text.text);
    free(text.plain);
    json_decref(context);
    json_decref(trusted);
    return rc;
}

static uint64_t draw_seed(const struct settings *s)
{
    uint64_t seed = (uint64_t)s->seed;
    if (s->seed < 0 && getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint64_t)time(NULL);
    return seed;
}

static int fill_job(struct run *r, struct job *j, struct err *err)
{
    const struct settings *s = r->settings;
    struct tok_ids ids = {0};
    int rc = make_prompt(r, &ids, err);
    struct job_request *q = &j->request;
    if (rc == 0) {
        q->prompts = mem_arena_alloc(&j->arena, sizeof *q->prompts);
        if (q->prompts)
            q->prompts->ids = mem_arena_alloc(&j->arena, (size_t)ids.n * sizeof *ids.ids);
        if (!q->prompts || !q->prompts->ids)
            rc = err_set(err, ERR_NOMEM, "no memory for a prompt of %d tokens", ids.n);
    }
    if (rc == 0) {
        memcpy(q->prompts->ids, ids.ids, (size_t)ids.n * sizeof *ids.ids);
        q->prompts->n = q->prompts->cap = ids.n;
        q->n_prompts = q->candidates = 1;
        q->logprobs = q->prompt_logprobs = JOB_NO_LOGPROBS;
        q->max_tokens = s->max_tokens ? s->max_tokens : -1;
        q->sampling = sampler_params_default;
        q->sampling.temperature = s->temperature;
        q->sampling.top_k = s->top_k;
        q->sampling.top_p = s->top_p;
        q->sampling.min_p = s->min_p;
        q->sampling.seed = draw_seed(s);
    }
    free(ids.ids);
    return rc;
}

/* JSON holds nothing but UTF-8, and neither does a chat template. */
static int add_message(struct run *r, const char *role, const char *text, size_t n, struct err *err)
{
    json_t *content = json_stringn(text, n);
    if (!content)
        return err_set(err, ERR_ARG, "the %s message is not UTF-8 text", role);
    if (json_array_append_new(r->messages,
                              json_pack("{s:s, s:o}", "role", role, "content", content)))
        return err_set(err, ERR_NOMEM, "no memory for a message");
    return 0;
}

static int answer(struct run *r, struct err *err)
{
    struct job *j = job_create();
    if (!j)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    interrupted = false;
    struct terminal_answer a = {.text = print_text, .arg = r, .interrupted = &interrupted};
    strbuf_clear(&r->answer);
    int rc = fill_job(r, j, err);
    if (rc == 0)
        rc = terminal_run(&r->terminal, j, &a, err);
    job_unref(j);
    if (rc)
        return rc;
    putchar('\n');
    fflush(stdout);
    if (a.finish == FINISH_LENGTH)
        fprintf(stderr, "[cut at %d tokens]\n", a.completion_tokens);
    double after_first = a.seconds - a.seconds_to_first;
    if (isatty(STDERR_FILENO) && a.completion_tokens > 1 && after_first > 0)
        fprintf(stderr, "[%d + %d tokens, %d cached; first after %.2f s, then %.1f a second]\n",
                a.prompt_tokens, a.completion_tokens, a.cached_tokens, a.seconds_to_first,
                (a.completion_tokens - 1) / after_first);
    return add_message(r, "assistant", r->answer.data ? r->answer.data : "", r->answer.len, err);
}

static int chat(struct run *r, struct err *err)
{
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    bool person = isatty(STDIN_FILENO);
    if (person)
        fprintf(stderr, "A line is a message; Ctrl-C stops an answer, Ctrl-D ends the chat.\n");
    for (;;) {
        if (person)
            fputs("> ", stderr);
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0)
            break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n == 0)
            continue;
        rc = add_message(r, "user", line, (size_t)n, err);
        if (rc == 0)
            rc = answer(r, err);
        if (rc)
            break;
    }
    free(line);
    return rc;
}

static int run_model(struct run *r, struct err *err)
{
    const struct settings *s = r->settings;
    int rc = session_open(&r->session, s, err);
    if (rc == 0)
        rc = session_load(
            &r->session,
            2 * model_kv_bytes(model_plan(r->session.model), model_plan(r->session.model)->context),
            err);
    if (rc)
        return rc;
    const struct engine_config config = {
        .model = r->session.model,
        .cache = r->session.cache,
        .pool = r->session.pool,
        .most_sequences = 1,
        .most_queued = 1,
        .lookup = s->lookup,
        .notify = terminal_notify,
        .notify_arg = &r->terminal,
    };
    rc = engine_create(&config, &r->terminal.engine, err);
    if (rc)
        return rc;
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    if (s->system)
        rc = add_message(r, "system", s->system, strlen(s->system), err);
    if (rc == 0 && s->prompt)
        rc = add_message(r, "user", s->prompt, strlen(s->prompt), err);
    if (rc == 0)
        rc = s->prompt ? answer(r, err) : chat(r, err);
    engine_destroy(r->terminal.engine);
    return rc;
}

int command_run(const struct settings *s)
{
    struct err err;
    struct run r = {.settings = s, .messages = json_array()};
    terminal_init(&r.terminal);
    int rc = run_model(&r, &err);
    if (rc)
        fprintf(stderr, "ropewalk: %s\n", err.text);
    session_finish(&r.session);
    terminal_finish(&r.terminal);
    strbuf_finish(&r.answer);
    json_decref(r.messages);
    return rc != 0;
}
