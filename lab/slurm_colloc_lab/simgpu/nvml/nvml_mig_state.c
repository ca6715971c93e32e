/* The files of a partitioned GPU, and the handles of its instances. */
#include "nvml_mig.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#define MOST_HANDLES 1024

/* ---- profiles ---------------------------------------------------------------------------- */

/* `profile=` and the numbers in the order of struct profile, the name and the starts. */
static int parse_profile(const char *line, struct profile *profile)
{
    char starts[64], *word, *rest = NULL;
    unsigned media;
    memset(profile, 0, sizeof *profile);
    if (sscanf(line, "profile=%u %u %u %u %u %u %u %u %u %u %u %llu %u %47s %63s",
               &profile->nvml_profile, &profile->id, &profile->slices, &profile->memory_slices,
               &profile->most, &profile->sms, &profile->copy_engines, &profile->decoders,
               &profile->encoders, &profile->jpegs, &profile->ofas, &profile->gpu_memory_mb, &media,
               profile->name, starts) != 15)
        return 0;
    profile->has_media = media != 0;
    for (word = strtok_r(starts, ",", &rest); word && profile->placement_count < MOST_PLACEMENTS;
         word = strtok_r(NULL, ",", &rest)) {
        struct placement *placement = &profile->placements[profile->placement_count++];
        placement->start = (unsigned)strtoul(word, NULL, 10);
        placement->size = profile->memory_slices;
    }
    return 1;
}

int read_profiles(const struct gpu *gpu, struct profile_table *table)
{
    char path[PATH_MAX + 32], text[FILE_BYTES], *line, *rest = NULL;
    memset(table, 0, sizeof *table);
    snprintf(path, sizeof path, "%s/profiles/%d", node, gpu->nvml_index);
    if (!gpu->mig || read_text(path, text, sizeof text) <= 0)
        return 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (!strncmp(line, "known_profiles=", 15))
            table->known_profiles = (unsigned)strtoul(line + 15, NULL, 10);
        else if (table->count < MOST_PROFILES &&
                 parse_profile(line, &table->profiles[table->count])) {
            const struct profile *profile = &table->profiles[table->count++];
            if (profile->memory_slices > table->memory_slices)
                table->memory_slices = profile->memory_slices;
            if (profile->slices > table->slices)
                table->slices = profile->slices;
        }
    }
    return table->count > 0;
}

const struct profile *find_profile(const struct profile_table *table, unsigned id)
{
    unsigned number;
    for (number = 0; number < table->count; number++)
        if (table->profiles[number].id == id)
            return &table->profiles[number];
    return NULL;
}

unsigned count_sms(const struct profile_table *table, const struct profile *profile,
                   unsigned slices)
{
    unsigned number, single = profile->sms / profile->slices;
    if (slices == profile->slices)
        return profile->sms;
    for (number = 0; number < table->count; number++)
        if (table->profiles[number].slices == 1 && table->profiles[number].memory_slices == 1)
            single = table->profiles[number].sms;
    return slices * single;
}

/* ---- instances --------------------------------------------------------------------------- */

void read_instances(const struct gpu *gpu, struct instances *instances)
{
    char path[PATH_MAX + 32], text[FILE_BYTES], *line, *rest = NULL;
    memset(instances, 0, sizeof *instances);
    snprintf(path, sizeof path, "%s/instances/%d", node, gpu->nvml_index);
    if (read_text(path, text, sizeof text) <= 0)
        return;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        struct gpu_instance *one = &instances->gpu[instances->gpu_count];
        struct compute_instance *part = &instances->compute[instances->compute_count];
        if (!strncmp(line, "made=", 5))
            instances->made = strtoull(line + 5, NULL, 10);
        else if (instances->gpu_count < MOST_INSTANCES &&
                 sscanf(line, "gi=%u %u %u %u %llu", &one->id, &one->profile_id,
                        &one->placement.start, &one->placement.size, &one->serial) == 5)
            instances->gpu_count++;
        else if (instances->compute_count < MOST_MIG_DEVICES &&
                 sscanf(line, "ci=%u %u %u %u %u %u %llu %63s", &part->gpu_instance, &part->id,
                        &part->profile_id, &part->placement.start, &part->placement.size,
                        &part->mig_index, &part->serial, part->uuid) == 8)
            instances->compute_count++;
    }
}

