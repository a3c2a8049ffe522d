// Request bodies for load.c, and how parts of them become text that was never sent before.
//
// Knows JSON only as far as "content": "..." strings of plain words, as bodies.py writes them: what changes is inside
// these, so a body stays valid and as long as it was. New words are drawn, by `seed`, from the first body's own.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXTS = 64, MAX_WORDS = 4096, HEAD_SPACE = 4096 };

typedef struct {
    char *bytes;                    // head and body, ready to be sent
    size_t length;
    int num_texts;
    struct { size_t start, end; } texts[MAX_TEXTS];  // what is inside the "content" strings
} Request;

static uint64_t seed = 1;
static int num_words;
static struct { const char *start; size_t length; } words[MAX_WORDS];

static uint64_t draw(void) {  // xorshift64*
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return seed * 2685821657736338717ULL;
}

static void find_texts(Request *request) {
    static const char OPENING[] = "\"content\": \"";
    char *at = request->bytes, *end = request->bytes + request->length;
    while (request->num_texts < MAX_TEXTS && (at = memmem(at, end - at, OPENING, sizeof OPENING - 1))) {
        at += sizeof OPENING - 1;
        char *close = memchr(at, '"', end - at);
        if (!close) return;
        request->texts[request->num_texts].start = at - request->bytes;
        request->texts[request->num_texts++].end = close - request->bytes;
        at = close;
    }
}

static void find_words(const Request *request) {
    for (int i = 0; i < request->num_texts; i++) {
        const char *at = request->bytes + request->texts[i].start, *end = request->bytes + request->texts[i].end;
        while (at < end && num_words < MAX_WORDS) {
            const char *space = memchr(at, ' ', end - at);
            if (!space) space = end;
            if (space > at) words[num_words].start = at, words[num_words++].length = space - at;
            at = space + 1;
        }
    }
}

// Reads one body and puts a head before it. False: there is no such file.
static bool load_body(Request *request, const char *folder, int number, int port, const char *key) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%02d.json", folder, number);
    FILE *file = fopen(name, "r");
    if (!file) return false;
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    request->bytes = malloc(length + HEAD_SPACE);
    request->length = snprintf(request->bytes, HEAD_SPACE,
                               "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                               "Content-Type: application/json\r\nAuthorization: Bearer %s\r\n"
                               "Content-Length: %ld\r\n\r\n", port, key, length);
    request->length += fread(request->bytes + request->length, 1, length, file);
    fclose(file);
    find_texts(request);
    return true;
}

// Words from `start` to `end`, the last cut short where it does not fit.
static void fill(char *start, char *end) {
    while (start < end) {
        size_t number = (draw() >> 32) * num_words >> 32, space = end - start;
        size_t length = words[number].length < space ? words[number].length : space;
        memcpy(start, words[number].start, length);
        start += length;
        if (start < end) *start++ = ' ';
    }
}

// Gives `bytes`, a copy of the request, new words in the last `sixteenths` of its text.
static void renew(const Request *request, char *bytes, int sixteenths) {
    size_t left = 0;
    for (int i = 0; i < request->num_texts; i++) left += request->texts[i].end - request->texts[i].start;
    left = left * sixteenths / 16;
    for (int i = request->num_texts - 1; i >= 0 && left > 0; i--) {
        size_t length = request->texts[i].end - request->texts[i].start;
        size_t taken = length < left ? length : left;
        fill(bytes + request->texts[i].end - taken, bytes + request->texts[i].end);
        left -= taken;
    }
}
