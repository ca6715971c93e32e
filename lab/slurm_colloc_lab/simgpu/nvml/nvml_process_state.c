/* Processes on simulated GPUs: which there are, what they use now, and what all have used. */
#define _GNU_SOURCE
#include "nvml_state.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A description older than this is of a process that was stopped: it uses nothing now. */
#define STALE_S 5.0
/* Between two descriptions of itself a process goes on as it last said, but no longer than this. */
#define CARRY_ON_S 1.0

/* Field 22 of /proc/PID/stat (proc(5)), and the owner; 0 for a process that is gone or a zombie. */
static unsigned long long read_start(unsigned pid, uid_t *owner)
{
    char path[64], text[FILE_BYTES], *fields;
    struct stat status;
    unsigned long long start = 0;
    char state = 'X';
    ssize_t got;
    int file;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    got = fstat(file, &status) ? -1 : read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0)
        return 0;
    text[got] = 0;
    *owner = status.st_uid;
    /* The command name stands in parentheses and may itself hold blanks and parentheses. */
    fields = strrchr(text, ')');
    if (!fields || sscanf(fields + 1,
                          " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                          "%*d %*d %llu",
                          &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

static int has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    while (list && *list) {
        if (!strncmp(list, word, length) && (list[length] == ',' || !list[length]))
            return 1;
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    return 0;
}

static void add_use(struct use *total, const char *text, const char *suffix, const char *power,
                    double times)
{
    char key[160];
    const char *names[] = {"duty", "sm", "dram", "tensor", "occupancy"};
    double *fields[] = {&total->duty, &total->sm, &total->dram, &total->tensor, &total->occupancy};
    int is_now = !strcmp(suffix, "_share");
    size_t number;
    for (number = 0; number < 5; number++) {
        const char *end = number == 0 && is_now ? "" : suffix;
        snprintf(key, sizeof key, "%s%s", names[number], end);
        *fields[number] += times * find_number(text, key);
    }
    total->nvlink += times * find_number(text, is_now ? "nvlink_mib_s" : "nvlink_mib");
    total->power += times * find_number(text, power);
}

/* The text of processes/PID. `own` is its file's owner. */
static int read_process_text(const char *node, const char *name, char *text, uid_t *own)
{
    char path[PATH_MAX];
    struct stat status;
    const char *digit;
    for (digit = name; *digit; digit++)
        if (!isdigit((unsigned char)*digit))
            return 0;
    if (strlen(name) > 9 || snprintf(path, sizeof path, "%s/processes/%s", node, name) >= PATH_MAX)
        return 0;
    if (lstat(path, &status) || read_text(path, text, FILE_BYTES) <= 0)
        return 0;
    *own = status.st_uid;
    return 1;
}

static int is_alive(const char *name, const char *text, uid_t own)
{
    char value[32];
    uid_t owner = (uid_t)-1;
    unsigned long long start = read_start((unsigned)strtoul(name, NULL, 10), &owner);
    return start && owner == own && find_value(text, "starttime", value, sizeof value) &&
           strtoull(value, NULL, 10) == start;
}

/* `instance=GI/CI` of a process on a MIG device. */
static void read_instance(const char *text, struct process *process)
{
    char value[32];
    process->gpu_instance = process->compute_instance = INSTANCE_NONE;
    if (find_value(text, "instance", value, sizeof value) && *value)
        sscanf(value, "%u/%u", &process->gpu_instance, &process->compute_instance);
}

static DIR *open_processes(const char *node)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/processes", node) < PATH_MAX ? opendir(path) : NULL;
}

static int compare_pids(const void *left, const void *right)
{
    unsigned a = ((const struct process *)left)->pid, b = ((const struct process *)right)->pid;
    return a < b ? -1 : a > b;
}

int read_processes(const char *node, const char *uuid, struct process *found, int most)
{
    char text[FILE_BYTES], value[2048];
    struct dirent *entry;
    DIR *folder = open_processes(node);
    double now = read_monotonic_s();
    uid_t own;
    int count = 0;
    while (folder && count < most && (entry = readdir(folder))) {
        struct process *process = &found[count];
        if (!read_process_text(node, entry->d_name, text, &own))
            continue;
        if (!find_value(text, "gpu", value, sizeof value) || !has_word(value, uuid))
            continue;
        if (!is_alive(entry->d_name, text, own))
            continue;
        memset(process, 0, sizeof *process);
        process->pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        process->gpu_memory_mb = find_count(text, "gpu_memory_mb");
        process->mps_server = find_count(text, "mps_server");
        read_instance(text, process);
        process->is_client =
            find_value(text, "type", value, sizeof value) && !strcmp(value, "M+C");
        if (now - find_number(text, "updated_s") < STALE_S)
            add_use(&process->now, text, "_share", "power_mw", 1.0);
        count++;
    }
    if (folder)
        closedir(folder);
    qsort(found, (size_t)count, sizeof *found, compare_pids);
    return count;
}

/* Lines `UUID.field` of the totals as lines `field`. */
static void add_totals(const char *node, const char *uuid, struct use *sums)
{
    char path[PATH_MAX], text[TOTALS_BYTES], mine[FILE_BYTES], *line, *rest = NULL;
    size_t length = strlen(uuid), used = 0;
    snprintf(path, sizeof path, "%s/totals", node);
    if (read_text(path, text, sizeof text) <= 0)
        return;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, uuid, length) || line[length] != '.')
            continue;
        if (used + strlen(line) >= sizeof mine)
            break;
        used += (size_t)snprintf(mine + used, sizeof mine - used, "%s\n", line + length + 1);
    }
    mine[used] = 0;
    add_use(sums, mine, "_sum", "energy_mj", 1.0);
}

