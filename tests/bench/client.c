/* The load: one thread, epoll, nothing allocated while it runs. Prints one line of JSON.
 *
 *   client whole PORT PIDS CONNECTIONS SECONDS [RATE]   ask, and ask again when answered (or RATE a second in all)
 *   client paced PORT PIDS STREAMS SECONDS GAP_US       a chunk per GAP_US and stream, once all streams have begun
 *   client hold  PORT PIDS STREAMS                      open streams with a chunk every 2 s, until stdin ends
 *
 * PIDS are the processes, with commas between them, whose CPU seconds are counted meanwhile. The first second
 * and a half of `whole` is not counted: connections are made in it, and proxies find out which of theirs stay open.
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

enum { FILES = 1 << 16, EVENTS = 512, SAMPLES = 1 << 22, BUFFER = 1 << 16, TAIL = 5 };
typedef unsigned long long nanoseconds;

struct connection {
    nanoseconds asked;
    int busy, status, chunked, digits, begun;
    long body;         /* bytes of the body still to come, where its length is told; -1: the head is not whole */
    size_t head_size;
    nanoseconds stamp; /* the instant in the chunk at hand, as far as it came */
    char head[2048], tail[TAIL + 1];
};

static struct connection *all[FILES];
static int fds[FILES];
static unsigned samples[SAMPLES]; /* microseconds */
static long sampled, answers, refused, failed, begun, pids[64], pid_count;
static char request[1024];
static int request_size, counting, poll_fd, stream;
static nanoseconds began;
static double cpu_began;

static nanoseconds now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (nanoseconds)at.tv_sec * 1000000000ULL + (nanoseconds)at.tv_nsec;
}

static double cpu(void) {
    double seconds = 0;
    for (long each = 0; each < pid_count; each++) {
        clockid_t clock;
        struct timespec spent;
        if (!clock_getcpuclockid((pid_t)pids[each], &clock) && !clock_gettime(clock, &spent))
            seconds += (double)spent.tv_sec + (double)spent.tv_nsec / 1e9;
    }
    return seconds;
}

static void count_from_now(void) {
    sampled = answers = refused = failed = 0;
    began = now();
    cpu_began = cpu();
    counting = 1;
}

static void sample(nanoseconds since) {
    if (counting && sampled < SAMPLES)
        samples[sampled++] = (unsigned)((now() - since) / 1000);
}

static void ask(int fd) {
    struct connection *it = all[fd];
    it->busy = 1;
    it->begun = 0;
    it->asked = now();
    it->body = -1;
    it->head_size = 0;
    it->digits = 0;
    memset(it->tail, 0, sizeof it->tail);
    if (write(fd, request, (size_t)request_size) != request_size)
        failed++;
}

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        perror("client: connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    all[fd] = calloc(1, sizeof *all[fd]);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    return fd;
}

static void hear_chunks(struct connection *it, const char *data, size_t size) {
    for (const char *at = data, *end = data + size; at < end; at++) {
        if (!it->digits) {
            at = memchr(at, '@', (size_t)(end - at));
            if (!at)
                break;
            it->digits = 20;
            it->stamp = 0;
            continue;
        }
        it->stamp = it->stamp * 10 + (nanoseconds)(*at - '0');
        if (--it->digits)
            continue;
        sample(it->stamp);
        answers++;
        if (!it->begun) {
            it->begun = 1;
            begun++;
        }
    }
}

/* Take the head from what came; what is left of `size` belongs to the body. -1 while the head is not whole. */
static long take_head(struct connection *it, const char *data, size_t size) {
    size_t before = it->head_size, room = sizeof it->head - 1 - before, taken = size < room ? size : room;
    memcpy(it->head + before, data, taken);
    it->head_size += taken;
    it->head[it->head_size] = 0;
    char *end = strstr(it->head, "\r\n\r\n");
    if (!end)
        return -1;
    *end = 0;
    char *length = strcasestr(it->head, "\r\ncontent-length:");
    it->status = atoi(it->head + 9);
    it->chunked = !length;
    it->body = length ? atol(length + 17) : 1;
    return (long)(size - ((size_t)(end + 4 - it->head) - before));
}

static void hear(int fd, int again) {
    static char buffer[BUFFER];
    struct connection *it = all[fd];
    ssize_t got = read(fd, buffer, sizeof buffer);
    if (got <= 0) {
        failed++;
        it->busy = 0;
        epoll_ctl(poll_fd, EPOLL_CTL_DEL, fd, NULL);
        return;
    }
    const char *data = buffer;
    long size = got;
    if (it->body < 0) {
        size = take_head(it, data, (size_t)got);
        if (size < 0)
            return;
        data += got - size;
    }
    if (stream && it->status == 200) {
        hear_chunks(it, data, (size_t)size);
        return;
    }
    if (it->chunked) {
        for (long each = size > TAIL ? size - TAIL : 0; each < size; each++) {
            memmove(it->tail, it->tail + 1, TAIL - 1);
            it->tail[TAIL - 1] = data[each];
        }
        if (memcmp(it->tail, "0\r\n\r\n", TAIL))
            return;
    } else if ((it->body -= size) > 0) {
        return;
    }
    it->busy = 0;
    if (it->status == 200 || it->status == 429)
        sample(it->asked);
    answers += it->status == 200;
    refused += it->status == 429;
    failed += it->status != 200 && it->status != 429;
    if (again)
        ask(fd);
}

