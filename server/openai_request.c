#include "openai.h"

#include "json_in.h"
#include "json_out.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

static bool is_text_format(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return type && strcmp(type, "text") == 0;
}

static bool is_text_modality(const json_t *v)
{
    const char *only = json_string_value(json_array_get(v, 0));
    return json_array_size(v) == 1 && only && strcmp(only, "text") == 0;
}

static bool is_no_tool_choice(const json_t *v)
{
    const char *text = json_string_value(v);
    return text && (strcmp(text, "none") == 0 || strcmp(text, "auto") == 0);
}

static bool is_medium(const json_t *v)
{
    const char *text = json_string_value(v);
    return text && strcmp(text, "medium") == 0;
}

#define AT(member) offsetof(struct openai_request, member)
#define HONOUR(name, type, member)                                                                 \
    {                                                                                              \
        name, SCHEMA_##type, SCHEMA_HONOUR, AT(member), 0, 0, NULL, NULL                           \
    }
#define RANGE(name, type, member, a, b)                                                            \
    {                                                                                              \
        name, SCHEMA_##type, SCHEMA_HONOUR, AT(member), a, b, NULL, NULL                           \
    }
#define WORDS(name, member, list)                                                                  \
    {                                                                                              \
        name, SCHEMA_TEXT, SCHEMA_HONOUR, AT(member), 0, 0, NULL, list                             \
    }
#define IGNORE(name, type)                                                                         \
    {                                                                                              \
        name, SCHEMA_##type, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL                                    \
    }
#define REFUSE(name, type, harmless)                                                               \
    {                                                                                              \
        name, SCHEMA_##type, SCHEMA_REFUSE, 0, 0, 0, harmless, NULL                                \
    }
#define END                                                                                        \
    {                                                                                              \
        NULL, SCHEMA_ANY, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL                                       \
    }

const struct schema_field openai_completion_fields[] = {
    HONOUR("prompt", ANY, prompt),           HONOUR("suffix", TEXT, suffix),
    RANGE("best_of", INT, best_of, 1, 20),   HONOUR("echo", BOOL, echo),
    HONOUR("logprobs", GIVEN_INT, logprobs), END,
};

const struct schema_field openai_chat_fields[] = {
    HONOUR("messages", LIST, messages),
    RANGE("max_completion_tokens", INT, max_completion_tokens, 0, INT_MAX),
    HONOUR("logprobs", BOOL, chat_logprobs),
    HONOUR("top_logprobs", GIVEN_INT, top_logprobs),
    HONOUR("add_generation_prompt", GIVEN_BOOL, add_generation_prompt),
    HONOUR("continue_final_message", BOOL, continue_final),
    HONOUR("chat_template_kwargs", OBJECT, template_kwargs),
    HONOUR("documents", LIST, documents),
    WORDS("reasoning_effort", reasoning_effort, "none|minimal|low|medium|high|xhigh|max"),
    REFUSE("echo", BOOL, schema_is_false),
    REFUSE("chat_template", TEXT, NULL),
    REFUSE("tools", LIST, schema_is_empty),
    REFUSE("tool_choice", ANY, is_no_tool_choice),
    REFUSE("functions", LIST, schema_is_empty),
    REFUSE("function_call", ANY, is_no_tool_choice),
    REFUSE("modalities", LIST, is_text_modality),
    REFUSE("audio", OBJECT, schema_is_empty),
    REFUSE("web_search_options", OBJECT, NULL),
    REFUSE("verbosity", TEXT, is_medium),
    IGNORE("parallel_tool_calls", BOOL),
    IGNORE("prediction", OBJECT),
    END,
};

