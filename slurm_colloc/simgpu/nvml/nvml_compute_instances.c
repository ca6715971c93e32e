/* NVML: the compute instances of a GPU instance, and the MIG devices that they are. */
#include "nvml_mig.h"

#include <sys/file.h>

#define CREATE_S 0.1
#define DESTROY_S 0.1

/* NVML's numbers and ids of compute instance profiles are the same. */
static const unsigned profile_slices[] = {1, 2, 3, 4, 7};
#define COMPUTE_PROFILES (sizeof profile_slices / sizeof *profile_slices)
/* The driver knows eight; the GPUs at hand have none of the rest. */
#define KNOWN_PROFILES 8

/* ---- profiles ---------------------------------------------------------------------------- */

/* Where so many slices may lie in an instance of `total`; how many places there are. */
static unsigned list_places(unsigned total, unsigned slices, struct placement *places)
{
    unsigned start, count = 0, step = slices == 1 ? 1 : slices == 2 ? 2 : 4;
    /* Three of four slices are no profile. */
    if (slices == 3 && total == 4)
        return 0;
    for (start = 0; start + slices <= total; start += step) {
        places[count].start = start;
        places[count++].size = slices;
    }
    return count;
}

/* What belongs to a GPU instance's handle. */
struct opened {
    struct gpu gpu;
    struct profile_table table;
    struct profile profile;
    struct instances instances;
    struct gpu_instance one;
};

static result open_instance(const char *call, const struct instance_handle *handle,
                            struct opened *opened)
{
    const struct gpu_instance *one;
    const struct profile *profile;
    NEED(is_handle(handle));
    ENTER_DEVICE_OF(call, handle->device, &opened->gpu);
    read_instances(&opened->gpu, &opened->instances);
    one = find_gpu_instance(&opened->instances, handle->serial);
    if (!one || !read_profiles(&opened->gpu, &opened->table))
        return NOT_FOUND;
    profile = find_profile(&opened->table, one->profile_id);
    if (!profile)
        return UNKNOWN;
    opened->one = *one;
    opened->profile = *profile;
    return SUCCESS;
}

#define OPEN_INSTANCE(call, handle, opened)                                                        \
    do {                                                                                           \
        result opened_ = open_instance(call, handle, opened);                                      \
        if (opened_)                                                                               \
            return opened_;                                                                        \
    } while (0)

struct compute_profile {
    unsigned id, slices, count, sms;
    struct placement places[MOST_PLACEMENTS];
};

static result get_compute_profile(const struct opened *opened, unsigned id,
                                  struct compute_profile *found)
{
    NEED(id < KNOWN_PROFILES);
    if (id >= COMPUTE_PROFILES)
        return NOT_SUPPORTED;
    found->id = id;
    found->slices = profile_slices[id];
    if (found->slices > opened->profile.slices)
        return NOT_SUPPORTED;
    found->count = list_places(opened->profile.slices, found->slices, found->places);
    found->sms = count_sms(&opened->table, &opened->profile, found->slices);
    return found->count ? SUCCESS : NOT_SUPPORTED;
}

/* `1c.3g.20gb`, and `3g.20gb` for one that has all of its GPU instance. */
static void render_name(const struct profile *profile, unsigned slices, char *name, size_t size)
{
    if (slices == profile->slices)
        snprintf(name, size, "MIG %s", profile->name);
    else
        snprintf(name, size, "MIG %uc.%s", slices, profile->name);
}

struct compute_profile_info {
    unsigned id, slices, count, sms, copy_engines, decoders, encoders, jpegs, ofas;
};

struct compute_profile_info_v2 {
    unsigned version;
    struct compute_profile_info info;
    char name[96];
};

static void fill_info(const struct opened *opened, const struct compute_profile *profile,
                      struct compute_profile_info *info)
{
    info->id = profile->id;
    info->slices = profile->slices;
    info->count = profile->count;
    info->sms = profile->sms;
    info->copy_engines = opened->profile.copy_engines;
    info->decoders = opened->profile.decoders;
    info->encoders = opened->profile.encoders;
    info->jpegs = opened->profile.jpegs;
    info->ofas = opened->profile.ofas;
}

EXPORT result nvmlGpuInstanceGetComputeInstanceProfileInfo(struct instance_handle *handle,
                                                           unsigned number, unsigned engines,
                                                           struct compute_profile_info *info)
{
    struct opened opened;
    struct compute_profile profile;
    result found;
    NEED(info && engines == 0);
    OPEN_INSTANCE(__func__, handle, &opened);
    found = get_compute_profile(&opened, number, &profile);
    if (!found)
        fill_info(&opened, &profile, info);
    return found;
}

EXPORT result nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct instance_handle *handle,
                                                            unsigned number, unsigned engines,
                                                            struct compute_profile_info_v2 *info)
{
    struct opened opened;
    struct compute_profile profile;
    result found;
    NEED(info && engines == 0);
    OPEN_INSTANCE(__func__, handle, &opened);
    found = get_compute_profile(&opened, number, &profile);
    if (found)
        return found;
    NEED(info->version == (sizeof *info | 2u << 24));
    fill_info(&opened, &profile, &info->info);
    memset(info->name, 0, sizeof info->name);
    render_name(&opened.profile, profile.slices, info->name, sizeof info->name);
    return SUCCESS;
}

EXPORT result nvmlGpuInstanceGetComputeInstancePossiblePlacements(struct instance_handle *handle,
                                                                  unsigned id,
                                                                  struct placement *placements,
                                                                  unsigned *count)
{
    struct opened opened;
    struct compute_profile profile;
    result found;
    NEED(count);
    OPEN_INSTANCE(__func__, handle, &opened);
    found = get_compute_profile(&opened, id, &profile);
    if (found)
        return found;
    *count = profile.count;
    if (placements)
        memcpy(placements, profile.places, profile.count * sizeof *placements);
    return SUCCESS;
}

/* ---- instances --------------------------------------------------------------------------- */

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
