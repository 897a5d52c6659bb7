#include "arch.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct arch archs[] = {
    {.name = "llama", .pattern = "W", .rope_neighbours = true},
    {.name = "mistral3", .pattern = "W", .rope_neighbours = true},
    {.name = "qwen2", .pattern = "F"},
    {.name = "qwen3", .pattern = "F"},
    {.name = "phi3", .pattern = "W"},
    {.name = "gemma", .pattern = "F", .activation = ACTIVATION_GELU_TANH, .scale_embedding = true},
    {.name = "gemma2",
     .pattern = "LF",
     .activation = ACTIVATION_GELU_TANH,
     .scale_embedding = true,
     .wide_layers = 46}, /* 27B */
    {.name = "gemma3",
     .pattern = "LLLLLF",
     .activation = ACTIVATION_GELU_TANH,
     .scale_embedding = true,
     .wide_layers = 62, /* 27B */
     .local_rope = true},
    {.name = "cohere2",
     .pattern = "LLLN",
     .norm = NORM_LAYER,
     .rope_neighbours = true,
     .parallel = true},
};

#define N_ARCHS (sizeof archs / sizeof archs[0])

const struct arch *arch_find(const char *name, size_t bytes)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (strlen(archs[i].name) == bytes && !memcmp(archs[i].name, name, bytes))
            return &archs[i];
    return NULL;
}

static char names[1024];

static void list_names(void)
{
    size_t n = 0;
    for (size_t i = 0; i < N_ARCHS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", archs[i].name);
}

const char *arch_names(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, list_names);
    return names;
}
