// A closed-loop load generator: keeps one request in flight on each connection, whole answers or SSE streams.
//
//   load port=8000 connections=64 seconds=1 bodies=FOLDER key=sk-x [fresh=0..16] [seed=1] [requests=N] [done=1]
//
// Sends the bodies FOLDER/00.json, 01.json, ... in turn to /v1/chat/completions. `fresh` sixteenths of each one's text,
// counted from its end, are words that were never sent before (bodies.h). No request starts after `seconds`, or once
// `requests` have been answered; those in flight are awaited, and counted like the others, so that what the router's
// process used can be divided by them. done=1: an answer that lacks the stream's "[DONE]" is an error.
//
// Prints one line of JSON. Rates are over the time until the last answer; times are microseconds; events are lines
// "data: "; the time of an event is from the stamp that mock.c wrote into it.

#define _GNU_SOURCE
#include "bodies.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BODIES = 64, HEAD_BYTES = 16384, READ_BYTES = 262144, GRACE_S = 10 };

typedef struct {
    double *values;
    size_t length, capacity;
} Sample;

typedef enum { HEAD, SIZED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSED } Part;

typedef struct {
    int fd;
    bool is_busy, has_answered_before;
    char *own;                      // a copy of the request with words of its own
    const char *sending;
    size_t length, num_sent;
    long started_ns, first_event_ns;
    Part part;
    char head[HEAD_BYTES];
    size_t head_length;
    long left;                      // bytes of this body or chunk
    int line_length;                // of a chunk's size or a trailer
    int status;
    bool closes;
    int data_at, done_at, stamp_at; // how much of "data: ", "[DONE]" and of a stamp has been seen
    long stamp;
    bool is_done;
} Connection;

static int port = 0, num_connections = 1, fresh = 0, must_be_done = 0;
static double seconds = 1;
static long max_requests = 0;
static const char *folder = ".", *key = "x";

static Request requests[MAX_BODIES];
static int num_bodies, next_body, num_busy, poller;
static long started_ns, ends_ns;
static Sample totals, firsts, delays;
static long num_answers, num_events, last_answer_ns;
static long num_refused, num_cut, num_bad_status, num_undone, num_unfinished;
static int first_bad_status;

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void add(Sample *sample, double value) {
    if (sample->length == sample->capacity) {
        sample->capacity = sample->capacity ? 2 * sample->capacity : 65536;
        sample->values = realloc(sample->values, sample->capacity * sizeof(double));
        if (!sample->values) abort();
    }
    sample->values[sample->length++] = value;
}

static int ascending(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

// ---- Connections -------------------------------------------------------------------------------------------------

static void choose_request(Connection *connection) {
    const Request *request = &requests[next_body];
    next_body = (next_body + 1) % num_bodies;
    connection->sending = request->bytes;
    connection->length = request->length;
    if (fresh) {
        connection->own = realloc(connection->own, request->length);
        memcpy(connection->own, request->bytes, request->length);
        renew(request, connection->own, fresh);
        connection->sending = connection->own;
    }
}

static void watch(Connection *connection, bool wants_write, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(poller, operation, connection->fd, &event);
}

static bool open_connection(Connection *connection) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    connection->has_answered_before = false;
    if (connection->fd < 0 || connect(connection->fd, (struct sockaddr *)&address, sizeof address)) {
        if (connection->fd >= 0) close(connection->fd);
        connection->fd = -1;
        return false;
    }
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    watch(connection, false, EPOLL_CTL_ADD);
    return true;
}

static void close_connection(Connection *connection) {
    close(connection->fd);
    connection->fd = -1;
}

static bool send_more(Connection *connection) {
    bool was_waiting = connection->num_sent > 0;
    ssize_t sent = write(connection->fd, connection->sending + connection->num_sent,
                         connection->length - connection->num_sent);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) connection->num_sent += sent;
    bool is_waiting = connection->num_sent < connection->length;
    if (is_waiting || was_waiting) watch(connection, is_waiting, EPOLL_CTL_MOD);
    return true;
}

static void start_request(Connection *connection) {
    if (connection->fd < 0 && !open_connection(connection)) {
        num_refused++;
        return;
    }
    choose_request(connection);
    connection->num_sent = connection->head_length = 0;
    connection->part = HEAD;
    connection->first_event_ns = 0;
    connection->data_at = connection->done_at = 0;
    connection->stamp_at = -1;
    connection->is_done = connection->closes = false;
    connection->is_busy = true;
    num_busy++;
    connection->started_ns = now_ns();
    send_more(connection);  // a broken connection is found when it is read
}

