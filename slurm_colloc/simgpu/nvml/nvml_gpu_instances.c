/* NVML: MIG mode, and the GPU instances of a device. */
#include "nvml_mig.h"

#include <sys/file.h>

/* On a real GPU: destroying takes about a second, the rest is not measured (docs). */
#define CREATE_S 0.1
#define DESTROY_S 1.0
#define MODE_S 1.0

#define HOPPER 9

/* ---- mode -------------------------------------------------------------------------------- */

EXPORT result nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(current && pending);
    if (!gpu.mig)
        return NOT_SUPPORTED;
    *current = gpu.mig_mode;
    *pending = gpu.mig_pending;
    return SUCCESS;
}

/*
 * Success says that the mode is pending, the activation status whether it is in force. Before
 * Hopper it takes a reset, which this call does not make here.
 */
EXPORT result nvmlDeviceSetMigMode(struct device *device, unsigned mode, result *activation)
{
    static const char *const keys[] = {"mig_mode", "mig_pending", NULL};
    struct gpu gpu;
    struct instances instances;
    unsigned values[2];
    ENTER_DEVICE(device, &gpu);
    NEED(mode <= 1 && activation);
    if (!gpu.mig)
        return NOT_SUPPORTED;
    if (geteuid() != 0)
        return NO_PERMISSION;
    read_instances(&gpu, &instances);
    if (mode == gpu.mig_mode)
        *activation = SUCCESS;
    else if (instances.gpu_count || is_busy(&gpu, INSTANCE_NONE, INSTANCE_NONE))
        *activation = IN_USE;
    else
        *activation = gpu.architecture >= HOPPER ? SUCCESS : RESET_REQUIRED;
    if (*activation == SUCCESS && mode != gpu.mig_mode)
        take_time(MODE_S);
    values[0] = *activation == SUCCESS ? mode : gpu.mig_mode;
    values[1] = mode;
    return write_gpu_values(node, &gpu, keys, values) ? SUCCESS : UNKNOWN;
}

/* ---- profiles ---------------------------------------------------------------------------- */

struct profile_info {
    unsigned id, is_p2p, slices, count, sms, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long gpu_memory_mb;
};

struct profile_info_v2 {
    unsigned version;
    unsigned id, is_p2p, slices, count, sms, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long gpu_memory_mb;
    char name[96];
};

struct profile_info_v3 {
    unsigned version;
    unsigned id, slices, count, sms, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long gpu_memory_mb;
    char name[96];
    unsigned capabilities;
};

static result find_by_number(const struct gpu *gpu, unsigned number, struct profile *profile)
{
    struct profile_table table;
    unsigned row;
    if (!read_profiles(gpu, &table))
        return NOT_SUPPORTED;
    NEED(number < table.known_profiles);
    for (row = 0; row < table.count; row++) {
        if (table.profiles[row].nvml_profile == number) {
            *profile = table.profiles[row];
            return SUCCESS;
        }
    }
    return NOT_SUPPORTED;
}

