/* NVML: the compute instances of a GPU instance, and the MIG devices that they are. */
#include "nvml_mig.h"

#include <sys/file.h>

#define CREATE_S 0.1
#define DESTROY_S 0.1

static int is_place_free(const struct opened *opened, struct placement place)
{
    unsigned number;
    for (number = 0; number < opened->instances.compute_count; number++) {
        const struct compute_instance *part = &opened->instances.compute[number];
        if (part->gpu_instance == opened->one.id && overlaps(part->placement, place))
            return 0;
    }
    return 1;
}

EXPORT result nvmlGpuInstanceGetComputeInstanceRemainingCapacity(struct instance_handle *handle,
                                                                 unsigned id, unsigned *count)
{
    struct opened opened;
    struct compute_profile profile;
    unsigned number;
    result found;
    NEED(count);
    OPEN_INSTANCE(__func__, handle, &opened);
    found = get_compute_profile(&opened, id, &profile);
    if (found)
        return found;
    *count = 0;
    for (number = 0; number < profile.count; number++)
        *count += (unsigned)is_place_free(&opened, profile.places[number]);
    return SUCCESS;
}

/* Another one at each creation: nothing may rest on it after the instance has gone. */
static void choose_uuid(const struct gpu *gpu, unsigned long long serial, char *uuid, size_t size)
{
    unsigned long long words[2];
    unsigned word;
    for (word = 0; word < 2; word++) {
        const char *letter;
        unsigned long long hash = 14695981039346656037ULL ^ (serial * 2 + word);
        for (letter = gpu->uuid; *letter; letter++)
            hash = (hash ^ (unsigned char)*letter) * 1099511628211ULL;
        hash ^= hash >> 29;
        hash *= 0xBF58476D1CE4E5B9ULL;
        words[word] = hash ^ hash >> 32;
    }
    snprintf(uuid, size, "MIG-%08llx-%04llx-5%03llx-%04llx-%012llx", words[0] >> 32,
             words[0] >> 16 & 0xFFFF, words[0] & 0xFFF, 0x8000 | (words[1] >> 48 & 0x3FFF),
             words[1] & 0xFFFFFFFFFFFFULL);
}

/* The lowest number that no compute instance has, of the GPU's devices or the instance's parts. */
static unsigned choose_number(const struct opened *opened, int of_device)
{
    unsigned candidate = 0, number = 0;
    while (number < opened->instances.compute_count) {
        const struct compute_instance *part = &opened->instances.compute[number++];
        int counts = of_device || part->gpu_instance == opened->one.id;
        if (counts && (of_device ? part->mig_index : part->id) == candidate) {
            candidate++;
            number = 0;
        }
    }
    return candidate;
}

static result create(const char *call, struct instance_handle *handle, unsigned id,
                     const struct placement *wanted, struct instance_handle **instance)
{
    struct opened opened;
    struct compute_profile profile;
    struct compute_instance *part;
    const struct placement *chosen = NULL;
    unsigned number, known = 0;
    result done;
    int lock;
    NEED(instance);
    OPEN_INSTANCE(call, handle, &opened);
    if (geteuid() != 0)
        return NO_PERMISSION;
    take_time(CREATE_S);
    lock = lock_node(node, LOCK_EX);
    if (lock < 0)
        return UNKNOWN;
    done = open_instance(NULL, handle, &opened);
    if (!done)
        done = get_compute_profile(&opened, id, &profile);
    for (number = 0; !done && number < profile.count; number++) {
        const struct placement *place = &profile.places[number];
        int same = !wanted || !memcmp(wanted, place, sizeof *place);
        known |= (unsigned)same;
        if (!chosen && same && is_place_free(&opened, *place))
            chosen = place;
    }
    if (!done && !known)
        done = INVALID_ARGUMENT;
    if (!done && (!chosen || opened.instances.compute_count == MOST_MIG_DEVICES))
        done = INSUFFICIENT_RESOURCES;
    if (!done) {
        unsigned own = choose_number(&opened, 0), index = choose_number(&opened, 1);
        part = &opened.instances.compute[opened.instances.compute_count++];
        part->gpu_instance = opened.one.id;
        part->id = own;
        part->profile_id = id;
        part->placement = *chosen;
        part->mig_index = index;
        part->serial = ++opened.instances.made;
        choose_uuid(&opened.gpu, part->serial, part->uuid, sizeof part->uuid);
        done = write_instances(&opened.gpu, &opened.instances) ? SUCCESS : UNKNOWN;
        if (!done)
            *instance = get_handle(handle->device, part->serial);
    }
    close(lock);
    return done;
}