static int by_size(const void *left, const void *right) {
    unsigned a = *(const unsigned *)left, b = *(const unsigned *)right;
    return (a > b) - (a < b);
}

static void report(long open) {
    double seconds = (double)(now() - began) / 1e9, spent = cpu() - cpu_began;
    qsort(samples, (size_t)sampled, sizeof *samples, by_size);
    printf("{\"seconds\":%.4f,\"cpu\":%.6f,\"answers\":%ld,\"refused\":%ld,\"failed\":%ld,\"open\":%ld,"
           "\"p50\":%u,\"p99\":%u}\n", seconds, spent, answers, refused, failed, open,
           sampled ? samples[sampled / 2] : 0, sampled ? samples[sampled * 99 / 100] : 0);
    fflush(stdout);
}

static void serve(nanoseconds until, int again) {
    struct epoll_event events[EVENTS];
    for (nanoseconds at; (at = now()) < until;) {
        int count = epoll_wait(poll_fd, events, EVENTS, until - at > 1000000 ? (int)((until - at) / 1000000) : 0);
        for (int each = 0; each < count; each++)
            hear(events[each].data.fd, again);
    }
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    const char *mode = argv[1];
    int port = atoi(argv[2]), count = atoi(argv[4]);
    double seconds = argc > 5 ? atof(argv[5]) : 0, rate = 0;
    long gap = 0;
    for (char *pid = strtok(argv[3], ","); pid && pid_count < 64; pid = strtok(NULL, ","))
        pids[pid_count++] = atol(pid);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files = {FILES, FILES};
    setrlimit(RLIMIT_NOFILE, &files);
    poll_fd = epoll_create1(0);
    stream = *mode != 'w';
    if (*mode == 'p')
        gap = argc > 6 ? atol(argv[6]) : 50000;
    else if (*mode == 'h')
        gap = 2000000;
    else
        rate = argc > 6 ? atof(argv[6]) : 0;
    char body[512];
    int length = sprintf(body, "{\"model\":\"model\",\"stream\":%s,\"max_tokens\":%d,\"messages\":"
                               "[{\"role\":\"user\",\"content\":\"%s%ld hello hello hello hello hello hello hello hello "
                               "hello hello hello hello hello hello hello hello hello hello hello hello\"}]}",
                         stream ? "true" : "false", stream ? 1000000 : 64, rate > 0 ? "delay=" : "gap=",
                         rate > 0 ? 50000L : gap);
    request_size = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json"
                                    "\r\nAuthorization: Bearer bench\r\nUser-Agent: bench\r\nContent-Length: %d\r\n\r\n%s",
                           length, body);
    nanoseconds start = now();
    for (int each = 0; each < count; each++) {
        int fd = fds[each] = dial(port);
        if (rate > 0)
            continue;
        ask(fd);
        if (stream) /* one after the other, so that chunks are spread over the gap */
            serve(start + (nanoseconds)(each + 1) * (gap < 1000000 ? 1000000ULL : 400000ULL), 0);
    }
    if (!stream && rate <= 0) {
        serve(now() + 1500000000ULL, 1);
        count_from_now();
        serve(began + (nanoseconds)(seconds * 1e9), 1);
        report(count);
    } else if (!stream) {
        count_from_now();
        start = began;
        for (long each = 0; (double)each < rate * seconds; each++) {
            serve(start + (nanoseconds)((double)each * 1e9 / rate), 0);
            int fd = fds[each % count];
            if (!all[fd]->busy)
                ask(fd);
        }
        report(count);
    } else {
        for (nanoseconds patience = now() + 20000000000ULL; begun < count && now() < patience && !failed;)
            serve(now() + 10000000ULL, 0);
        if (*mode == 'p') {
            count_from_now();
            serve(began + (nanoseconds)(seconds * 1e9), 0);
            report(begun);
        } else {
            report(begun);
            struct epoll_event event = {.events = EPOLLIN, .data.fd = 0};
            epoll_ctl(poll_fd, EPOLL_CTL_ADD, 0, &event);
            for (struct epoll_event got[1]; epoll_wait(poll_fd, got, 1, -1) >= 0;) {
                if (got[0].data.fd == 0)
                    break;
                hear(got[0].data.fd, 0);
            }
        }
    }
    return 0;
}
