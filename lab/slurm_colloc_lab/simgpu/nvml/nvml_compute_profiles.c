/* NVML: which compute instances a GPU instance may be divided into. */
#include "nvml_mig.h"

/* NVML's numbers and ids of compute instance profiles are the same. */
static const unsigned profile_slices[] = {1, 2, 3, 4, 7};
#define COMPUTE_PROFILES (sizeof profile_slices / sizeof *profile_slices)
/* The driver knows eight; the GPUs at hand have none of the rest. */
#define KNOWN_PROFILES 8

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

result open_instance(const char *call, const struct instance_handle *handle, struct opened *opened)
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

result get_compute_profile(const struct opened *opened, unsigned id,
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