static result fill_versioned(const struct profile *profile, void *info)
{
    struct profile_info_v2 *second = info;
    struct profile_info_v3 *third = info;
    unsigned version = second->version;
    if (version == (sizeof *second | 2u << 24)) {
        memset(second, 0, sizeof *second);
        second->version = version;
        second->id = profile->id;
        second->slices = profile->slices;
        second->count = profile->most;
        second->sms = profile->sms;
        second->copy_engines = profile->copy_engines;
        second->decoders = profile->decoders;
        second->encoders = profile->encoders;
        second->jpegs = profile->jpegs;
        second->ofas = profile->ofas;
        second->gpu_memory_mb = profile->gpu_memory_mb;
        snprintf(second->name, sizeof second->name, "MIG %s", profile->name);
        return SUCCESS;
    }
    /* Measured: not a version mismatch. */
    NEED(version == (sizeof *third | 3u << 24));
    memset(third, 0, sizeof *third);
    third->version = version;
    third->id = profile->id;
    third->slices = profile->slices;
    third->count = profile->most;
    third->sms = profile->sms;
    third->copy_engines = profile->copy_engines;
    third->decoders = profile->decoders;
    third->encoders = profile->encoders;
    third->jpegs = profile->jpegs;
    third->ofas = profile->ofas;
    third->gpu_memory_mb = profile->gpu_memory_mb;
    snprintf(third->name, sizeof third->name, "MIG %s", profile->name);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetGpuInstanceProfileInfo(struct device *device, unsigned number,
                                                  struct profile_info *info)
{
    struct gpu gpu;
    struct profile profile;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(info);
    found = find_by_number(&gpu, number, &profile);
    if (found)
        return found;
    memset(info, 0, sizeof *info);
    info->id = profile.id;
    info->slices = profile.slices;
    info->count = profile.most;
    info->sms = profile.sms;
    info->copy_engines = profile.copy_engines;
    info->decoders = profile.decoders;
    info->encoders = profile.encoders;
    info->jpegs = profile.jpegs;
    info->ofas = profile.ofas;
    info->gpu_memory_mb = profile.gpu_memory_mb;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned number,
                                                   void *info)
{
    struct gpu gpu;
    struct profile profile;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(info);
    found = find_by_number(&gpu, number, &profile);
    return found ? found : fill_versioned(&profile, info);
}

/*
 * The profile with that id; `found` is its copy. Measured: an id that only other GPUs have is not
 * supported, one that the driver does not know an invalid argument.
 */
static const unsigned known_ids[] = {0, 5, 6, 9, 14, 15, 19, 20, 21};

static result get_profile(const struct gpu *gpu, unsigned id, struct profile_table *table,
                          struct profile *found)
{
    const struct profile *profile;
    unsigned number;
    if (!read_profiles(gpu, table))
        return NOT_SUPPORTED;
    profile = find_profile(table, id);
    if (profile) {
        *found = *profile;
        return SUCCESS;
    }
    for (number = 0; number < sizeof known_ids / sizeof *known_ids; number++)
        if (known_ids[number] == id)
            return NOT_SUPPORTED;
    return INVALID_ARGUMENT;
}

EXPORT result nvmlDeviceGetGpuInstanceProfileInfoByIdV(struct device *device, unsigned id,
                                                       void *info)
{
    struct gpu gpu;
    struct profile_table table;
    struct profile profile;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(info);
    found = get_profile(&gpu, id, &table, &profile);
    if (found == NOT_SUPPORTED && table.count)
        return NOT_FOUND;
    return found ? found : fill_versioned(&profile, info);
}

/*
 * All of the profile, occupied or not, whether MIG is on or not. Measured: how long the list is
 * does not matter to the driver.
 */
EXPORT result nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct device *device, unsigned id,
                                                            struct placement *placements,
                                                            unsigned *count)
{
    struct gpu gpu;
    struct profile_table table;
    struct profile profile;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(count);
    found = get_profile(&gpu, id, &table, &profile);
    if (found)
        return found;
    *count = profile.placement_count;
    if (placements)
        memcpy(placements, profile.placements, profile.placement_count * sizeof *placements);
    return SUCCESS;
}

/* ---- instances --------------------------------------------------------------------------- */

static int is_free(const struct instances *instances, struct placement placement)
{
    unsigned number;
    for (number = 0; number < instances->gpu_count; number++)
        if (overlaps(instances->gpu[number].placement, placement))
            return 0;
    return 1;
}

/* How many more of a profile there can be, wherever they go. */
static unsigned count_room(const struct profile_table *table, const struct instances *instances,
                           const struct profile *profile)
{
    unsigned number, same = 0, slices = 0, room = 0, left;
    for (number = 0; number < instances->gpu_count; number++) {
        const struct profile *other = find_profile(table, instances->gpu[number].profile_id);
        if (!other)
            continue;
        slices += other->slices;
        same += other->id == profile->id;
        /* The media engines are there once. */
        if (other->has_media && profile->has_media)
            return 0;
    }
    /* Placements of one profile do not overlap each other. */
    for (number = 0; number < profile->placement_count; number++)
        room += (unsigned)is_free(instances, profile->placements[number]);
    left = table->slices > slices ? (table->slices - slices) / profile->slices : 0;
    if (room > left)
        room = left;
    left = profile->most > same ? profile->most - same : 0;
    return room < left ? room : left;
}

