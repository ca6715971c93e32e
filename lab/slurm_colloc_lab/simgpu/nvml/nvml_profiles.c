/* NVML: the kinds of GPU instances that a GPU has. */
#include "nvml_mig.h"

#include <stddef.h>

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

#define PROFILE_INFO_V2 (sizeof(struct profile_info_v2) | 2u << 24)

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

static void fill(const struct profile *profile, struct profile_info_v2 *info)
{
    memset(info, 0, sizeof *info);
    info->version = PROFILE_INFO_V2;
    info->id = profile->id;
    info->slices = profile->slices;
    info->count = profile->most;
    info->sms = profile->sms;
    info->copy_engines = profile->copy_engines;
    info->decoders = profile->decoders;
    info->encoders = profile->encoders;
    info->jpegs = profile->jpegs;
    info->ofas = profile->ofas;
    info->gpu_memory_mb = profile->gpu_memory_mb;
    snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
}

EXPORT result nvmlDeviceGetGpuInstanceProfileInfo(struct device *device, unsigned number,
                                                  struct profile_info *info)
{
    struct gpu gpu;
    struct profile profile;
    struct profile_info_v2 filled;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(info);
    found = find_by_number(&gpu, number, &profile);
    if (found)
        return found;
    fill(&profile, &filled);
    /* The same but for version and name. */
    memcpy(info, &filled.id, offsetof(struct profile_info, gpu_memory_mb));
    info->gpu_memory_mb = filled.gpu_memory_mb;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned number,
                                                   struct profile_info_v2 *info)
{
    struct gpu gpu;
    struct profile profile;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(info);
    found = find_by_number(&gpu, number, &profile);
    if (found)
        return found;
    /* Measured: not a version mismatch. */
    NEED(info->version == PROFILE_INFO_V2);
    fill(&profile, info);
    return SUCCESS;
}

/* Measured: an id that only other GPUs have is not supported, any other an invalid argument. */
static const unsigned known_ids[] = {0, 5, 6, 9, 14, 15, 19, 20, 21};

result get_profile(const struct gpu *gpu, unsigned id, struct profile_table *table,
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
                                                       struct profile_info_v2 *info)
{
    struct gpu gpu;
    struct profile_table table;
    struct profile profile;
    result found;
    ENTER_DEVICE(device, &gpu);
    NEED(info);
    found = get_profile(&gpu, id, &table, &profile);
    if (found)
        return found == NOT_SUPPORTED && table.count ? NOT_FOUND : found;
    NEED(info->version == PROFILE_INFO_V2);
    fill(&profile, info);
    return SUCCESS;
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
