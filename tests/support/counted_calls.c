/* Counts the calls by which a process changes files below one folder; preloaded.

   COUNTED_BELOW   the folder
   COUNTED_DIE_AT  the process is killed at this call, from 1: a write is done by half,
                   any other call not at all
   COUNTED_SHORT   every write takes half of the bytes

   At its end the process says on standard error how many calls there were. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int num_calls;

static int is_below(const char *path) {
    const char *folder = getenv("COUNTED_BELOW");
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_open_below(int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

/* Tell whether the process is to die at this call. */
static int is_last(void) {
    const char *at = getenv("COUNTED_DIE_AT");
    return __sync_add_and_fetch(&num_calls, 1) == (at ? atoi(at) : 0);
}

static void count(void) {
    if (is_last()) kill(getpid(), SIGKILL);
}

__attribute__((destructor)) static void say(void) {
    if (getenv("COUNTED_BELOW")) fprintf(stderr, "calls: %d\n", num_calls);
}

/* Read the mode that an open which may create a file has as a further argument. */
#define READ_MODE                                                                 \
    mode_t mode = 0;                                                              \
    if (flags & (O_CREAT | O_TMPFILE)) {                                          \
        va_list rest;                                                             \
        va_start(rest, flags);                                                    \
        mode = va_arg(rest, mode_t);                                              \
        va_end(rest);                                                             \
    }

#define OPENS(name)                                                               \
    int name(const char *path, int flags, ...) {                                  \
        READ_MODE                                                                 \
        if (flags & (O_CREAT | O_TRUNC) && is_below(path)) count();               \
        return REAL(name)(path, flags, mode);                                     \
    }
OPENS(open)
OPENS(open64)

/* Tell whether a name in an open folder is below the folder. */
static int is_at_below(int folder, const char *path) {
    return path[0] == '/' ? is_below(path) : is_open_below(folder);
}

#define OPENS_AT(name)                                                            \
    int name(int folder, const char *path, int flags, ...) {                      \
        READ_MODE                                                                 \
        if (flags & (O_CREAT | O_TRUNC) && is_at_below(folder, path)) count();    \
        return REAL(name)(folder, path, flags, mode);                             \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t write(int descriptor, const void *bytes, size_t size) {
    if (!is_open_below(descriptor)) return REAL(write)(descriptor, bytes, size);
    int dies = is_last();
    if ((dies || getenv("COUNTED_SHORT")) && size > 1) size /= 2;
    ssize_t written = REAL(write)(descriptor, bytes, size);
    if (dies) kill(getpid(), SIGKILL);
    return written;
}

#define CHANGES(name, parameters, arguments, path)                                \
    int name parameters {                                                         \
        if (path) count();                                                        \
        return REAL(name) arguments;                                              \
    }
CHANGES(rename, (const char *old, const char *new), (old, new), is_below(new))
CHANGES(link, (const char *old, const char *new), (old, new), is_below(new))
CHANGES(renameat, (int from, const char *old, int to, const char *new),
        (from, old, to, new), is_at_below(to, new))
CHANGES(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode),
        is_at_below(folder, path))
CHANGES(unlinkat, (int folder, const char *path, int flags), (folder, path, flags),
        is_at_below(folder, path))
CHANGES(mkdir, (const char *path, mode_t mode), (path, mode), is_below(path))
CHANGES(rmdir, (const char *path), (path), is_below(path))
CHANGES(unlink, (const char *path), (path), is_below(path))
CHANGES(ftruncate, (int file, off_t size), (file, size), is_open_below(file))
CHANGES(ftruncate64, (int file, off64_t size), (file, size), is_open_below(file))
CHANGES(fsync, (int file), (file), is_open_below(file))