/* Under the lock: a killed program leaves the old file or the new one. */
int write_instances(const struct gpu *gpu, const struct instances *instances)
{
    char path[PATH_MAX + 32], temporary[PATH_MAX + 40];
    unsigned number;
    FILE *out;
    int file;
    snprintf(path, sizeof path, "%s/instances/%d", node, gpu->nvml_index);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    unlink(temporary);
    file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    out = file < 0 ? NULL : fdopen(file, "w");
    if (!out)
        return 0;
    fchmod(fileno(out), 0644);
    fprintf(out, "made=%llu\n", instances->made);
    for (number = 0; number < instances->gpu_count; number++) {
        const struct gpu_instance *one = &instances->gpu[number];
        fprintf(out, "gi=%u %u %u %u %llu\n", one->id, one->profile_id, one->placement.start,
                one->placement.size, one->serial);
    }
    for (number = 0; number < instances->compute_count; number++) {
        const struct compute_instance *part = &instances->compute[number];
        fprintf(out, "ci=%u %u %u %u %u %u %llu %s\n", part->gpu_instance, part->id,
                part->profile_id, part->placement.start, part->placement.size, part->mig_index,
                part->serial, part->uuid);
    }
    return !fclose(out) && !rename(temporary, path);
}

struct gpu_instance *find_gpu_instance(struct instances *instances, unsigned long long serial)
{
    unsigned number;
    for (number = 0; number < instances->gpu_count; number++)
        if (instances->gpu[number].serial == serial)
            return &instances->gpu[number];
    return NULL;
}

struct compute_instance *find_compute_instance(struct instances *instances,
                                               unsigned long long serial)
{
    unsigned number;
    for (number = 0; number < instances->compute_count; number++)
        if (instances->compute[number].serial == serial)
            return &instances->compute[number];
    return NULL;
}

int overlaps(struct placement one, struct placement other)
{
    return one.start < other.start + other.size && other.start < one.start + one.size;
}

int is_busy(const struct gpu *gpu, unsigned gpu_instance, unsigned compute_instance)
{
    struct process *found = calloc(MOST_PROCESSES, sizeof *found);
    int count = found ? read_processes(node, gpu->uuid, found, MOST_PROCESSES) : 0, number;
    int busy = 0;
    for (number = 0; number < count; number++)
        busy |= (gpu_instance == INSTANCE_NONE || found[number].gpu_instance == gpu_instance) &&
                (compute_instance == INSTANCE_NONE ||
                 found[number].compute_instance == compute_instance);
    free(found);
    return busy;
}

void take_time(double seconds)
{
    struct faults faults;
    read_faults(&faults, NULL);
    if (faults.real_latency) {
        struct timespec pause = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
        nanosleep(&pause, NULL);
    }
}

/* ---- handles ----------------------------------------------------------------------------- */

static struct instance_handle handles[MOST_HANDLES];
static struct device mig_devices[MOST_HANDLES];
static unsigned handle_count, mig_device_count;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

struct instance_handle *get_handle(struct device *device, unsigned long long serial)
{
    unsigned number;
    struct instance_handle *found;
    pthread_mutex_lock(&guard);
    for (number = 0; number < handle_count; number++)
        if (handles[number].device == device && handles[number].serial == serial)
            break;
    if (number == MOST_HANDLES)
        number = 0; /* a program that makes so many reuses the oldest */
    else if (number == handle_count)
        handle_count++;
    found = &handles[number];
    found->device = device;
    found->serial = serial;
    pthread_mutex_unlock(&guard);
    return found;
}

int is_handle(const struct instance_handle *handle)
{
    return handle >= handles && handle < handles + handle_count;
}

struct device *get_mig_device(struct device *parent, unsigned long long serial)
{
    unsigned number;
    struct device *found;
    pthread_mutex_lock(&guard);
    for (number = 0; number < mig_device_count; number++)
        if (mig_devices[number].parent == parent && mig_devices[number].serial == serial)
            break;
    if (number == MOST_HANDLES)
        number = 0;
    else if (number == mig_device_count)
        mig_device_count++;
    found = &mig_devices[number];
    found->nvml_index = parent->nvml_index;
    found->parent = parent;
    found->serial = serial;
    pthread_mutex_unlock(&guard);
    return found;
}

int is_mig_device(const struct device *device)
{
    return device >= mig_devices && device < mig_devices + mig_device_count;
}

result enter_mig_device(const char *call, const struct device *device, struct mig_device *found)
{
    struct profile_table table;
    struct instances instances;
    const struct compute_instance *part;
    const struct profile *profile;
    unsigned number;
    if (!is_mig_device(device)) {
        ENTER_DEVICE_OF(call, device, &found->gpu);
        return INVALID_ARGUMENT;
    }
    ENTER_DEVICE_OF(call, device->parent, &found->gpu);
    read_instances(&found->gpu, &instances);
    part = find_compute_instance(&instances, device->serial);
    if (!part || !read_profiles(&found->gpu, &table))
        return NOT_FOUND;
    for (number = 0; number < instances.gpu_count; number++) {
        const struct gpu_instance *one = &instances.gpu[number];
        profile = find_profile(&table, one->profile_id);
        if (one->id != part->gpu_instance || !profile)
            continue;
        found->profile = *profile;
        found->gpu_instance = *one;
        found->compute_instance = *part;
        found->sms = count_sms(&table, profile, part->placement.size);
        return SUCCESS;
    }
    return NOT_FOUND;
}
