#include "schedule.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const struct sched_seq *x = a, *y = b;
    if (x->priority != y->priority)
        return x->priority < y->priority ? -1 : 1;
    return (x->arrival > y->arrival) - (x->arrival < y->arrival);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

int sched_plan(struct sched_seq *seqs, int n, const struct sched_limits *limits)
{
    int total = 0;
    qsort(seqs, (size_t)n, sizeof *seqs, compare);
    for (int i = 0; i < n; i++) {
        bool turn = seqs[i].decoding && !seqs[i].waiting && total < limits->step_tokens;
        seqs[i].grant = turn ? least(seqs[i].left, limits->step_tokens - total) : 0;
        total += seqs[i].grant;
    }
    int prompt = limits->step_tokens - total;
    if (total)
        prompt = least(prompt, limits->prompt_tokens);
    for (int i = 0; i < n && prompt > 0; i++) {
        if (seqs[i].decoding || seqs[i].waiting)
            continue;
        seqs[i].grant = least(seqs[i].left, prompt);
        prompt -= seqs[i].grant;
        total += seqs[i].grant;
    }
    return total;
}

int sched_victim(const struct sched_seq *seqs, int n, int needy)
{
    int victim = -1;
    for (int i = 0; i < n; i++)
        if (i != needy && seqs[i].holds && compare(&seqs[needy], &seqs[i]) < 0 &&
            (victim < 0 || compare(&seqs[victim], &seqs[i]) < 0))
            victim = i;
    return victim;
}

int sched_prompt_budget(double target_ms, double step_ms_without, double ms_per_prompt_token,
                        int smallest, int most)
{
    if (ms_per_prompt_token <= 0)
        return most;
    double tokens = (target_ms - step_ms_without) / ms_per_prompt_token;
    if (tokens <= smallest)
        return smallest;
    return tokens >= most ? most : (int)tokens;
}
