#include "schema.h"

#include "json_in.h"

#include <math.h>
#include <string.h>

const char *schema_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    default:
        return "null";
    }
}

bool schema_is_false(const json_t *value)
{
    return json_is_false(value);
}

bool schema_is_empty(const json_t *value)
{
    return (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

bool schema_is_one(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) == 1.0;
}

static const char *const wanted[] = {
    [SCHEMA_BOOL] = "true or false",
    [SCHEMA_INT] = "an integer",
    [SCHEMA_NUMBER] = "a number",
    [SCHEMA_TEXT] = "a string",
    [SCHEMA_LIST] = "a list",
    [SCHEMA_OBJECT] = "an object",
    [SCHEMA_ANY] = "a value",
    [SCHEMA_GIVEN_INT] = "an integer",
    [SCHEMA_GIVEN_BOOL] = "true or false",
};

static bool is_whole(const json_t *value)
{
    double v = json_real_value(value);
    return json_is_real(value) && v == floor(v) && fabs(v) < 9007199254740992.0;
}

static bool type_fits(enum schema_type type, const json_t *value)
{
    switch (type) {
    case SCHEMA_BOOL:
    case SCHEMA_GIVEN_BOOL:
        return json_is_boolean(value);
    case SCHEMA_INT:
    case SCHEMA_GIVEN_INT:
        return json_is_integer(value) || is_whole(value);
    case SCHEMA_NUMBER:
        return json_is_number(value);
    case SCHEMA_TEXT:
        return json_is_string(value);
    case SCHEMA_LIST:
        return json_is_array(value);
    case SCHEMA_OBJECT:
        return json_is_object(value);
    case SCHEMA_ANY:
        return true;
    }
    return false;
}

static int check_range(const struct schema_field *f, const json_t *value, struct api_error *e)
{
    bool text = f->type == SCHEMA_TEXT;
    if ((f->type != SCHEMA_INT && f->type != SCHEMA_NUMBER && !text) ||
        (f->least == 0 && f->most == 0))
        return 0;
    double v = text ? (double)json_string_length(value) : json_number_value(value);
    if (v >= f->least && v <= f->most)
        return 0;
    return api_invalid(e, f->name, "%s%.10g was given; it must be between %.10g and %.10g",
                       text ? "a length of " : "", v, f->least, f->most);
}

/* Whether `text` is one of `words`, which are parted by '|'. */
static bool is_word(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (const char *at = words; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strcspn(at, "|") == n && strncmp(at, text, n) == 0)
            return true;
    }
    return false;
}

int64_t schema_int(const json_t *value)
{
    return json_is_integer(value) ? json_integer_value(value) : (int64_t)json_real_value(value);
}

static void store(const struct schema_field *f, const json_t *value, void *out)
{
    void *at = (char *)out + f->offset;
    switch (f->type) {
    case SCHEMA_BOOL:
        *(bool *)at = json_is_true(value);
        break;
    case SCHEMA_INT:
        *(int64_t *)at = schema_int(value);
        break;
    case SCHEMA_NUMBER:
        *(double *)at = json_number_value(value);
        break;
    case SCHEMA_TEXT:
        *(const char **)at = json_string_value(value);
        break;
    case SCHEMA_LIST:
    case SCHEMA_OBJECT:
    case SCHEMA_ANY:
    case SCHEMA_GIVEN_INT:
    case SCHEMA_GIVEN_BOOL:
        *(const json_t **)at = value;
        break;
    }
}

static int read_field(const struct schema_field *f, const json_t *value, void *out,
                      struct api_error *e)
{
    if (json_is_null(value))
        return 0;
    if (!type_fits(f->type, value))
        return api_invalid(e, f->name, "%s was expected, not %s", wanted[f->type],
                           schema_type_name(value));
    if (f->type == SCHEMA_TEXT && strlen(json_string_value(value)) != json_string_length(value))
        return api_invalid(e, f->name, "a zero character (\\u0000) cannot be part of it");
    if (check_range(f, value, e))
        return -1;
    if (f->words && !is_word(f->words, json_string_value(value)))
        return api_invalid(e, f->name, "'%.40s' was given; it must be one of %s",
                           json_string_value(value), f->words);
    if (f->rule == SCHEMA_REFUSE && !(f->harmless && f->harmless(value)))
        return api_refuse(e, 400, "unsupported_value", f->name, "%s: not supported yet", f->name);
    if (f->rule == SCHEMA_HONOUR)
        store(f, value, out);
    return 0;
}

static const struct schema_field *find(const struct schema_field *const *tables, const char *name)
{
    for (; *tables; tables++)
        for (const struct schema_field *f = *tables; f->name; f++)
            if (strcmp(f->name, name) == 0)
                return f;
    return NULL;
}

int schema_read(const struct schema_field *const *tables, const json_t *object, void *out,
                struct schema_unknown *unknown, struct api_error *e)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        const struct schema_field *f = find(tables, name);
        if (f && read_field(f, value, out, e))
            return -1;
        if (!f && unknown->n < (int)(sizeof unknown->names / sizeof *unknown->names))
            unknown->names[unknown->n++] = name;
    }
    return 0;
}

static const struct {
    int error, status;
    const char *code;
} refusals[] = {
    {ERR_FORMAT, 400, "invalid_json"},
    {ERR_LIMIT, 413, "request_too_large"},
    {ERR_NOMEM, 500, "out_of_memory"},
};

json_t *schema_read_body(const char *body, size_t bytes, const struct schema_field *const *tables,
                         void *out, struct schema_unknown *unknown, struct api_error *e)
{
    struct err err;
    char member[sizeof e->param] = "";
    json_t *root = json_in_parse(body ? body : "", bytes, &err);
    if (!root && bytes && err.code == ERR_FORMAT)
        json_in_wrong_member(body, bytes, member, sizeof member);
    for (size_t i = 0; !root && i < sizeof refusals / sizeof *refusals; i++)
        if (refusals[i].error == err.code)
            api_refuse(e, refusals[i].status, refusals[i].code, member, "%s", err.text);
    if (root && schema_read(tables, root, out, unknown, e)) {
        json_decref(root);
        root = NULL;
    }
    return root;
}
