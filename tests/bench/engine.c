/* A mock engine that costs next to nothing: one thread, epoll, answers made before it listens.
 *
 *   engine PORT          prints "ready" when it listens
 *
 * A POST is answered whole, or as a stream of max_tokens chunks where the body says "stream":true. Its prompt paces
 * it: "gap=US" between two chunks, "delay=US" before the first byte (sglang-router writes bodies anew: it drops other
 * fields and says max_completion_tokens). A chunk is an event of about 200 bytes that holds '@' and the nanoseconds of
 * CLOCK_MONOTONIC at which it was sent, in 20 digits. Any GET is answered with 200. Whoever leaves before the answer's end is told of on stdout: "left NANOSECONDS".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1 << 17, REQUEST = 1 << 14, EVENTS = 512 };

struct connection {
    char *request; /* what came of it; NULL where the descriptor is not open */
    size_t size;
    long left;     /* chunks still to be sent; -1 a whole answer is due; 0 nothing is */
    int begun;     /* the head of a stream is out */
    long gap;
    unsigned long long due;
    long place;    /* in the heap, from 1; 0: not there */
};

static struct connection all[FILES];
static int heap[FILES];
static long waiting;
static char whole[2048];
static size_t whole_size;

static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n";
static const char EVENT[] = "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","
                            "\"created\":1700000000,\"model\":\"model\",\"choices\":[{\"index\":0,\"delta\":"
                            "{\"content\":\"@%020llu\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char DONE[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static unsigned long long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (unsigned long long)at.tv_sec * 1000000000ULL + (unsigned long long)at.tv_nsec;
}

static void put(long place, int fd) {
    heap[place] = fd;
    all[fd].place = place;
}

static void sift(long place, int fd) {
    for (; place > 1 && all[heap[place / 2]].due > all[fd].due; place /= 2)
        put(place, heap[place / 2]);
    for (long child; (child = 2 * place) <= waiting; place = child) {
        if (child < waiting && all[heap[child + 1]].due < all[heap[child]].due)
            child++;
        if (all[heap[child]].due >= all[fd].due)
            break;
        put(place, heap[child]);
    }
    put(place, fd);
}

static void schedule(int fd, unsigned long long due) {
    all[fd].due = due;
    sift(all[fd].place ? all[fd].place : ++waiting, fd);
}

static void unschedule(int fd) {
    long place = all[fd].place;
    all[fd].place = 0;
    if (place) {
        int last = heap[waiting--];
        if (last != fd)
            sift(place, last);
    }
}

static void leave(int fd) {
    if (all[fd].left) {
        printf("left %llu\n", now());
        fflush(stdout);
    }
    unschedule(fd);
    free(all[fd].request);
    memset(&all[fd], 0, sizeof all[fd]);
    close(fd);
}

static void say(int fd, const char *data, size_t size) {
    if (write(fd, data, size) < 0 && errno != EAGAIN) /* a reader that stalls loses bytes: no test makes one */
        leave(fd);
}

static void emit(int fd) {
    struct connection *it = &all[fd];
    char out[1024], event[512];
    size_t size = 0;
    unschedule(fd);
    if (it->left < 0) {
        it->left = 0;
        say(fd, whole, whole_size);
        return;
    }
    if (!it->begun) {
        it->begun = 1;
        memcpy(out, HEAD, size = sizeof HEAD - 1);
    }
    int length = sprintf(event, EVENT, now());
    size += (size_t)sprintf(out + size, "%x\r\n%s\r\n", length, event);
    if (--it->left == 0) {
        memcpy(out + size, DONE, sizeof DONE - 1);
        size += sizeof DONE - 1;
    } else {
        schedule(fd, it->due + (unsigned long long)it->gap * 1000);
    }
    say(fd, out, size);
}

static long field(const char *body, const char *name, long otherwise) {
    const char *at = strstr(body, name);
    return at ? atol(at + strlen(name)) : otherwise;
}

static void answer(int fd, const char *body) {
    struct connection *it = &all[fd];
    long delay = field(body, "delay=", 0);
    int stream = strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true");
    it->begun = 0;
    it->gap = field(body, "gap=", 0);
    it->left = stream ? field(body, "_tokens\":", 1) : -1;
    it->due = now() + (unsigned long long)delay * 1000;
    if (!delay)
        emit(fd);
    else
        schedule(fd, it->due);
}

static void take(int fd) {
    struct connection *it = &all[fd];
    ssize_t got = read(fd, it->request + it->size, REQUEST - 1 - it->size);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN)
            leave(fd);
        return;
    }
    it->size += (size_t)got;
    it->request[it->size] = 0;
    char *end = strstr(it->request, "\r\n\r\n");
    if (!end)
        return;
    char *length = strcasestr(it->request, "\r\ncontent-length:");
    size_t head = (size_t)(end + 4 - it->request), body = length && length < end ? (size_t)atol(length + 17) : 0;
    if (it->size < head + body)
        return;
    int get = !strncmp(it->request, "GET", 3);
    it->size = 0; /* nobody sends the next request before this one's answer */
    if (get)
        say(fd, whole, whole_size);
    else
        answer(fd, end + 4);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files = {FILES, FILES};
    setrlimit(RLIMIT_NOFILE, &files);
    char body[1024], words[321] = "";
    for (int word = 0; word < 64; word++)
        strcat(words, "word ");
    int length = sprintf(body, "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"model\","
                               "\"data\":[],\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                               "\"%s\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,"
                               "\"completion_tokens\":64,\"total_tokens\":73}}", words);
    whole_size = (size_t)sprintf(whole, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                        "Content-Length: %d\r\n\r\n%s", length, body);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argc > 1 ? argv[1] : "0"))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
        perror("engine");
        return 1;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    puts("ready");
    fflush(stdout);
    for (;;) {
        unsigned long long at = now(), due = waiting ? all[heap[1]].due : at + 1000000000ULL;
        unsigned long long wait = due > at ? due - at : 0;
        struct timespec timeout = {(time_t)(wait / 1000000000ULL), (long)(wait % 1000000000ULL)};
        int count = epoll_pwait2(poll, events, EVENTS, &timeout, NULL);
        for (int each = 0; each < count; each++) {
            int fd = events[each].data.fd;
            if (fd != listener) {
                take(fd);
                continue;
            }
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                all[fd].request = malloc(REQUEST);
                event.data.fd = fd;
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
            }
        }
        for (at = now(); waiting && all[heap[1]].due <= at;)
            emit(heap[1]);
    }
}
