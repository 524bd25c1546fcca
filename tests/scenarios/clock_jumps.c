/* Clocks that a test may move, for LD_PRELOAD.

   $CLOCK_JUMPS is a file of two doubles for each slot: the seconds by which the wall clock and the
   monotonic clocks of a process are ahead. Deadlines are moved back for the kernel, which has the
   true clocks. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_slot = 0; /* of this process, and of those that it forks */
static const double *ahead;

__attribute__((constructor)) static void open_jumps(void) {
    const char *path = getenv("CLOCK_JUMPS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *memory = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    ahead = memory == MAP_FAILED ? NULL : memory;
    if (file >= 0) close(file);
}

static double jump(clockid_t clock) {
    if (!ahead) return 0;
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return ahead[2 * clock_slot];
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
        return ahead[2 * clock_slot + 1];
    }
    return 0;
}

static struct timespec moved(struct timespec at, double seconds) {
    double whole = floor(seconds);
    at.tv_sec += (time_t)whole;
    at.tv_nsec += (long)((seconds - whole) * 1e9);
    if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed) *now = moved(*now, jump(clock));
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec, now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

#define REAL(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

int sem_timedwait(sem_t *sem, const struct timespec *until) {
    struct timespec at = moved(*until, -jump(CLOCK_REALTIME));
    return REAL(sem_timedwait, sem_t *, const struct timespec *)(sem, &at);
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until) {
    struct timespec at = moved(*until, -jump(clock));
    return REAL(sem_clockwait, sem_t *, clockid_t, const struct timespec *)(sem, clock, &at);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *until) {
    struct timespec at = moved(*until, -jump(CLOCK_REALTIME));
    return REAL(pthread_cond_timedwait, pthread_cond_t *, pthread_mutex_t *,
                const struct timespec *)(condition, mutex, &at);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
    struct timespec at = moved(*until, -jump(clock));
    return REAL(pthread_cond_clockwait, pthread_cond_t *, pthread_mutex_t *, clockid_t,
                const struct timespec *)(condition, mutex, clock, &at);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                    struct timespec *left) {
    struct timespec at = flags & TIMER_ABSTIME ? moved(*until, -jump(clock)) : *until;
    return REAL(clock_nanosleep, clockid_t, int, const struct timespec *, struct timespec *)(
        clock, flags, &at, left);
}
