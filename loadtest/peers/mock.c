// Fast OpenAI-like replicas, all in one epoll process, to stand behind a router under test.
//
//   mock NUM_REPLICAS        listens on that many free ports of 127.0.0.1, prints them on one line, serves until killed
//
// A POST is answered at once: with one small JSON answer, or, where its body says "stream": true, with an SSE stream of
// "max_tokens" events, "seed" microseconds apart (a field that every router passes on); where it has an "n", the second
// event of each stream comes at another moment of that gap, so that streams are not in step. The content of each event is
// "T" and 16 digits of the monotonic clock in units of 100 ns, so that load.c can tell how long the event was on its
// way. GETs are what routers ask of an engine: models, health, load. Any other path gets an empty JSON object.
//
// It trusts its clients: no limits, no checks, no TLS.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FDS = 65536, READ_BYTES = 131072, SEARCH_BYTES = 600, MAX_WAKES = 512, PAGE_BYTES = 65536 };

typedef struct {
    char *bytes;
    size_t length, capacity;
} Buffer;

typedef struct {
    Buffer in, out;
    size_t num_sent;        // of `out`
    bool is_listener, is_continued, is_streaming;
    int active_slot;        // its place in `active` while it streams
    long events_left;
    long gap_ns, next_ns;   // 0: as fast as the reader takes them
} Connection;

static Connection *connections[MAX_FDS];
static int active[MAX_FDS], num_active, num_apart;
static int poller, timer;

static const char ANSWER[] =
    "{\"id\":\"chatcmpl-0123456789\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock-model\","
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the "
    "lazy dog.\"},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":10,\"total_tokens\":110}}";

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";

static const char STREAM_END[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

typedef struct {
    const char *path;
    int status;
    const char *type, *body;
} Page;

// The first whose path begins the request's path. vllm-router asks for /render and /tokenize on engines that have them.
static const Page PAGES[] = {
    {"/v1/models", 200, "application/json",
     "{\"object\":\"list\",\"data\":[{\"id\":\"mock-model\",\"object\":\"model\",\"created\":1700000000,"
     "\"owned_by\":\"mock\",\"root\":\"mock-model\",\"max_model_len\":131072}]}"},
    {"/model_info", 200, "application/json",
     "{\"model_path\":\"mock-model\",\"tokenizer_path\":\"mock-model\",\"is_generation\":true}"},
    {"/get_model_info", 200, "application/json",
     "{\"model_path\":\"mock-model\",\"tokenizer_path\":\"mock-model\",\"is_generation\":true}"},
    {"/server_info", 200, "application/json",
     "{\"model_path\":\"mock-model\",\"served_model_name\":\"mock-model\",\"tokenizer_path\":\"mock-model\","
     "\"dp_size\":1,\"tp_size\":1,\"version\":\"0.5\"}"},
    {"/get_server_info", 200, "application/json",
     "{\"model_path\":\"mock-model\",\"served_model_name\":\"mock-model\",\"tokenizer_path\":\"mock-model\","
     "\"dp_size\":1,\"tp_size\":1,\"version\":\"0.5\"}"},
    {"/get_load", 200, "application/json",
     "[{\"dp_rank\":0,\"num_reqs\":0,\"num_waiting_reqs\":0,\"num_tokens\":0}]"},
    {"/version", 200, "application/json", "{\"version\":\"0.13.0\"}"},
    {"/pointsman/", 404, "application/json", "{}"},
    {"/tokenize", 404, "application/json", "{}"},
    {"/v1/chat/completions/render", 404, "application/json", "{}"},
    {"", 200, "application/json", "{}"},
};

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void reserve(Buffer *buffer, size_t more) {
    if (buffer->capacity - buffer->length > more) return;
    buffer->capacity = buffer->length + more + READ_BYTES;
    buffer->bytes = realloc(buffer->bytes, buffer->capacity);
    if (!buffer->bytes) abort();
}

static void watch(int fd, bool wants_write, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.fd = fd};
    epoll_ctl(poller, operation, fd, &event);
}

static void end_stream(Connection *connection) {
    if (!connection->is_streaming) return;
    connection->is_streaming = false;
    int last = active[--num_active];
    active[connection->active_slot] = last;
    connections[last]->active_slot = connection->active_slot;
}

static void drop(int fd) {
    Connection *connection = connections[fd];
    end_stream(connection);
    free(connection->in.bytes);
    free(connection->out.bytes);
    free(connection);
    connections[fd] = NULL;
    close(fd);
}

static bool is_blocked(const Connection *connection) { return connection->out.length > 0; }

