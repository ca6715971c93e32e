/* What is to go wrong, on demand: SIM/faults, words that `simgpu --help` explains. */
#define _GNU_SOURCE
#include "nvml_state.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void find_faults_file(char *path, size_t size)
{
    char root[PATH_MAX];
    struct stat directory, status;
    *path = 0;
    if (!find_root(root, sizeof root) || snprintf(path, size, "%s/faults", root) >= (int)size) {
        *path = 0;
        return;
    }
    /* Only those who own the simulation decide how it misbehaves. */
    if (stat(root, &directory) || lstat(path, &status) ||
        (status.st_uid != 0 && status.st_uid != directory.st_uid) || (status.st_mode & 022))
        *path = 0;
}

/* How often this process has asked for faults of a call, this time included. */
static unsigned count_call(const char *call)
{
    static struct {
        const char *call;
        unsigned times;
    } calls[256];
    static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
    unsigned number, times = 0;
    pthread_mutex_lock(&guard);
    for (number = 0; number < 256 && calls[number].call; number++)
        if (!strcmp(calls[number].call, call))
            break;
    if (number < 256) {
        calls[number].call = call;
        times = ++calls[number].times;
    }
    pthread_mutex_unlock(&guard);
    return times;
}

/* What follows CALL or CALL#N in a word where it means this call, else NULL. */
static const char *match_call(const char *word, const char *call, unsigned times)
{
    size_t length = strlen(call);
    char *end;
    if (strncmp(word, call, length))
        return NULL;
    word += length;
    if (*word != '#')
        return *word == ':' || !*word ? word : NULL;
    if (strtoul(word + 1, &end, 10) != times)
        return NULL;
    return *end == ':' || !*end ? end : NULL;
}

static void read_call_fault(struct faults *faults, const char *word, const char *call,
                            unsigned times)
{
    const char *rest;
    if (!strncmp(word, "fail=", 5)) {
        rest = match_call(word + 5, call, times);
        if (rest && *rest)
            faults->code = (int)to_number(rest + 1);
    } else if (!strncmp(word, "slow=", 5)) {
        rest = match_call(word + 5, call, times);
        if (rest && *rest)
            faults->slow_s += to_number(rest + 1);
    } else if (!strncmp(word, "hang=", 5)) {
        rest = match_call(word + 5, call, times);
        faults->hangs |= rest && !*rest;
    } else if (!strncmp(word, "lost-in=", 8)) {
        rest = match_call(word + 8, call, times);
        faults->loses |= rest && !*rest;
    }
}

void read_faults(struct faults *faults, const char *call)
{
    char path[PATH_MAX + 16], text[FILE_BYTES], *word, *rest = NULL;
    unsigned times;
    memset(faults, 0, sizeof *faults);
    find_faults_file(path, sizeof path);
    if (!*path || read_text(path, text, sizeof text) < 0)
        return;
    times = call ? count_call(call) : 0;
    for (word = strtok_r(text, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        if (!strcmp(word, "absent"))
            faults->absent = 1;
        else if (!strcmp(word, "no-driver"))
            faults->no_driver = 1;
        else if (!strcmp(word, "lie=uuid"))
            faults->lie_uuid = 1;
        else if (!strcmp(word, "lie=processes"))
            faults->lie_processes = 1;
        else if (!strcmp(word, "lost"))
            faults->lost = 1;
        else if (!strncmp(word, "lost=", 5))
            snprintf(faults->lost_uuid, sizeof faults->lost_uuid, "%.95s", word + 5);
        else if (!strncmp(word, "fallen=", 7)) /* programs look for it, too */
            snprintf(faults->lost_uuid, sizeof faults->lost_uuid, "%.95s", word + 7);
        else if (!strncmp(word, "held=", 5))
            snprintf(faults->held_uuid, sizeof faults->held_uuid, "%.95s", word + 5);
        else if (!strcmp(word, "real-latency"))
            faults->real_latency = 1;
        else if (!strcmp(word, "vgpu"))
            faults->is_vgpu = 1;
        else if (!strncmp(word, "hang=", 5) && isdigit((unsigned char)word[5]))
            faults->hang_s = to_number(word + 5);
        else if (call)
            read_call_fault(faults, word, call, times);
    }
}

void lose_gpu(const char *uuid)
{
    char path[PATH_MAX + 16], word[128];
    int file, length = snprintf(word, sizeof word, " lost=%.95s\n", uuid);
    find_faults_file(path, sizeof path);
    file = *path ? open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    if (write(file, word, (size_t)length) != length) /* then it is not lost */
        (void)0;
    close(file);
}
