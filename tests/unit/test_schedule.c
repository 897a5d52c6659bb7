#include "server/schedule.h"

#include "testlib.h"

#include <math.h>
#include <string.h>

static const struct sched_limits wide = {.step_tokens = 512, .prompt_tokens = 64};

static struct sched_seq decoder(uint64_t arrival)
{
    return (struct sched_seq){.left = 1, .decoding = true, .arrival = arrival, .holds = true};
}

static struct sched_seq prompt(int left, uint64_t arrival)
{
    return (struct sched_seq){.left = left, .arrival = arrival, .holds = true};
}

/* ---- grants ---- */

static void nothing_to_do_grants_nothing(void **state)
{
    (void)state;
    struct sched_seq none[1];
    assert_int_equal(sched_plan(none, 0, &wide), 0);
    struct sched_seq idle[] = {prompt(0, 1)};
    idle[0].grant = 77;
    assert_int_equal(sched_plan(idle, 1, &wide), 0);
    assert_int_equal(idle[0].grant, 0);
}

static void decodes_come_before_prompts(void **state)
{
    (void)state;
    struct sched_seq s[] = {prompt(1000, 1), decoder(2), prompt(1000, 3), decoder(4)};
    const struct sched_limits limits = {.step_tokens = 3, .prompt_tokens = 64};
    assert_int_equal(sched_plan(s, 4, &limits), 3);
    assert_int_equal(s[0].grant, 1); /* what the decodes leave */
    assert_int_equal(s[1].grant, 1);
    assert_int_equal(s[2].grant, 0);
    assert_int_equal(s[3].grant, 1);
}

static void prompts_get_chunks_in_the_order_of_arrival(void **state)
{
    (void)state;
    struct sched_seq s[] = {prompt(300, 3), prompt(200, 1), prompt(100, 2)};
    const struct sched_limits limits = {.step_tokens = 256, .prompt_tokens = 1};
    assert_int_equal(sched_plan(s, 3, &limits), 256); /* nobody decodes: no budget */
    assert_int_equal(s[0].arrival, 1);
    assert_int_equal(s[0].grant, 200);
    assert_int_equal(s[1].arrival, 2);
    assert_int_equal(s[1].grant, 56);
    assert_int_equal(s[2].grant, 0);
}

static void prompts_keep_to_the_budget_while_somebody_decodes(void **state)
{
    (void)state;
    struct sched_seq s[] = {decoder(1), prompt(50, 2), prompt(50, 3)};
    assert_int_equal(sched_plan(s, 3, &wide), 65);
    assert_int_equal(s[1].grant, 50);
    assert_int_equal(s[2].grant, 14);
}

static void who_waits_for_anothers_tokens_gets_none(void **state)
{
    (void)state;
    struct sched_seq s[] = {prompt(50, 1), prompt(50, 2), decoder(3)};
    s[0].waiting = true;
    s[2].waiting = true;
    assert_int_equal(sched_plan(s, 3, &wide), 50);
    assert_int_equal(s[0].grant, 0);
    assert_int_equal(s[1].grant, 50);
    assert_int_equal(s[2].grant, 0);
}

static void lower_priority_numbers_come_first(void **state)
{
    (void)state;
    struct sched_seq s[] = {prompt(100, 1), prompt(100, 2), prompt(100, 3)};
    s[1].priority = -1;
    s[2].priority = INT32_MIN;
    s[0].priority = INT32_MAX;
    const struct sched_limits limits = {.step_tokens = 150, .prompt_tokens = 64};
    assert_int_equal(sched_plan(s, 3, &limits), 150);
    assert_int_equal(s[0].arrival, 3);
    assert_int_equal(s[0].grant, 100);
    assert_int_equal(s[1].arrival, 2);
    assert_int_equal(s[1].grant, 50);
    assert_int_equal(s[2].grant, 0);
}