const struct schema_field openai_common_fields[] = {
    HONOUR("model", TEXT, model),
    RANGE("n", INT, n, 1, 128),
    RANGE("max_tokens", INT, max_tokens, 0, INT_MAX),
    HONOUR("stream", BOOL, stream),
    HONOUR("stream_options", OBJECT, stream_options),
    HONOUR("stop", ANY, stop),
    HONOUR("logit_bias", OBJECT, logit_bias),
    HONOUR("seed", GIVEN_INT, seed),
    RANGE("temperature", NUMBER, temperature, 0, 2),
    RANGE("top_p", NUMBER, top_p, 0, 1),
    RANGE("min_p", NUMBER, min_p, 0, 1),
    RANGE("top_k", INT, top_k, -1, INT_MAX),
    RANGE("typical_p", NUMBER, typical_p, 0, 1),
    RANGE("top_n_sigma", NUMBER, top_n_sigma, -1, 1000),
    RANGE("xtc_probability", NUMBER, xtc_probability, 0, 1),
    RANGE("xtc_threshold", NUMBER, xtc_threshold, 0, 1),
    RANGE("repetition_penalty", NUMBER, repetition_penalty, 0.01, 100),
    RANGE("presence_penalty", NUMBER, presence_penalty, -2, 2),
    RANGE("frequency_penalty", NUMBER, frequency_penalty, -2, 2),
    RANGE("dry_multiplier", NUMBER, dry_multiplier, 0, 100),
    RANGE("dry_base", NUMBER, dry_base, 1, 100),
    RANGE("dry_allowed_length", INT, dry_allowed_length, 0, INT_MAX),
    RANGE("dry_penalty_last_n", INT, dry_last_n, -1, INT_MAX),
    HONOUR("dry_sequence_breakers", LIST, dry_breakers),
    RANGE("min_tokens", INT, min_tokens, 0, INT_MAX),
    HONOUR("stop_token_ids", LIST, stop_token_ids),
    HONOUR("allowed_token_ids", LIST, allowed_token_ids),
    HONOUR("bad_words", LIST, bad_words),
    HONOUR("include_stop_str_in_output", BOOL, include_stop),
    HONOUR("ignore_eos", BOOL, ignore_eos),
    HONOUR("skip_special_tokens", BOOL, skip_special),
    HONOUR("return_token_ids", BOOL, return_token_ids),
    HONOUR("return_tokens_as_token_ids", BOOL, tokens_as_ids),
    HONOUR("add_special_tokens", GIVEN_BOOL, add_special),
    RANGE("truncate_prompt_tokens", INT, truncate_prompt, -1, INT_MAX),
    WORDS("truncation_side", truncation_side, "left|right"),
    HONOUR("prompt_logprobs", GIVEN_INT, prompt_logprobs),
    RANGE("priority", INT, priority, INT_MIN, INT_MAX),
    RANGE("max_time", NUMBER, max_time, 0, 1e9),
    RANGE("request_id", TEXT, request_id, 1, 64),
    RANGE("cache_salt", TEXT, cache_salt, 1, 1024),
    HONOUR("context_shift", BOOL, context_shift),
    RANGE("n_keep", INT, n_keep, -1, INT_MAX),
    HONOUR("return_cache_info", BOOL, return_cache_info),
    REFUSE("response_format", OBJECT, is_text_format),
    REFUSE("structured_outputs", OBJECT, schema_is_empty),
    REFUSE("guided_json", ANY, NULL),
    REFUSE("guided_regex", ANY, NULL),
    REFUSE("guided_choice", ANY, NULL),
    REFUSE("guided_grammar", ANY, NULL),
    REFUSE("grammar", ANY, schema_is_empty),
    REFUSE("json_schema", ANY, NULL),
    REFUSE("logprob_token_ids", LIST, schema_is_empty),
    REFUSE("repetition_detection", ANY, NULL),
    REFUSE("thinking_token_budget", INT, NULL),
    REFUSE("use_beam_search", BOOL, schema_is_false),
    REFUSE("vllm_xargs", OBJECT, schema_is_empty),
    REFUSE("moderation", ANY, schema_is_empty),
    REFUSE("lora", LIST, schema_is_empty),
    IGNORE("length_penalty", NUMBER),
    IGNORE("spaces_between_special_tokens", BOOL),
    IGNORE("stream_interval", INT),
    IGNORE("session_id", TEXT),
    IGNORE("kv_transfer_params", OBJECT),
    IGNORE("user", TEXT),
    IGNORE("safety_identifier", TEXT),
    IGNORE("metadata", OBJECT),
    IGNORE("store", BOOL),
    IGNORE("service_tier", TEXT),
    IGNORE("prompt_cache_key", TEXT),
    IGNORE("prompt_cache_options", OBJECT),
    IGNORE("prompt_cache_retention", TEXT),
    END,
};
