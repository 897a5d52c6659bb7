#include "attention.h"
#include "mem.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static const char *const scaling_names[ROPE_SCALING_COUNT] = {
    [ROPE_NONE] = "none",     [ROPE_LINEAR] = "linear",     [ROPE_YARN] = "yarn",
    [ROPE_LLAMA3] = "llama3", [ROPE_LONGROPE] = "longrope",
};

const char *rope_scaling_name(enum rope_scaling s)
{
    return scaling_names[s];
}

/* ---- scalings: what becomes of a frequency, and the magnitude they ask for ---- */

struct scaling {
    bool needs_factor, needs_original;
    void (*apply)(const struct rope_config *c, double *frequency);
    double (*magnitude)(const struct rope_config *c);
};

/* Position interpolation (Chen et al. 2023). */
static void linear_apply(const struct rope_config *c, double *frequency)
{
    for (int i = 0; i < c->dims / 2; i++)
        frequency[i] /= c->factor;
}

/* The pair (as a real number) that turns `turns` times over the original context. */
static double yarn_pair(const struct rope_config *c, double turns)
{
    return c->dims * log(c->original_context / (turns * 2 * pi)) / (2 * log((double)c->base));
}

/* YaRN (Peng et al. 2023): pairs that turn often keep their frequency, those that turn seldom are
 * interpolated, with a ramp over pairs between. As in published implementations its ends are whole
 * pairs. */
static void yarn_apply(const struct rope_config *c, double *frequency)
{
    double low = fmax(floor(yarn_pair(c, c->yarn_beta_fast)), 0);
    double high = fmin(ceil(yarn_pair(c, c->yarn_beta_slow)), c->dims - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < c->dims / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        double keep = (1 - ramp) * c->yarn_ext_factor;
        frequency[i] = frequency[i] / c->factor * (1 - keep) + frequency[i] * keep;
    }
}

static double yarn_magnitude(const struct rope_config *c)
{
    if (c->factor <= 1 || c->yarn_ext_factor == 0)
        return 1;
    return 0.1 * log((double)c->factor) + 1;
}

/* Llama 3.1: long waves are interpolated, short ones kept, a linear blend between. */
static void llama3_apply(const struct rope_config *c, double *frequency)
{
    for (int i = 0; i < c->dims / 2; i++) {
        double turns = c->original_context * frequency[i] / (2 * pi);
        double keep = (turns - c->low_freq) / ((double)c->high_freq - c->low_freq);
        keep = fmin(fmax(keep, 0), 1);
        frequency[i] = (1 - keep) * frequency[i] / c->factor + keep * frequency[i];
    }
}

/* LongRoPE (Ding et al. 2024): the frequencies are changed by the divisors alone. */
static double longrope_magnitude(const struct rope_config *c)
{
    if (c->factor <= 1)
        return 1;
    return sqrt(1 + log((double)c->factor) / log((double)c->original_context));
}

static const struct scaling scalings[ROPE_SCALING_COUNT] = {
    [ROPE_NONE] = {false, false, NULL, NULL},
    [ROPE_LINEAR] = {true, false, linear_apply, NULL},
    [ROPE_YARN] = {true, true, yarn_apply, yarn_magnitude},
    [ROPE_LLAMA3] = {true, true, llama3_apply, NULL},
    [ROPE_LONGROPE] = {false, true, NULL, longrope_magnitude},
};

/* ---- set-up ---- */