static void tags_stay_with_their_sequences(void **state)
{
    (void)state;
    struct sched_seq s[] = {prompt(10, 2), prompt(10, 1)};
    int tags[2];
    s[0].tag = &tags[0];
    s[1].tag = &tags[1];
    sched_plan(s, 2, &wide);
    assert_ptr_equal(s[0].tag, &tags[1]);
    assert_ptr_equal(s[1].tag, &tags[0]);
}

#define MOST 64

static int random_seqs(uint64_t *seed, struct sched_seq *s)
{
    int n = (int)(test_random(seed) % (MOST + 1));
    for (int i = 0; i < n; i++) {
        bool decoding = test_random(seed) % 2;
        s[i] = (struct sched_seq){
            .left = decoding ? 1 : (int)(test_random(seed) % 2000),
            .decoding = decoding,
            .waiting = test_random(seed) % 8 == 0,
            .priority = (int)(test_random(seed) % 3) - 1,
            .arrival = test_random(seed) % 2000 * MOST + (uint64_t)i,
            .holds = test_random(seed) % 2,
        };
    }
    return n;
}

static void check_grants(const struct sched_seq *s, int n, const struct sched_limits *l, int total)
{
    int sum = 0, decodes = 0, prompts = 0;
    for (int i = 0; i < n; i++) {
        assert_in_range(s[i].grant, 0, s[i].left);
        assert_false(s[i].waiting && s[i].grant);
        sum += s[i].grant;
        decodes += s[i].decoding ? s[i].grant : 0;
        prompts += s[i].decoding ? 0 : s[i].grant;
        /* nobody who could go on is left out while there is room for all who decode */
        if (n <= l->step_tokens && s[i].decoding && !s[i].waiting)
            assert_int_equal(s[i].grant, 1);
    }
    assert_int_equal(sum, total);
    assert_true(sum <= l->step_tokens);
    assert_true(!decodes || prompts <= l->prompt_tokens);
    /* a prompt gets tokens only when those before it in line get all they want */
    for (int i = 0, short_of = 0; i < n; i++) {
        if (s[i].decoding || s[i].waiting)
            continue;
        assert_false(short_of && s[i].grant);
        short_of = short_of || s[i].grant < s[i].left;
    }
}

static void grants_hold_for_any_sequences(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int run = 0; run < 5000; run++) {
        struct sched_seq s[MOST];
        const struct sched_limits limits = {
            .step_tokens = 1 + (int)(test_random(&seed) % 300),
            .prompt_tokens = 1 + (int)(test_random(&seed) % 300),
        };
        int n = random_seqs(&seed, s);
        check_grants(s, n, &limits, sched_plan(s, n, &limits));
    }
}

/* ---- starvation ---- */

/* Sequences that the engine admits: at most as many as a step has tokens. */
struct hall {
    struct sched_seq s[MOST];
    int answer[MOST]; /* tokens left to decode */
    int n;
    uint64_t arrivals;
};

static void enter(struct hall *h, uint64_t *seed)
{
    struct sched_seq *s = &h->s[h->n];
    *s = prompt(1 + (int)(test_random(seed) % 500), ++h->arrivals);
    s->tag = &h->answer[h->arrivals % MOST];
    *(int *)s->tag = 1 + (int)(test_random(seed) % 50);
    h->n++;
}

static void step(struct hall *h, const struct sched_limits *limits)
{
    int kept = 0;
    assert_true(sched_plan(h->s, h->n, limits) > 0);
    for (int i = 0; i < h->n; i++) {
        struct sched_seq s = h->s[i];
        int *answer = s.tag;
        s.left -= s.grant;
        if (s.left == 0) { /* its next token has been drawn */
            s.decoding = true;
            s.left = 1;
            --*answer;
        }
        if (*answer > 0)
            h->s[kept++] = s;
    }
    h->n = kept;
}

/* However many keep coming, whoever is in gets out: the first in line after at most as many steps
 * as its own prompt and answer take. */
