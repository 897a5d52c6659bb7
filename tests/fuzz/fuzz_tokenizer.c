/* Any text through both kinds of tokenizer: it must come back byte by byte. libFuzzer's entry; the
 * first byte chooses the pre-tokenizer and the options. */
#define _GNU_SOURCE /* memmem */

#include "pretok_table.h"
#include "vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *tokenizer_make(int i)
{
    static struct vocab b;
    vocab_init(&b, i == 0 ? TOK_SPM : TOK_BPE, i == 0 ? NULL : pretok_rows[i - 1].names[0]);
    /* Where no alphabet hides the bytes, both kinds take them as <0xNN>. */
    bool characters = i > 0 && pretok_rows[i - 1].traits.characters;
    b.v.kind = characters ? TOK_SPM : b.v.kind;
    vocab_add_bytes(&b);
    b.v.kind = i == 0 ? TOK_SPM : TOK_BPE;
    vocab_add(&b, "the", TOK_NORMAL, -1);
    vocab_add(&b, "th", TOK_NORMAL, -2);
    vocab_add(&b, "<|im_start|>", TOK_CONTROL, 0);
    vocab_add(&b, "<|im", TOK_USER, 0);
    vocab_add(&b, "  ", TOK_USER, 0);
    vocab_merge(&b, "a", "b");
    vocab_merge(&b, "ab", "ab");
    vocab_merge(&b, "1", "2");
    struct tokenizer *t = vocab_create(&b);
    vocab_finish(&b);
    return t;
}

static void round_trip(const struct tokenizer *t, const char *text, size_t bytes, bool special)
{
    struct tok_ids ids = {0};
    struct err err = {0};
    unsigned char *plain = calloc(bytes + 1, 1);
    for (size_t i = 0; i < bytes; i++)
        plain[i] = text[i] == 'm';
    struct tok_options options = {.special = special, .plain = special ? plain : NULL};
    if (tok_encode(t, text, bytes, &options, &ids, &err) == 0) {
        struct strbuf out = {0};
        if (tok_decode(t, ids.ids, ids.n, true, &out) < 0 || out.len != bytes ||
            (bytes && memcmp(out.data, text, bytes) != 0))
            abort();
        strbuf_finish(&out);
    }
    free(plain);
    free(ids.ids);
}

/* Composing characters and U+2581 change text by design: no round trip there. */
static bool changes(int kind, const char *text, size_t bytes)
{
    if (kind > 0 && pretok_rows[kind - 1].traits.nfc)
        return true;
    bool characters = kind == 0 || pretok_rows[kind - 1].traits.characters;
    return characters && memmem(text, bytes, "\xE2\x96\x81", 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *made[256];
    if (size == 0)
        return 0;
    int kind = (data[0] >> 1) % (pretok_n_rows + 1);
    if (!made[kind])
        made[kind] = tokenizer_make(kind);
    char *text = malloc(size);
    memcpy(text, data + 1, size - 1);
    if (!changes(kind, text, size - 1))
        round_trip(made[kind], text, size - 1, data[0] & 1);
    free(text);
    return 0;
}
