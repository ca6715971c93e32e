/* A file system that fails now and then, for what one process does below one directory.

   LD_PRELOAD it. SOFT_ROOT names the directory, SOFT_MARK words, separated by commas, of which one
   is in the command line of each process that it is for, SOFT_SEED makes a run repeatable,
   SOFT_RATE is how many of 1000 calls fail by themselves. Outages, in which nearly all fail, come
   on top. A rename is also done late, and done with its answer lost. With SOFT_READ_ONLY=A:B
   nothing can be changed for B seconds, from A seconds after the start of the process on. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define OUTAGE_ONE_IN 600
#define OUTAGE_MOST_MS 400

static const char *root;
static size_t root_length;
static int rate;
static uint64_t drawn;
static double outage_until;
static double read_only_from, read_only_until;
static unsigned char is_soft[DESCRIPTORS];

enum what { READS, WRITES, REMOVES, CLOSES };

#define REAL(name) ((__typeof__(&name))find(#name))

static void *find(const char *name) { return dlsym(RTLD_NEXT, name); }

static unsigned draw(unsigned below)
{
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return (unsigned)((drawn >> 11) % below);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static int is_for_this_process(const char *mark)
{
    char line[4096];
    int file = REAL(open)("/proc/self/cmdline", O_RDONLY);
    ssize_t size = file < 0 ? -1 : REAL(read)(file, line, sizeof line - 1);
    if (file >= 0)
        REAL(close)(file);
    for (const char *end; size > 0; mark = end + 1) {
        end = strchrnul(mark, ',');
        if (end > mark && memmem(line, (size_t)size, mark, (size_t)(end - mark)) != NULL)
            return 1;
        if (*end == '\0')
            break;
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *named = getenv("SOFT_ROOT"), *mark = getenv("SOFT_MARK");
    if (named == NULL || mark == NULL || !is_for_this_process(mark))
        return;
    root_length = strlen(named);
    rate = atoi(getenv("SOFT_RATE"));
    drawn = 0x9e3779b97f4a7c15u * (uint64_t)(atoi(getenv("SOFT_SEED")) + 1);
    if (getenv("SOFT_READ_ONLY") != NULL) {
        double from = 0.0, length = 0.0;
        if (sscanf(getenv("SOFT_READ_ONLY"), "%lf:%lf", &from, &length) == 2) {
            read_only_from = now() + from;
            read_only_until = read_only_from + length;
        }
    }
    root = named;
}

static int is_below(const char *path)
{
    return root != NULL && path != NULL && strncmp(path, root, root_length) == 0;
}

static int is_tracked(int file)
{
    return root != NULL && file >= 0 && file < DESCRIPTORS && is_soft[file];
}

/* 0, or the error with which the call is to end. */
static int choose_error(enum what what)
{
    static const int errors[] = {ESTALE, EIO, ETIMEDOUT, ENOSPC};
    double moment = now();
    int fails;
    if (moment >= read_only_from && moment < read_only_until && (what == WRITES || what == REMOVES))
        return EROFS;
    if (draw(OUTAGE_ONE_IN) == 0)
        outage_until = now() + draw(OUTAGE_MOST_MS) / 1e3;
    fails = now() < outage_until ? draw(10) != 0 : (int)draw(1000) < rate;
    return fails ? errors[draw(what == WRITES || what == CLOSES ? 4 : 3)] : 0;
}

#define FAIL_SOFTLY(is_soft_call, what, answer)                                                    \
    do {                                                                                           \
        int error_ = (is_soft_call) ? choose_error(what) : 0;                                      \
        if (error_ != 0) {                                                                         \
            errno = error_;                                                                        \
            return answer;                                                                         \
        }                                                                                          \
    } while (0)

static int note(const char *path, int file)
{
    if (file >= 0 && file < DESCRIPTORS)
        is_soft[file] = (unsigned char)is_below(path);
    return file;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                    \
        va_end(rest);                                                                              \
        FAIL_SOFTLY(is_below(path), flags & (O_CREAT | O_WRONLY | O_RDWR) ? WRITES : READS, -1);   \
        return note(path, REAL(name)(path, flags, mode));                                          \
    }
OPEN(open)
OPEN(open64)

ssize_t read(int file, void *data, size_t size)
{
    FAIL_SOFTLY(is_tracked(file), READS, -1);
    return REAL(read)(file, data, size);
}

ssize_t write(int file, const void *data, size_t size)
{
    FAIL_SOFTLY(is_tracked(file), WRITES, -1);
    return REAL(write)(file, data, size);
}

int close(int file)
{
    int was_soft = is_tracked(file), ended = REAL(close)(file);
    if (file >= 0 && file < DESCRIPTORS)
        is_soft[file] = 0;
    /* As of a network file system that finds the disk full only now. */
    FAIL_SOFTLY(was_soft && ended == 0, CLOSES, -1);
    return ended;
}

int flock(int file, int operation)
{
    FAIL_SOFTLY(is_tracked(file), READS, -1);
    return REAL(flock)(file, operation);
}

DIR *opendir(const char *path)
{
    FAIL_SOFTLY(is_below(path), READS, NULL);
    return REAL(opendir)(path);
}

#define LOOK(name, type)                                                                           \
    int name(const char *path, type *found)                                                        \
    {                                                                                              \
        FAIL_SOFTLY(is_below(path), READS, -1);                                                    \
        return REAL(name)(path, found);                                                            \
    }
LOOK(stat, struct stat)
LOOK(lstat, struct stat)
LOOK(stat64, struct stat64)
LOOK(lstat64, struct stat64)

int fstatat64(int folder, const char *path, struct stat64 *found, int flags)
{
    FAIL_SOFTLY(is_below(path), READS, -1);
    return REAL(fstatat64)(folder, path, found, flags);
}

int unlink(const char *path)
{
    FAIL_SOFTLY(is_below(path), REMOVES, -1);
    return REAL(unlink)(path);
}

int mkdir(const char *path, mode_t mode)
{
    FAIL_SOFTLY(is_below(path), WRITES, -1);
    return REAL(mkdir)(path, mode);
}

int rmdir(const char *path)
{
    FAIL_SOFTLY(is_below(path), REMOVES, -1);
    return REAL(rmdir)(path);
}

int link(const char *from, const char *to)
{
    FAIL_SOFTLY(is_below(to), WRITES, -1);
    return REAL(link)(from, to);
}

int rename(const char *from, const char *to)
{
    int error = is_below(to) ? choose_error(WRITES) : 0, kind = error ? (int)draw(3) : 0, ended;
    if (error != 0 && (kind == 0 || error == EROFS)) {
        errno = error;
        return -1;
    }
    if (kind == 1)
        usleep(draw(20000));
    ended = REAL(rename)(from, to);
    if (kind == 2 && ended == 0) {
        /* It was done, and its answer is lost; repeated it finds nothing. */
        errno = draw(2) ? ENOENT : error;
        return -1;
    }
    return ended;
}