static void go_on(Connection *connection, long now) {
    bool is_enough = max_requests && num_answers + num_busy >= max_requests;
    if (now < ends_ns && !is_enough) start_request(connection);
}

static void end_request(Connection *connection, long now) {
    connection->is_busy = false;
    connection->has_answered_before = true;
    num_busy--;
    num_answers++;
    if (connection->status != 200) {
        num_bad_status++;
        first_bad_status = first_bad_status ? first_bad_status : connection->status;
    } else if (must_be_done && !connection->is_done) {
        num_undone++;
    }
    last_answer_ns = now;
    add(&totals, (now - connection->started_ns) / 1e3);
    if (connection->first_event_ns) add(&firsts, (connection->first_event_ns - connection->started_ns) / 1e3);
    // An answer before the whole request was sent: the rest of it would be taken for the next one.
    if (connection->closes || connection->num_sent < connection->length) close_connection(connection);
    go_on(connection, now);
}

static void lose(Connection *connection, long now) {
    bool was_busy = connection->is_busy, is_answer = was_busy && connection->part == UNTIL_CLOSED;
    // A kept connection may be closed by the server just as the next request is sent: that is HTTP, and not counted.
    bool is_idle_close = connection->part == HEAD && !connection->head_length && connection->has_answered_before;
    close_connection(connection);
    if (is_answer) {
        end_request(connection, now);
    } else if (was_busy) {
        connection->is_busy = false;
        num_busy--;
        num_cut += !is_idle_close;
        go_on(connection, now);
    }
}

// ---- What comes back ---------------------------------------------------------------------------------------------

static void see_body(Connection *connection, const char *bytes, size_t length, long now) {
    static const char DATA[] = "data: ", DONE[] = "[DONE]", STAMP[] = "\"T";
    for (size_t i = 0; i < length; i++) {
        char c = bytes[i];
        connection->data_at = c == DATA[connection->data_at] ? connection->data_at + 1 : c == DATA[0];
        if (connection->data_at == sizeof DATA - 1) {
            connection->data_at = 0;
            num_events++;
            if (!connection->first_event_ns) connection->first_event_ns = now;
        }
        connection->done_at = c == DONE[connection->done_at] ? connection->done_at + 1 : c == DONE[0];
        if (connection->done_at == sizeof DONE - 1) connection->is_done = true, connection->done_at = 0;
        if (connection->stamp_at < 2) {
            connection->stamp_at = connection->stamp_at == 1 && c == STAMP[1] ? 2 : c == STAMP[0];
            connection->stamp = 0;
        } else if (c >= '0' && c <= '9') {
            connection->stamp = connection->stamp * 10 + c - '0';
            if (++connection->stamp_at == 2 + 16) {
                add(&delays, (now / 100 - connection->stamp) / 10.0);
                connection->stamp_at = 0;
            }
        } else {
            connection->stamp_at = 0;
        }
    }
}

static void read_head(Connection *connection) {
    connection->head[connection->head_length] = 0;
    const char *length = strcasestr(connection->head, "\ncontent-length:");
    connection->status = atoi(connection->head + 9);
    connection->closes = strcasestr(connection->head, "\nconnection: close") != NULL;
    bool is_chunked = strcasestr(connection->head, "\ntransfer-encoding: chunked");
    connection->left = length && !is_chunked ? atol(length + 16) : 0;
    connection->line_length = 0;
    if (connection->status >= 100 && connection->status < 200) connection->head_length = 0;
    else if (is_chunked) connection->part = CHUNK_SIZE;
    else if (length) connection->part = SIZED;
    else connection->part = UNTIL_CLOSED, connection->closes = true;
}

// Takes one byte of framing; true: the answer has ended.
static bool take_framing(Connection *connection, char c) {
    if (connection->part == HEAD) {
        if (connection->head_length < HEAD_BYTES - 1) connection->head[connection->head_length++] = c;
        size_t length = connection->head_length;
        if (c == '\n' && length >= 4 && !memcmp(connection->head + length - 4, "\r\n\r\n", 4)) read_head(connection);
        return connection->part == SIZED && connection->left == 0;
    }
    if (c == '\r') return false;
    if (c != '\n') {
        if (connection->part == CHUNK_SIZE) {
            int digit = c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
            connection->left = connection->left * 16 + digit;
        }
        connection->line_length++;
        return false;
    }
    bool is_empty_line = connection->line_length == 0;
    connection->line_length = 0;
    if (connection->part == TRAILER) return is_empty_line;
    if (connection->part == CHUNK_SIZE) connection->part = connection->left ? CHUNK : TRAILER;
    else connection->part = CHUNK_SIZE;
    return false;
}

