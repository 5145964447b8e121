/* Moves the wall clock of one process tree, for tests: loaded with LD_PRELOAD, it adds the number of nanoseconds that
 * stands in the file CLOCK_SHIM (a native 64-bit integer, read through a mapping, so that it can change at any time)
 * to the real-time clocks. Monotonic clocks, and with them all timeouts, stay as they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static const int64_t nothing;
static const volatile int64_t *offset = &nothing;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("CLOCK_SHIM");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        offset = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    /* The system call itself: the name would lead back here. */
    long failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t moved = (int64_t)at->tv_sec * SECOND + at->tv_nsec + *offset;
        at->tv_sec = moved / SECOND;
        at->tv_nsec = moved % SECOND;
    }
    return (int)failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return (time_t)-1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
