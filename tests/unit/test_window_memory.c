/* A model whose layers all have a window: what a long sequence holds stops growing there. */

#include "gguf_builder.h"
#include "runner.h"
#include "testlib.h"

#include <stdlib.h>
#include <unistd.h>

#define WINDOW 4096
#define CHUNK  512

static char path[] = "/tmp/test_window_memory_XXXXXX";

static size_t held_bytes(const struct runner *r)
{
    struct kv_stats st;
    kv_stats(r->cache, &st);
    assert_int_equal(st.bytes_free + st.bytes_used + st.bytes_cached, st.block_bytes_total);
    return st.bytes_used;
}

static void a_long_sequence_holds_a_window(void **state)
{
    (void)state;
    struct gguf_shape shape = gguf_tiny;
    struct gguf_builder b;
    struct runner r;
    shape.window = WINDOW;
    shape.context = 131072;
    gguf_init(&b);
    gguf_model(&b, &shape);
    gguf_write(&b, path);
    gguf_finish(&b);
    const struct model_options options = {.path = path, .window = -1, .threads = 2};
    runner_open(&r, &options, 64u << 20);
    const struct model_plan *p = model_plan(r.model);
    int length = getenv("ROPEWALK_TEST_SHORT") ? 3 * WINDOW : 8 * WINDOW;
    int32_t *tokens = calloc((size_t)length, sizeof *tokens);
    struct kv_seq *s = runner_seq(&r, tokens, length);
    size_t most = 0;
    for (int at = 0; at < length; at += CHUNK) {
        assert_int_equal(kv_seq_extend(s, tokens + at, CHUNK), 0);
        const struct batch_item item = {s, tokens + at, CHUNK, at, 0, 0};
        assert_int_equal(model_step(r.model, &(struct batch){.items = &item, .n_items = 1}), 0);
        kv_seq_commit(s, at + CHUNK);
        size_t held = held_bytes(&r);
        most = held > most ? held : most;
        if (at + CHUNK <= WINDOW)
            assert_int_equal(held, model_kv_bytes(p, at + CHUNK));
    }
    /* The plan's figure is for 131,072 tokens as for these. */
    assert_true(most <= model_kv_bytes(p, length));
    assert_int_equal(model_kv_bytes(p, length), model_kv_bytes(p, shape.context));
    assert_true(most >= model_kv_bytes(p, WINDOW));
    print_message("%d tokens hold %zu bytes, a window of %d is %zu\n", length, most, WINDOW,
                  model_kv_bytes(p, WINDOW));
    kv_seq_close(s);
    free(tokens);
    runner_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_sequence_holds_a_window),
    };
    int fd = mkstemp(path);
    if (fd < 0 || close(fd))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