EXPORT result nvmlDeviceGetGpuInstanceRemainingCapacity(struct device *device, unsigned id,
                                                        unsigned *count)
{
    struct gpu gpu;
    struct profile_table table;
    struct instances instances;
    struct profile profile;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(count);
    found = get_profile(&gpu, id, &table, &profile);
    if (found)
        return found;
    read_instances(&gpu, &instances);
    *count = count_room(&table, &instances, &profile);
    return SUCCESS;
}

/*
 * Ids as the driver gives them: the places of a binary tree over the memory slices, by level. On
 * the seven-slice GPUs the upper half comes first: 3g at 4 is 1, 3g at 0 is 2, 1g at 0 is 11.
 */
static unsigned choose_id(const struct profile_table *table, struct placement placement)
{
    unsigned places = table->memory_slices / placement.size, place;
    place = placement.start / placement.size;
    if (table->memory_slices == 8)
        place = (place + places / 2) % places;
    return places - 1 + place;
}

static struct device *find_device(const struct gpu *gpu)
{
    struct device *device = devices;
    while (device->nvml_index != gpu->nvml_index)
        device++;
    return device;
}

/* Under the lock. Without a placement the driver chooses, and nobody knows how. */
static result make_instance(const struct gpu *gpu, const struct profile_table *table,
                            const struct profile *profile, const struct placement *wanted,
                            unsigned long long *serial)
{
    struct instances instances;
    struct placement chosen = {0, 0};
    struct gpu_instance *one;
    unsigned number, first;
    read_instances(gpu, &instances);
    if (!count_room(table, &instances, profile) || instances.gpu_count == MOST_INSTANCES)
        return INSUFFICIENT_RESOURCES;
    if (wanted)
        chosen = *wanted;
    first = (unsigned)(instances.made * 5);
    for (number = 0; !wanted && !chosen.size; number++) {
        const struct placement *next =
            &profile->placements[(first + number) % profile->placement_count];
        if (is_free(&instances, *next))
            chosen = *next;
    }
    if (!is_free(&instances, chosen))
        return INSUFFICIENT_RESOURCES;
    one = &instances.gpu[instances.gpu_count++];
    one->id = choose_id(table, chosen);
    one->profile_id = profile->id;
    one->placement = chosen;
    one->serial = *serial = ++instances.made;
    return write_instances(gpu, &instances) ? SUCCESS : UNKNOWN;
}

static result create(const char *call, struct device *device, unsigned id,
                     const struct placement *placement, struct instance_handle **instance)
{
    struct gpu gpu;
    struct profile_table table;
    struct profile profile;
    unsigned long long serial = 0;
    unsigned number, known = 0;
    result done;
    int lock;
    ENTER_DEVICE_OF(call, device, &gpu);
    NEED(instance);
    if (!gpu.mig || !gpu.mig_mode)
        return NOT_SUPPORTED;
    if (geteuid() != 0)
        return NO_PERMISSION;
    done = get_profile(&gpu, id, &table, &profile);
    if (done)
        return done;
    for (number = 0; placement && number < profile.placement_count; number++)
        known |= !memcmp(placement, &profile.placements[number], sizeof *placement);
    NEED(!placement || known);
    take_time(CREATE_S);
    lock = lock_node(node, LOCK_EX);
    if (lock < 0)
        return UNKNOWN;
    done = make_instance(&gpu, &table, &profile, placement, &serial);
    close(lock);
    if (!done)
        *instance = get_handle(device, serial);
    return done;
}