static void take(Connection *connection, const char *bytes, size_t length, long now) {
    const char *end = bytes + length;
    while (bytes < end && connection->is_busy) {
        if (connection->part == SIZED || connection->part == CHUNK || connection->part == UNTIL_CLOSED) {
            size_t here = end - bytes;
            bool is_sized = connection->part != UNTIL_CLOSED;
            if (is_sized && connection->left < (long)here) here = connection->left;
            see_body(connection, bytes, here, now);
            bytes += here;
            connection->left -= is_sized ? here : 0;
            if (!is_sized || connection->left) continue;
            if (connection->part == SIZED) {
                end_request(connection, now);
                return;
            }
            connection->part = CHUNK_END;
        } else if (take_framing(connection, *bytes++)) {
            end_request(connection, now);
            return;
        }
    }
}

static void receive(Connection *connection) {
    static char bytes[READ_BYTES];
    ssize_t got = read(connection->fd, bytes, sizeof bytes);
    long now = now_ns();
    if (got > 0) take(connection, bytes, got, now);
    else if (got == 0 || errno != EAGAIN) lose(connection, now);
}

// ---- The run -----------------------------------------------------------------------------------------------------

static void read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) fprintf(stderr, "load: %s: not NAME=VALUE\n", argv[i]), exit(2);
        *value++ = 0;
        if (!strcmp(argv[i], "port")) port = atoi(value);
        else if (!strcmp(argv[i], "connections")) num_connections = atoi(value);
        else if (!strcmp(argv[i], "seconds")) seconds = atof(value);
        else if (!strcmp(argv[i], "requests")) max_requests = atol(value);
        else if (!strcmp(argv[i], "fresh")) fresh = atoi(value);
        else if (!strcmp(argv[i], "seed")) seed = strtoull(value, NULL, 10) * 0x9E3779B97F4A7C15ULL | 1;
        else if (!strcmp(argv[i], "done")) must_be_done = atoi(value);
        else if (!strcmp(argv[i], "bodies")) folder = value;
        else if (!strcmp(argv[i], "key")) key = value;
        else fprintf(stderr, "load: %s: no such argument\n", argv[i]), exit(2);
    }
}

static void print_sample(const char *name, Sample *sample) {
    qsort(sample->values, sample->length, sizeof(double), ascending);
    for (int percent = 50; percent < 100; percent += 49) {
        size_t place = (sample->length - 1) * percent / 100;
        if (sample->length) printf("\"%s_p%d_us\":%.1f,", name, percent, sample->values[place]);
        else printf("\"%s_p%d_us\":null,", name, percent);
    }
}

static void print_results(void) {
    double elapsed_s = num_answers ? (last_answer_ns - started_ns) / 1e9 : 1;
    printf("{\"answers\":%ld,\"events\":%ld,\"requests_per_s\":%.1f,\"events_per_s\":%.1f,", num_answers, num_events,
           num_answers / elapsed_s, num_events / elapsed_s);
    print_sample("total", &totals);
    print_sample("first_event", &firsts);
    print_sample("event", &delays);
    printf("\"refused\":%ld,\"cut\":%ld,\"bad_status\":%ld,\"first_bad_status\":%d,\"undone\":%ld,", num_refused,
           num_cut, num_bad_status, first_bad_status, num_undone);
    printf("\"unfinished\":%ld}\n", num_unfinished);
}

int main(int argc, char **argv) {
    read_arguments(argc, argv);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (num_bodies < MAX_BODIES && load_body(&requests[num_bodies], folder, num_bodies, port, key)) num_bodies++;
    if (!num_bodies) fprintf(stderr, "load: no %s/00.json\n", folder), exit(2);
    find_words(&requests[0]);
    if (fresh && !num_words) fprintf(stderr, "load: no words in %s/00.json\n", folder), exit(2);
    poller = epoll_create1(0);
    Connection *connections = calloc(num_connections, sizeof(Connection));
    for (int i = 0; i < num_connections; i++) connections[i].fd = -1;
    started_ns = now_ns();
    ends_ns = started_ns + (long)(seconds * 1e9);
    for (int i = 0; i < num_connections; i++) go_on(&connections[i], started_ns);
    struct epoll_event events[256];
    while (num_busy && now_ns() < ends_ns + GRACE_S * 1000000000L) {
        int num_ready = epoll_wait(poller, events, 256, 100);
        for (int i = 0; i < num_ready; i++) {
            Connection *connection = events[i].data.ptr;
            if ((events[i].events & EPOLLOUT) && connection->is_busy) send_more(connection);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection);
        }
    }
    num_unfinished = num_busy;
    print_results();
    return 0;
}
