#include "infill.h"

#include <string.h>

/* As the models' own publications write them. */
static const struct {
    const char *before, *after, *middle; /* middle may be NULL */
    bool after_first;
} forms[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false}, /* Qwen coder, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false},       /* StarCoder, SmolLM */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", false},       /* SantaCoder */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", false}, /* DeepSeek coder */
    {"▁<PRE>", "▁<SUF>", "▁<MID>", false},                         /* Code Llama */
    {" <PRE>", " <SUF>", " <MID>", false}, /* the same, as the tokenizer shows its space */
    {"[PREFIX]", "[SUFFIX]", NULL, true},  /* Codestral */
};

static int32_t find(const struct tokenizer *t, const char *text)
{
    return text ? tok_find(t, text, strlen(text)) : -1;
}

bool infill_find(const struct tokenizer *t, struct infill *out)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        *out = (struct infill){find(t, forms[i].before), find(t, forms[i].after),
                               find(t, forms[i].middle), forms[i].after_first};
        if (out->before >= 0 && out->after >= 0 && (out->middle >= 0 || !forms[i].middle))
            return true;
    }
    return false;
}
