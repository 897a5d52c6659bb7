#include "pretok_table.h"

/* The patterns are those of the models' own tokenizer.json files; the names are those under which
 * GGUF converters file them. */

#define SUFFIX     "(?i:'s|'t|'re|'ve|'m|'ll|'d)" /* English contractions */
#define LETTERS    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES     "\\s+(?!\\S)|\\s+"
#define LINES      "\\s*[\\r\\n]+|" SPACES
#define UPPER      "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER      "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD       "[^\\r\\n\\p{L}\\p{N}]?"
#define CASED(end) LEAD UPPER "*" LOWER "+" end "|" LEAD UPPER "+" LOWER "*" end
/* UPPER and LOWER without Chinese characters, written as what they are not. */
#define UPPER_NOT_HAN      "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define LOWER_NOT_HAN      "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"

#define GPT2               "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" SPACES
#define LLAMA3(digits)     SUFFIX "|" LETTERS "|\\p{N}" digits "|" SYMBOLS "|" LINES
#define GPT4O(digits, end) CASED(end) "|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES
#define CJK                "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"
#define ASCII_WORD         "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
#define DEEPSEEK3_LETTERS  ASCII_WORD "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
#define DEEPSEEK3          DEEPSEEK3_LETTERS "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES
#define BLOOM              " ?[^(\\s|.,!?…。，、।۔،)]+"
/* The end of a text, found without trying every blank of every run: the same as \s+$. */
#define TRAILING "(?<!\\s)\\s++$"
/* Digits up to where a word ends, as the tokenizers library sees words. */
#define NUMBER    "(?<!\\d)\\d++(?![\\p{L}\\p{M}\\p{Nl}\\p{Pc}²³¹¼½¾])"
#define CJK_RANGE "[一-龥ࠀ-一가-\\x{D7FF}]+"
/* Letters with case as DeepSeek LLM lists them, an older Unicode's. */
#define DEEPSEEK_CASED                                                                             \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                 \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"         \
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"                  \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                       \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                 \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                 \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}"        \
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}"         \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"                 \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"                  \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}"        \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"         \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                  \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"                 \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"               \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"         \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define ASIAN                                                                                      \
    "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{30FF}"                \
    "\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}"                     \
    "\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}"                 \
    "\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+"

const struct pretok_row pretok_rows[] = {
    {.names = {"default"},
     .steps = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = {"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en",
               "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert",
               "exaone4"},
     .steps = {GPT2}},
    {.names = {"mpt", "olmo", "jais", "trillion", "granite-docling"}, .steps = {GPT2}},
    {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
               "mellum2"},
     .steps = {"\\p{N}", GPT2}},
    {.names = {"falcon"}, .steps = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
               "lfm2", "jina-v5-nano"},
     .steps = {LLAMA3("{1,3}")},
     .traits = {.ignore_merges = true, .adds_bos = true}},
    {.names = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, .steps = {LLAMA3("{1,3}")}},
    {.names = {"qwen2"}, .steps = {LLAMA3("")}, .traits = {.nfc = true}},
    {.names = {"stablelm2", "hunyuan", "solar-open", "megrez", "deepseek-r1-qwen", "kormo",
               "f2llmv2", "grok-2"},
     .steps = {LLAMA3("")}},
    {.names = {"laguna"}, .steps = {"[^\\n]+|\\n+", LLAMA3("")}},
    {.names = {"ufakzeka"}, .steps = {LETTERS "|\\p{N}|" SYMBOLS "|" LINES}},
    {.names = {"qwen35"},
     .steps = {SUFFIX
               "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
               "" LINES},
     .traits = {.nfc = true}},
    {.names = {"minicpm5"},
     .steps = {"\\p{N}{1,3}", LLAMA3("+")},
     .traits = {.ignore_merges = true}},
    {.names = {"seed-coder"},
     .steps = {SUFFIX "|" LETTERS "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES}},
    {.names = {"bailingmoe", "bailingmoe2", "llada-moe"},
     .steps = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
               "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|" SPACES}},
    {.names = {"exaone-moe"},
     .steps = {SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}(?: ?\\p{L}|\\p{M})*+|\\p{N}| "
                      "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|" SPACES}},
    {.names = {"deepseek-llm"},
     .steps = {"[\\r\\n]", "\\s?[" DEEPSEEK_CASED "]+", "\\s?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+",
               TRAILING, CJK_RANGE, "\\p{N}+"}},
    {.names = {"deepseek-coder"},
     .steps = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_RANGE, "\\p{N}"}},
    {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
     .steps = {"\\p{N}{1,3}", CJK, DEEPSEEK3}},
    {.names = {"spark2_5"},
     .steps = {"\\p{N}{1,3}", CJK, DEEPSEEK3_LETTERS "| ?[\\p{P}\\p{S}]+|[\\r\\n]|" SPACES,
               "\\p{N}"}},
    {.names = {"afmoe"}, .steps = {"\\p{N}+", ASIAN, DEEPSEEK3}, .threes = 1},
    {.names = {"youtu"},
     .steps = {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-"
               "龥\\x{"
               "3040}"
               "-"
               "\\x{"
               "30FF}"
               "]"
               "+",
               GPT4O("", SUFFIX "?")},
     .traits = {.ignore_merges = true}},
    {.names = {"poro-chat", "bloom", "gpt3-finnish"}, .steps = {BLOOM}},
    {.names = {"viking"}, .steps = {BLOOM, "\\p{N}"}},
    {.names = {"tekken"},
     .steps = {GPT4O("", "")},
     .traits = {.ignore_merges = true, .adds_bos = true}},
    {.names = {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
     .steps = {GPT4O("{1,3}", SUFFIX "?")}},
    {.names = {"granite-embed-multi-97m"},
     .steps = {GPT4O("{1,3}", SUFFIX "?")},
     .traits = {.ignore_merges = true}},
    {.names = {"tiny_aya", "cohere2moe"},
     .steps = {NUMBER, GPT4O("{1,3}", SUFFIX "?")},
     .threes = 1},
    {.names = {"kimi-k2"},
     .steps = {"\\p{sc:Han}+|" LEAD UPPER_NOT_HAN "*" LOWER_NOT_HAN "+" SUFFIX
               "?|" LEAD UPPER_NOT_HAN "+" LOWER_NOT_HAN "*" SUFFIX "?|\\p{N}{1,3}|" SYMBOLS
               "|" LINES}},
    {.names = {"superbpe"}, .steps = {"\\p{N}+", "(?:\\d{3})++(?!\\d)"}, .threes = 2},
    {.names = {"chameleon"},
     .steps = {"<sentinel:[0-9]+>|IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}",
               "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     .traits = {.adds_bos = true}},
    {.names = {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}, .traits = {.characters = true}},
};
const int pretok_n_rows = sizeof pretok_rows / sizeof pretok_rows[0];