// Sends now what the socket takes, and the rest when it takes more. False: the connection is broken.
static bool send_all(int fd, const char *bytes, size_t length) {
    Connection *connection = connections[fd];
    if (!is_blocked(connection)) {
        ssize_t sent = write(fd, bytes, length);
        if (sent == (ssize_t)length) return true;
        if (sent < 0 && errno != EAGAIN) return false;
        if (sent > 0) bytes += sent, length -= sent;
        watch(fd, true, EPOLL_CTL_MOD);
    }
    reserve(&connection->out, length);
    memcpy(connection->out.bytes + connection->out.length, bytes, length);
    connection->out.length += length;
    return true;
}

static bool flush(int fd) {
    Connection *connection = connections[fd];
    size_t left = connection->out.length - connection->num_sent;
    ssize_t sent = write(fd, connection->out.bytes + connection->num_sent, left);
    if (sent < 0) return errno == EAGAIN;
    connection->num_sent += sent;
    if (connection->num_sent == connection->out.length) {
        connection->num_sent = connection->out.length = 0;
        watch(fd, false, EPOLL_CTL_MOD);
    }
    return true;
}

static bool send_page(int fd, int status, const char *type, const char *body) {
    static char answer[PAGE_BYTES + 512];
    int length = sprintf(answer, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s", status,
                         status == 200 ? "OK" : "Not Found", type, strlen(body), body);
    return send_all(fd, answer, length);
}

// As long as a real engine's page: routers look for the few series that they need among hundreds.
static bool send_metrics(int fd) {
    static char page[PAGE_BYTES];
    int length = 0;
    for (int histogram = 0; histogram < 20; histogram++)
        for (int bucket = 0; bucket < 20; bucket++)
            length += sprintf(page + length, "vllm:h%d_seconds_bucket{engine=\"0\",le=\"%d.0\",model_name=\"m\"} 0.0\n",
                              histogram, bucket);
    sprintf(page + length,
            "vllm:num_requests_running{engine=\"0\",model_name=\"mock-model\"} 0.0\n"
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"mock-model\"} 0.0\n"
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock-model\"} 0.0\n"
            "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1000000\"} 1.0\n");
    return send_page(fd, 200, "text/plain; version=0.0.4", page);
}

// The number after `key` in the last or else the first bytes of a body; routers may reorder its fields.
static long number_in(const char *body, size_t length, const char *key, long otherwise) {
    size_t window = length < SEARCH_BYTES ? length : SEARCH_BYTES;
    const char *found = memmem(body + length - window, window, key, strlen(key));
    if (!found) found = memmem(body, window, key, strlen(key));
    if (!found) return otherwise;
    found += strlen(key);
    while (found < body + length && (*found == ' ' || *found == ':')) found++;
    return found < body + length && (*found == 't' || *found == 'f') ? *found == 't' : strtol(found, NULL, 10);
}

static bool send_event(int fd) {
    Connection *connection = connections[fd];
    if (connection->events_left-- <= 0) {
        end_stream(connection);
        return send_all(fd, STREAM_END, sizeof STREAM_END - 1);
    }
    char event[512], chunk[600];
    int length = sprintf(event,
                         "data: {\"id\":\"chatcmpl-0123456789\",\"object\":\"chat.completion.chunk\","
                         "\"created\":1700000000,\"model\":\"mock-model\",\"choices\":[{\"index\":0,"
                         "\"delta\":{\"content\":\"T%016ld\"},\"finish_reason\":null}]}\n\n", now_ns() / 100);
    length = sprintf(chunk, "%x\r\n%s\r\n", length, event);
    connection->next_ns += connection->gap_ns;
    return send_all(fd, chunk, length);
}

static bool start_stream(int fd, const char *body, size_t length) {
    Connection *connection = connections[fd];
    connection->events_left = number_in(body, length, "\"max_tokens\"", 64);
    connection->gap_ns = number_in(body, length, "\"seed\"", 0) * 1000;
    connection->next_ns = now_ns();
    if (number_in(body, length, "\"n\"", 0)) {
        num_apart = (num_apart + 618) % 1000;  // the golden section spreads them evenly, however many there are
        connection->next_ns -= connection->gap_ns / 1000 * num_apart;
    }
    connection->is_streaming = true;
    connection->active_slot = num_active;
    active[num_active++] = fd;
    return send_all(fd, STREAM_HEAD, sizeof STREAM_HEAD - 1) && send_event(fd);
}

static bool answer(int fd, const char *head, const char *body, size_t body_length) {
    const char *path = strchr(head, ' ');
    path = path ? path + 1 : "";
    const Page *page = PAGES;
    while (strncmp(path, page->path, strlen(page->path))) page++;
    if (head[0] == 'G' && !strncmp(path, "/metrics", 8)) return send_metrics(fd);
    if (head[0] != 'P' || page->status == 404) return send_page(fd, page->status, page->type, page->body);
    if (number_in(body, body_length, "\"stream\"", 0)) return start_stream(fd, body, body_length);
    return send_page(fd, 200, "application/json", ANSWER);
}