EXPORT result nvmlDeviceCreateGpuInstance(struct device *device, unsigned id,
                                          struct instance_handle **instance)
{
    return create(__func__, device, id, NULL, instance);
}

EXPORT result nvmlDeviceCreateGpuInstanceWithPlacement(struct device *device, unsigned id,
                                                       const struct placement *placement,
                                                       struct instance_handle **instance)
{
    if (!placement)
        return INVALID_ARGUMENT;
    return create(__func__, device, id, placement, instance);
}

EXPORT result nvmlGpuInstanceDestroy(struct instance_handle *handle)
{
    struct gpu gpu;
    struct faults faults;
    struct instances instances;
    struct gpu_instance *one;
    unsigned number;
    result done = IN_USE;
    int lock;
    NEED(is_handle(handle));
    ENTER_DEVICE(handle->device, &gpu);
    if (geteuid() != 0)
        return NO_PERMISSION;
    take_time(DESTROY_S);
    read_faults(&faults, NULL);
    lock = lock_node(node, LOCK_EX);
    if (lock < 0)
        return UNKNOWN;
    read_instances(&gpu, &instances);
    one = find_gpu_instance(&instances, handle->serial);
    if (!one) {
        close(lock);
        return NOT_FOUND;
    }
    for (number = 0; number < instances.compute_count; number++)
        if (instances.compute[number].gpu_instance == one->id)
            break;
    if (number == instances.compute_count && !is_busy(&gpu, one->id, INSTANCE_NONE) &&
        strcasecmp(faults.held_uuid, gpu.uuid)) {
        *one = instances.gpu[--instances.gpu_count];
        done = write_instances(&gpu, &instances) ? SUCCESS : UNKNOWN;
    }
    close(lock);
    return done;
}

EXPORT result nvmlDeviceGetGpuInstances(struct device *device, unsigned id,
                                        struct instance_handle **found, unsigned *count)
{
    struct gpu gpu;
    struct profile_table table;
    struct profile profile;
    struct instances instances;
    unsigned number;
    result known;
    ENTER_DEVICE(device, &gpu);
    NEED(found && count);
    if (!gpu.mig)
        return NOT_SUPPORTED;
    if (gpu.mig_mode && geteuid() != 0)
        return NO_PERMISSION;
    known = get_profile(&gpu, id, &table, &profile);
    if (known == INVALID_ARGUMENT)
        return known;
    read_instances(&gpu, &instances);
    *count = 0;
    for (number = 0; number < instances.gpu_count; number++)
        if (instances.gpu[number].profile_id == id)
            found[(*count)++] = get_handle(device, instances.gpu[number].serial);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetGpuInstanceById(struct device *device, unsigned id,
                                           struct instance_handle **found)
{
    struct gpu gpu;
    struct instances instances;
    unsigned number;
    ENTER_DEVICE(device, &gpu);
    NEED(found);
    if (!gpu.mig)
        return NOT_SUPPORTED;
    if (gpu.mig_mode && geteuid() != 0)
        return NO_PERMISSION;
    read_instances(&gpu, &instances);
    for (number = 0; number < instances.gpu_count; number++) {
        if (instances.gpu[number].id == id) {
            *found = get_handle(device, instances.gpu[number].serial);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

struct gpu_instance_info {
    struct device *device;
    unsigned id, profile_id;
    struct placement placement;
};

EXPORT result nvmlGpuInstanceGetInfo(struct instance_handle *handle,
                                     struct gpu_instance_info *info)
{
    struct gpu gpu;
    struct instances instances;
    const struct gpu_instance *one;
    NEED(is_handle(handle) && info);
    ENTER_DEVICE(handle->device, &gpu);
    read_instances(&gpu, &instances);
    one = find_gpu_instance(&instances, handle->serial);
    if (!one)
        return NOT_FOUND;
    info->device = find_device(&gpu);
    info->id = one->id;
    info->profile_id = one->profile_id;
    info->placement = one->placement;
    return SUCCESS;
}