static void nobody_starves_while_others_keep_coming(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int most = 1; most <= MOST / 2; most = most * 2 + 1) {
        const struct sched_limits limits = {.step_tokens = most, .prompt_tokens = 1 + most / 4};
        struct hall h = {0};
        uint64_t first = 0, since = 0;
        for (uint64_t now = 0; now < 20000; now++) {
            while (h.n < most)
                enter(&h, &seed);
            step(&h, &limits);
            uint64_t oldest = UINT64_MAX;
            for (int i = 0; i < h.n; i++)
                oldest = h.s[i].arrival < oldest ? h.s[i].arrival : oldest;
            if (oldest != first) {
                first = oldest;
                since = now;
            }
            assert_true(now - since <= 500 + 50);
        }
    }
}

/* ---- victims ---- */

static void the_last_in_line_gives_way(void **state)
{
    (void)state;
    struct sched_seq s[] = {decoder(1), decoder(2), decoder(3), prompt(9, 4)};
    assert_int_equal(sched_victim(s, 4, 0), 3);
    s[3].holds = false;
    assert_int_equal(sched_victim(s, 4, 0), 2);
    assert_int_equal(sched_victim(s, 4, 1), 2);
    assert_int_equal(sched_victim(s, 4, 2), -1); /* never one that is before it */
    s[0].priority = 1;
    assert_int_equal(sched_victim(s, 4, 1), 0);
    assert_int_equal(sched_victim(s, 4, 0), -1);
    assert_int_equal(sched_victim(s, 1, 0), -1);
}

static void a_victim_comes_after_the_needy_and_is_the_last(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int run = 0; run < 5000; run++) {
        struct sched_seq s[MOST];
        int n = random_seqs(&seed, s);
        if (n == 0)
            continue;
        sched_plan(s, n, &wide); /* puts them in line */
        int needy = (int)(test_random(&seed) % (uint64_t)n), expected = -1;
        for (int i = needy + 1; i < n; i++)
            expected = s[i].holds ? i : expected;
        assert_int_equal(sched_victim(s, n, needy), expected);
    }
}

/* ---- the budget ---- */

static void the_budget_fills_the_gap_between_tokens(void **state)
{
    (void)state;
    assert_int_equal(sched_prompt_budget(100, 20, 0.5, 32, 512), 160);
    assert_int_equal(sched_prompt_budget(100, 20, 0.1, 32, 512), 512);
    assert_int_equal(sched_prompt_budget(100, 99, 0.5, 32, 512), 32);
    assert_int_equal(sched_prompt_budget(100, 500, 0.5, 32, 512), 32);
    assert_int_equal(sched_prompt_budget(0, 0, 0.5, 32, 512), 32);
    assert_int_equal(sched_prompt_budget(100, 20, 0, 32, 512), 512); /* not measured yet */
}

static void the_budget_bears_any_measurement(void **state)
{
    (void)state;
    static const double wild[] = {0, -1, 1e-300, 1e300, INFINITY, -INFINITY, NAN};
    const int n = sizeof wild / sizeof wild[0];
    for (int i = 0; i < n * n * n; i++) {
        int tokens = sched_prompt_budget(wild[i % n], wild[i / n % n], wild[i / n / n], 32, 512);
        assert_in_range(tokens, 32, 512);
    }
    assert_int_equal(sched_prompt_budget(100, 20, 0.5, 32, 16), 16); /* never more than a step */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_do_grants_nothing),
        cmocka_unit_test(decodes_come_before_prompts),
        cmocka_unit_test(prompts_get_chunks_in_the_order_of_arrival),
        cmocka_unit_test(prompts_keep_to_the_budget_while_somebody_decodes),
        cmocka_unit_test(who_waits_for_anothers_tokens_gets_none),
        cmocka_unit_test(lower_priority_numbers_come_first),
        cmocka_unit_test(tags_stay_with_their_sequences),
        cmocka_unit_test(grants_hold_for_any_sequences),
        cmocka_unit_test(nobody_starves_while_others_keep_coming),
        cmocka_unit_test(the_last_in_line_gives_way),
        cmocka_unit_test(a_victim_comes_after_the_needy_and_is_the_last),
        cmocka_unit_test(the_budget_fills_the_gap_between_tokens),
        cmocka_unit_test(the_budget_bears_any_measurement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
