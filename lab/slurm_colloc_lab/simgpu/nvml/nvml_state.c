#define _GNU_SOURCE
#include "nvml_state.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_TRIES 500

/* ---- text -------------------------------------------------------------------------------- */

int find_value(const char *text, const char *key, char *value, size_t size)
{
    size_t length = strlen(key);
    const char *line = text;
    while (line && *line) {
        const char *end = strchr(line, '\n');
        size_t width = end ? (size_t)(end - line) : strlen(line);
        if (width > length && !strncmp(line, key, length) && line[length] == '=') {
            width -= length + 1;
            if (width >= size)
                return 0;
            memcpy(value, line + length + 1, width);
            value[width] = 0;
            return 1;
        }
        line = end ? end + 1 : NULL;
    }
    return 0;
}

/* A decimal point is a point here, whatever the program's locale says. */
double to_number(const char *text)
{
    static locale_t plain;
    double number;
    if (!plain)
        plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    number = plain ? strtod_l(text, NULL, plain) : strtod(text, NULL);
    return number > -1e300 && number < 1e300 ? number : 0.0;
}

double find_number(const char *text, const char *key)
{
    char value[64];
    return find_value(text, key, value, sizeof value) ? to_number(value) : 0.0;
}

unsigned find_count(const char *text, const char *key)
{
    double number = find_number(text, key);
    return number < 0 || number > UINT_MAX ? 0 : (unsigned)number;
}

ssize_t read_text(const char *path, char *text, size_t size)
{
    struct stat status;
    ssize_t got = -1;
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return -1;
    if (!fstat(file, &status) && S_ISREG(status.st_mode))
        got = read(file, text, size - 1);
    close(file);
    if (got >= 0)
        text[got] = 0;
    return got;
}

double read_boot_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double read_monotonic_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- where ------------------------------------------------------------------------------- */

int find_root(char *path, size_t size)
{
    Dl_info here;
    char own[PATH_MAX];
    const char *given = getenv("SIMGPU_ROOT");
    int level;
    if (given && *given)
        return snprintf(path, size, "%s", given) < (int)size;
    /* SIM/lib/libnvidia-ml.so.1, also for a program whose environment was scrubbed. */
    if (!dladdr((void *)(uintptr_t)&find_root, &here) || !here.dli_fname)
        return 0;
    if (!realpath(here.dli_fname, own))
        return 0;
    for (level = 0; level < 2; level++) {
        char *slash = strrchr(own, '/');
        if (!slash)
            return 0;
        *slash = 0;
    }
    return snprintf(path, size, "%s", own) < (int)size;
}

int find_node(char *path, size_t size)
{
    char root[PATH_MAX], nodes[PATH_MAX + 16], chosen[NAME_MAX + 1] = "";
    const char *wanted = getenv("SLURMD_NODENAME");
    struct dirent *entry;
    DIR *folder;
    if (!find_root(root, sizeof root))
        return 0;
    snprintf(nodes, sizeof nodes, "%s/nodes", root);
    folder = opendir(nodes);
    if (!folder)
        return 0;
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.')
            continue;
        if (wanted && !strcmp(entry->d_name, wanted)) {
            strcpy(chosen, entry->d_name);
            break;
        }
        if (!*chosen || strcmp(entry->d_name, chosen) < 0)
            strcpy(chosen, entry->d_name);
    }
    closedir(folder);
    return *chosen && snprintf(path, size, "%s/%s", nodes, chosen) < (int)size;
}

/* ---- GPUs -------------------------------------------------------------------------------- */

int read_gpu(const char *node, int nvml_index, struct gpu *gpu)
{
    char path[PATH_MAX], text[FILE_BYTES], capability[16];
    if (snprintf(path, sizeof path, "%s/gpus/%d", node, nvml_index) >= (int)sizeof path)
        return 0;
    if (read_text(path, text, sizeof text) < 0)
        return 0;
    memset(gpu, 0, sizeof *gpu);
    gpu->nvml_index = nvml_index;
    if (!find_value(text, "uuid", gpu->uuid, sizeof gpu->uuid) || !*gpu->uuid)
        return 0;
    find_value(text, "name", gpu->name, sizeof gpu->name);
    find_value(text, "pci_bus_id", gpu->pci_bus_id, sizeof gpu->pci_bus_id);
    find_value(text, "device", gpu->device, sizeof gpu->device);
    gpu->minor = find_count(text, "minor");
    gpu->gpu_memory_mb = find_count(text, "gpu_memory_mb");
    gpu->reserved_mb = find_count(text, "reserved_gpu_memory_mb");
    gpu->sm_count = find_count(text, "sm_count");
    gpu->core_count = find_count(text, "core_count");
    gpu->architecture = find_count(text, "architecture");
    gpu->compute_mode = find_count(text, "compute_mode");
    gpu->idle_power_mw = find_count(text, "idle_power_mw");
    gpu->power_limit_mw = find_count(text, "power_limit_mw");
    gpu->default_power_limit_mw = find_count(text, "default_power_limit_mw");
    gpu->persistence_mode = find_count(text, "persistence_mode");
    gpu->min_power_limit_mw = find_count(text, "min_power_limit_mw");
    gpu->sm_clock_mhz = find_count(text, "sm_clock_mhz");
    gpu->memory_clock_mhz = find_count(text, "memory_clock_mhz");
    gpu->mig = find_count(text, "mig") != 0;
    if (gpu->mig) {
        gpu->mig_mode = find_count(text, "mig_mode");
        gpu->mig_pending = find_count(text, "mig_pending");
    }
    gpu->gpm = find_count(text, "gpm") != 0;
    if (find_value(text, "capability", capability, sizeof capability))
        sscanf(capability, "%d.%d", &gpu->capability_major, &gpu->capability_minor);
    return 1;
}

int is_permitted(const struct gpu *gpu)
{
    int file;
    if (!*gpu->device)
        return 1;
    file = open(gpu->device, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return errno != EACCES && errno != EPERM;
    close(file);
    return 1;
}

int lock_node(const char *node, int operation)
{
    char path[PATH_MAX];
    struct timespec pause = {0, 2000000};
    int file, tries;
    if (snprintf(path, sizeof path, "%s/lock", node) >= (int)sizeof path)
        return -1;
    file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    for (tries = 0; file >= 0 && flock(file, operation | LOCK_NB); tries++) {
        if (tries >= LOCK_TRIES) {
            close(file);
            return -1;
        }
        nanosleep(&pause, NULL);
    }
    return file;
}

int write_gpu_values(const char *node, const struct gpu *gpu, const char *const *keys,
                     const unsigned *values)
{
    char path[PATH_MAX], temporary[PATH_MAX + 8], text[FILE_BYTES], *line, *rest = NULL;
    int file, done = 0, number;
    FILE *out = NULL;
    snprintf(path, sizeof path, "%s/gpus/%d", node, gpu->nvml_index);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    if (read_text(path, text, sizeof text) >= 0) {
        unlink(temporary);
        file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        out = file < 0 ? NULL : fdopen(file, "w");
    }
    if (out) {
        fchmod(fileno(out), 0644);
        for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            size_t width = strcspn(line, "=");
            for (number = 0; keys[number]; number++)
                if (strlen(keys[number]) == width && !strncmp(line, keys[number], width))
                    break;
            if (!keys[number])
                fprintf(out, "%s\n", line);
        }
        for (number = 0; keys[number]; number++)
            fprintf(out, "%s=%u\n", keys[number], values[number]);
        done = !fclose(out) && !rename(temporary, path);
    }
    return done;
}
