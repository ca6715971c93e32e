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
    int lock, done;
    ENTER_DEVICE(device, &gpu);
    NEED(mode <= 1 && activation);
    if (!gpu.mig)
        return NOT_SUPPORTED;
    if (geteuid() != 0)
        return NO_PERMISSION;
    if (mode != gpu.mig_mode && gpu.architecture >= HOPPER)
        take_time(MODE_S);
    lock = lock_node(node, LOCK_EX);
    if (lock < 0)
        return UNKNOWN;
    read_gpu(node, gpu.nvml_index, &gpu);
    read_instances(&gpu, &instances);
    if (mode == gpu.mig_mode)
        *activation = SUCCESS;
    else if (instances.gpu_count || is_busy(&gpu, INSTANCE_NONE, INSTANCE_NONE))
        *activation = IN_USE;
    else
        *activation = gpu.architecture >= HOPPER ? SUCCESS : RESET_REQUIRED;
    values[0] = *activation == SUCCESS ? mode : gpu.mig_mode;
    values[1] = mode;
    done = write_gpu_values(node, &gpu, keys, values);
    close(lock);
    return done ? SUCCESS : UNKNOWN;
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

/* Under the lock. Without a placement the driver chooses, in a way that is not known. */
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
    /* Another program may have switched the mode meanwhile. */
    read_gpu(node, gpu.nvml_index, &gpu);
    done = gpu.mig_mode ? make_instance(&gpu, &table, &profile, placement, &serial) : NOT_SUPPORTED;
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