// Bytes of the body that follows the head, where it is all here; -1 where it is not.
static long body_length(int fd, char *head, char *body, size_t available) {
    const char *chunked = strcasestr(head, "\ntransfer-encoding: chunked");
    if (chunked) {
        const char *end = memmem(body, available, "0\r\n\r\n", 5);
        return end ? end + 5 - body : -1;
    }
    const char *field = strcasestr(head, "\ncontent-length:");
    long length = field ? strtol(field + 16, NULL, 10) : 0;
    if ((size_t)length <= available) return length;
    Connection *connection = connections[fd];
    if (available == 0 && !connection->is_continued && strcasestr(head, "\nexpect: 100")) {
        connection->is_continued = true;
        send_all(fd, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    return -1;
}

// Answers every whole request that has arrived. False: the connection is broken.
static bool serve(int fd) {
    Connection *connection = connections[fd];
    while (!connection->is_streaming && connection->in.length > 0) {
        char *head = connection->in.bytes;
        char *head_end = memmem(head, connection->in.length, "\r\n\r\n", 4);
        if (!head_end) return true;
        char *body = head_end + 4;
        *head_end = 0;
        long length = body_length(fd, head, body, head + connection->in.length - body);
        bool is_good = length < 0 || answer(fd, head, body, length);
        *head_end = '\r';
        if (length < 0 || !is_good) return is_good;
        connection->is_continued = false;
        size_t taken = body + length - head;
        connection->in.length -= taken;
        memmove(head, head + taken, connection->in.length);
    }
    return true;
}

static bool receive(int fd) {
    Connection *connection = connections[fd];
    for (;;) {
        reserve(&connection->in, READ_BYTES);
        size_t space = connection->in.capacity - connection->in.length;
        ssize_t got = read(fd, connection->in.bytes + connection->in.length, space);
        if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
        if (got > 0) connection->in.length += got;
        if (got < (ssize_t)space) return serve(fd);
    }
}

static void accept_all(int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MAX_FDS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        connections[fd] = calloc(1, sizeof(Connection));
        watch(fd, false, EPOLL_CTL_ADD);
    }
}

static void handle(const struct epoll_event *event) {
    int fd = event->data.fd;
    Connection *connection = connections[fd];
    if (!connection) return;
    if (connection->is_listener) {
        accept_all(fd);
        return;
    }
    if ((event->events & EPOLLOUT) && is_blocked(connection) && !flush(fd)) {
        drop(fd);
        return;
    }
    if ((event->events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !receive(fd)) drop(fd);
}

// Sends the events that are due, one a stream, so that no stream starves the others.
static void advance_streams(void) {
    long now = num_active ? now_ns() : 0;
    for (int slot = 0; slot < num_active;) {
        int fd = active[slot];
        Connection *connection = connections[fd];
        if (is_blocked(connection) || connection->next_ns > now) {
            slot++;
            continue;
        }
        bool is_good = send_event(fd);
        bool has_ended = !connection->is_streaming;
        if (is_good && has_ended) is_good = serve(fd);
        if (!is_good) drop(fd);
        if (is_good && !has_ended) slot++;
    }
}

// Sets the timer for the next event that is due; true where one is due already.
static bool set_timer(void) {
    long next_ns = 0;
    for (int slot = 0; slot < num_active; slot++) {
        const Connection *connection = connections[active[slot]];
        if (is_blocked(connection)) continue;
        if (!connection->gap_ns) return true;
        if (!next_ns || connection->next_ns < next_ns) next_ns = connection->next_ns;
    }
    struct itimerspec at = {.it_value = {next_ns / 1000000000L, next_ns % 1000000000L}};
    if (next_ns) timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
    return false;
}

static void listen_on_free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, 4096) ||
        getsockname(fd, (struct sockaddr *)&address, &size)) {
        perror("mock: listen");
        exit(1);
    }
    connections[fd] = calloc(1, sizeof(Connection));
    connections[fd]->is_listener = true;
    watch(fd, false, EPOLL_CTL_ADD);
    printf("%d ", ntohs(address.sin_port));
}

int main(int argc, char **argv) {
    int num_replicas = argc == 2 ? atoi(argv[1]) : 0;
    if (num_replicas < 1) {
        fprintf(stderr, "usage: mock NUM_REPLICAS\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < MAX_FDS ? limit.rlim_max : MAX_FDS;
    setrlimit(RLIMIT_NOFILE, &limit);
    poller = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(timer, false, EPOLL_CTL_ADD);
    for (int i = 0; i < num_replicas; i++) listen_on_free_port();
    printf("\n");
    fflush(stdout);
    struct epoll_event events[MAX_WAKES];
    for (;;) {
        int num_events = epoll_wait(poller, events, MAX_WAKES, set_timer() ? 0 : -1);
        for (int i = 0; i < num_events; i++) {
            long expirations;
            if (events[i].data.fd == timer) while (read(timer, &expirations, sizeof expirations) > 0) {}
            else handle(&events[i]);
        }
        advance_streams();
    }
}