/* Of one GPU instance, or of all that ran on the GPU. */
static void add_sums(const char *node, const char *uuid, unsigned gpu_instance, struct use *sums)
{
    char key[128];
    char text[FILE_BYTES], value[2048];
    struct dirent *entry;
    DIR *folder = open_processes(node);
    double now = read_monotonic_s();
    uid_t own;
    /* Else a process that ends meanwhile would count twice or not at all. */
    int lock = lock_node(node, LOCK_SH);
    memset(sums, 0, sizeof *sums);
    snprintf(key, sizeof key, gpu_instance == INSTANCE_NONE ? "%.95s" : "%.95s/%u", uuid,
             gpu_instance);
    add_totals(node, key, sums);
    while (folder && (entry = readdir(folder))) {
        double since;
        struct use used;
        if (!read_process_text(node, entry->d_name, text, &own))
            continue;
        if (!find_value(text, "gpu", value, sizeof value) || !has_word(value, uuid))
            continue;
        if (gpu_instance != INSTANCE_NONE) {
            struct process process;
            read_instance(text, &process);
            if (process.gpu_instance != gpu_instance)
                continue;
        }
        add_use(sums, text, "_sum", "energy_mj", 1.0);
        since = now - find_number(text, "updated_s");
        if (since <= 0 || !is_alive(entry->d_name, text, own))
            continue;
        memset(&used, 0, sizeof used);
        add_use(&used, text, "_share", "power_mw", since < CARRY_ON_S ? since : CARRY_ON_S);
        /* Energy only grows, so what is not yet written down is left out. */
        sums->duty += used.duty;
        sums->sm += used.sm;
        sums->dram += used.dram;
        sums->tensor += used.tensor;
        sums->occupancy += used.occupancy;
        sums->nvlink += used.nvlink;
    }
    if (folder)
        closedir(folder);
    if (lock >= 0)
        close(lock);
}

void read_sums(const char *node, const char *uuid, struct use *sums)
{
    add_sums(node, uuid, INSTANCE_NONE, sums);
}

void read_instance_sums(const char *node, const char *uuid, unsigned gpu_instance,
                        struct use *sums)
{
    add_sums(node, uuid, gpu_instance, sums);
}
