/* A time of day that jumps, in every process of a sweep at once: preload it.

   The file that SCALELAB_CLOCK names holds one double, the seconds by which the time of
   day is off; it is mapped, so that a change is seen at once everywhere. Clocks that do
   not tell the time of day are left alone, and a wait until a time of day lasts as long
   as it would if the machine's own clock were off by as much when the wait began. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL

static volatile double *offset;

__attribute__((constructor)) static void map_clock(void) {
  int file = open(getenv("SCALELAB_CLOCK"), O_RDONLY | O_CLOEXEC);
  offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  close(file);
}

static void shift(struct timespec *moment, double seconds) {
  long long ns = moment->tv_sec * BILLION + moment->tv_nsec;
  ns += (long long)(seconds * BILLION);
  moment->tv_sec = ns / BILLION;
  moment->tv_nsec = ns % BILLION;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) shift(now, *offset);
  return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec moment;
  clock_gettime(CLOCK_REALTIME, &moment);
  now->tv_sec = moment.tv_sec;
  now->tv_usec = moment.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec moment;
  clock_gettime(CLOCK_REALTIME, &moment);
  if (now) *now = moment.tv_sec;
  return moment.tv_sec;
}

/* A condition may also wait by the monotonic clock, which started at the last boot. */
static int is_time_of_day(const struct timespec *moment) {
  return moment->tv_sec > BILLION;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition,
                           pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec moment = *until;
  if (is_time_of_day(until)) shift(&moment, -*offset);
  return real(condition, mutex, &moment);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
  static int (*real)(sem_t *, const struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec moment = *until;
  shift(&moment, -*offset);
  return real(semaphore, &moment);
}