EXPORT result nvmlGpuInstanceCreateComputeInstance(struct instance_handle *handle, unsigned id,
                                                   struct instance_handle **instance)
{
    return create(__func__, handle, id, NULL, instance);
}

EXPORT result nvmlGpuInstanceCreateComputeInstanceWithPlacement(struct instance_handle *handle,
                                                                unsigned id,
                                                                const struct placement *placement,
                                                                struct instance_handle **instance)
{
    if (!placement)
        return INVALID_ARGUMENT;
    return create(__func__, handle, id, placement, instance);
}

EXPORT result nvmlComputeInstanceDestroy(struct instance_handle *handle)
{
    struct gpu gpu;
    struct faults faults;
    struct instances instances;
    struct compute_instance *part;
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
    part = find_compute_instance(&instances, handle->serial);
    if (!part)
        done = NOT_FOUND;
    else if (!is_busy(&gpu, part->gpu_instance, part->id) &&
             strcasecmp(faults.held_uuid, part->uuid)) {
        *part = instances.compute[--instances.compute_count];
        done = write_instances(&gpu, &instances) ? SUCCESS : UNKNOWN;
    }
    close(lock);
    return done;
}

EXPORT result nvmlGpuInstanceGetComputeInstances(struct instance_handle *handle, unsigned id,
                                                 struct instance_handle **found, unsigned *count)
{
    struct opened opened;
    struct compute_profile profile;
    unsigned number;
    result known;
    NEED(found && count);
    OPEN_INSTANCE(__func__, handle, &opened);
    if (geteuid() != 0)
        return NO_PERMISSION;
    known = get_compute_profile(&opened, id, &profile);
    if (known)
        return known;
    *count = 0;
    for (number = 0; number < opened.instances.compute_count; number++) {
        const struct compute_instance *part = &opened.instances.compute[number];
        if (part->gpu_instance == opened.one.id && part->profile_id == id)
            found[(*count)++] = get_handle(handle->device, part->serial);
    }
    return SUCCESS;
}

EXPORT result nvmlGpuInstanceGetComputeInstanceById(struct instance_handle *handle, unsigned id,
                                                    struct instance_handle **found)
{
    struct opened opened;
    unsigned number;
    NEED(found);
    OPEN_INSTANCE(__func__, handle, &opened);
    if (geteuid() != 0)
        return NO_PERMISSION;
    for (number = 0; number < opened.instances.compute_count; number++) {
        const struct compute_instance *part = &opened.instances.compute[number];
        if (part->gpu_instance == opened.one.id && part->id == id) {
            *found = get_handle(handle->device, part->serial);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

struct compute_instance_info {
    struct device *device;
    struct instance_handle *gpu_instance;
    unsigned id, profile_id;
    struct placement placement;
};

EXPORT result nvmlComputeInstanceGetInfo_v2(struct instance_handle *handle,
                                            struct compute_instance_info *info)
{
    struct gpu gpu;
    struct instances instances;
    const struct compute_instance *part;
    unsigned number;
    NEED(is_handle(handle) && info);
    ENTER_DEVICE(handle->device, &gpu);
    read_instances(&gpu, &instances);
    part = find_compute_instance(&instances, handle->serial);
    if (!part)
        return NOT_FOUND;
    info->device = get_mig_device(handle->device, part->serial);
    info->gpu_instance = NULL;
    for (number = 0; number < instances.gpu_count; number++)
        if (instances.gpu[number].id == part->gpu_instance)
            info->gpu_instance = get_handle(handle->device, instances.gpu[number].serial);
    info->id = part->id;
    info->profile_id = part->profile_id;
    info->placement = part->placement;
    return SUCCESS;
}