static int check_scaling(const struct rope_config *c, struct err *err)
{
    if ((unsigned)c->scaling >= ROPE_SCALING_COUNT)
        return err_set(err, ERR_UNSUPPORTED, "RoPE scaling number %d: there is no such scaling",
                       (int)c->scaling);
    const struct scaling *s = &scalings[c->scaling];
    const char *name = scaling_names[c->scaling];
    if (s->needs_factor && !(c->factor > 0 && isfinite(c->factor)))
        return err_set(err, ERR_UNSUPPORTED, "RoPE scaling %s with factor %g: it must be positive",
                       name, (double)c->factor);
    if (s->needs_original && c->original_context < 2)
        return err_set(err, ERR_UNSUPPORTED,
                       "RoPE scaling %s with an original context of %d positions", name,
                       c->original_context);
    if (c->scaling == ROPE_LLAMA3 && !(c->low_freq > 0 && c->high_freq > c->low_freq))
        return err_set(err, ERR_UNSUPPORTED,
                       "RoPE scaling llama3 with frequency factors %g (low) and %g (high): they "
                       "must be positive, the low one the smaller",
                       (double)c->low_freq, (double)c->high_freq);
    if (c->scaling == ROPE_YARN && !(c->yarn_beta_slow > 0 && c->yarn_beta_fast > 0))
        return err_set(
            err, ERR_UNSUPPORTED,
            "RoPE scaling yarn with beta_fast %g and beta_slow %g: they must be positive",
            (double)c->yarn_beta_fast, (double)c->yarn_beta_slow);
    return 0;
}

static int check_config(const struct rope_config *c, struct err *err)
{
    if (c->dims < 2 || c->dims % 2 || c->dims > 1 << 16)
        return err_set(err, ERR_UNSUPPORTED,
                       "RoPE over %d dimensions of a head: an even number is expected", c->dims);
    if (!(c->base > 1 && isfinite(c->base)))
        return err_set(err, ERR_UNSUPPORTED, "RoPE with base %g: more than 1 is expected",
                       (double)c->base);
    if (!isfinite(c->attention_factor) || c->attention_factor < 0)
        return err_set(err, ERR_UNSUPPORTED, "RoPE with attention factor %g",
                       (double)c->attention_factor);
    for (int i = 0; c->divisors && i < c->dims / 2; i++)
        if (!(c->divisors[i] != 0 && isfinite(c->divisors[i])))
            return err_set(err, ERR_UNSUPPORTED, "RoPE frequency divisor %d is %g", i,
                           (double)c->divisors[i]);
    return check_scaling(c, err);
}

int rope_init(struct rope *r, const struct rope_config *config, struct err *err)
{
    *r = (struct rope){.dims = config->dims, .neighbours = config->neighbours};
    int rc = check_config(config, err);
    if (rc)
        return rc;
    r->frequency = mem_alloc((size_t)config->dims / 2, sizeof *r->frequency);
    if (!r->frequency)
        return err_set(err, ERR_NOMEM, "no memory for RoPE's %d frequencies", config->dims / 2);
    for (int i = 0; i < config->dims / 2; i++) {
        double divisor = config->divisors ? (double)config->divisors[i] : 1;
        r->frequency[i] = pow((double)config->base, -2.0 * i / config->dims) / divisor;
    }
    const struct scaling *s = &scalings[config->scaling];
    if (s->apply)
        s->apply(config, r->frequency);
    double magnitude = s->magnitude ? s->magnitude(config) : 1;
    r->magnitude = config->attention_factor > 0 ? config->attention_factor : (float)magnitude;
    return 0;
}

void rope_finish(struct rope *r)
{
    mem_free(r->frequency);
    r->frequency = NULL;
}

/* ---- use ---- */

void rope_table(const struct rope *r, int64_t position, float *table)
{
    int pairs = r->dims / 2;
    for (int i = 0; i < pairs; i++) {
        double angle = (double)position * r->frequency[i];
        table[i] = (float)(cos(angle) * r->magnitude);
        table[pairs + i] = (float)(sin(angle) * r->magnitude);
    }
}

/* Pair i is elements i * step and i * step + apart. */
static void rotate_head(const struct rope *r, const float *table, float *restrict x)
{
    int pairs = r->dims / 2, step = r->neighbours ? 2 : 1, apart = r->neighbours ? 1 : pairs;
    for (int i = 0; i < pairs; i++) {
        float *a = x + (size_t)i * step, *b = a + apart;
        float c = table[i], s = table[pairs + i], a0 = *a, b0 = *b;
        *a = a0 * c - b0 * s;
        *b = a0 * s + b0 * c;
    }
}

void rope_apply(const struct rope *r, const float *table, float *x, int heads, int stride)
{
    for (int h = 0; h < heads; h++)
        rotate_head(r, table, x + (size_t)h * stride);
}
