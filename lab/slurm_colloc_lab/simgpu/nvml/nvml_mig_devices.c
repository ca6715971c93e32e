/* NVML: MIG devices, which are compute instances seen as devices. */
#include "nvml_mig.h"

struct device *get_parent(struct device *device)
{
    return is_mig_device(device) ? device->parent : device;
}

EXPORT result nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *is_mig)
{
    struct gpu gpu;
    ENTER_DEVICE(get_parent(device), &gpu);
    NEED(is_mig);
    *is_mig = (unsigned)is_mig_device(device);
    return SUCCESS;
}

/* nvml.h: "Returns zero if MIG is not supported or enabled". */
EXPORT result nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    struct gpu gpu;
    struct profile_table table;
    ENTER_DEVICE(device, &gpu);
    NEED(count);
    *count = gpu.mig_mode && read_profiles(&gpu, &table) ? table.slices : 0;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                                  struct device **found)
{
    struct gpu gpu;
    struct profile_table table;
    struct instances instances;
    unsigned number;
    ENTER_DEVICE(device, &gpu);
    NEED(found);
    if (!gpu.mig_mode || !read_profiles(&gpu, &table))
        return NOT_FOUND;
    read_instances(&gpu, &instances);
    for (number = 0; number < instances.compute_count; number++) {
        if (instances.compute[number].mig_index == index) {
            *found = get_mig_device(device, instances.compute[number].serial);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* `MIG-` and a UUID, or as before driver 470: MIG-GPU-UUID/GI/CI. */
static int is_named(const struct gpu *gpu, const struct compute_instance *part, const char *uuid)
{
    char old[160];
    snprintf(old, sizeof old, "MIG-%s/%u/%u", gpu->uuid, part->gpu_instance, part->id);
    return !strcasecmp(part->uuid, uuid) || !strcasecmp(old, uuid);
}

result find_mig_device(const char *uuid, struct device **found)
{
    unsigned number, part;
    for (number = 0; number < device_count; number++) {
        struct gpu gpu;
        struct instances instances;
        if (!read_gpu(node, devices[number].nvml_index, &gpu) || !gpu.mig_mode)
            continue;
        read_instances(&gpu, &instances);
        for (part = 0; part < instances.compute_count; part++) {
            if (is_named(&gpu, &instances.compute[part], uuid)) {
                ENTER_DEVICE_OF(NULL, &devices[number], &gpu);
                *found = get_mig_device(&devices[number], instances.compute[part].serial);
                return SUCCESS;
            }
        }
    }
    return NOT_FOUND;
}

EXPORT result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *device,
                                                           struct device **parent)
{
    struct mig_device mig;
    ENTER_MIG_DEVICE(device, &mig);
    NEED(parent);
    *parent = device->parent;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id)
{
    struct mig_device mig;
    ENTER_MIG_DEVICE(device, &mig);
    NEED(id);
    *id = mig.gpu_instance.id;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id)
{
    struct mig_device mig;
    ENTER_MIG_DEVICE(device, &mig);
    NEED(id);
    *id = mig.compute_instance.id;
    return SUCCESS;
}

struct attributes {
    unsigned sms, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long gpu_memory_mb;
};

/* nvml.h: "This API currently only supports MIG device handles". */
EXPORT result nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *attributes)
{
    struct mig_device mig;
    struct gpu gpu;
    if (!is_mig_device(device)) {
        ENTER_DEVICE(device, &gpu);
        NEED(attributes);
        return NOT_SUPPORTED;
    }
    ENTER_MIG_DEVICE(device, &mig);
    NEED(attributes);
    attributes->sms = mig.sms;
    attributes->copy_engines = mig.profile.copy_engines;
    attributes->decoders = mig.profile.decoders;
    attributes->encoders = mig.profile.encoders;
    attributes->jpegs = mig.profile.jpegs;
    attributes->ofas = mig.profile.ofas;
    attributes->gpu_instance_slices = mig.profile.slices;
    attributes->compute_instance_slices = mig.compute_instance.placement.size;
    attributes->gpu_memory_mb = mig.profile.gpu_memory_mb;
    return SUCCESS;
}

result copy_mig_name(const char *call, const struct device *device, char *name, unsigned length)
{
    struct mig_device mig;
    char text[192], part[16] = "";
    result ready = enter_mig_device(call, device, &mig);
    if (ready)
        return ready;
    if (mig.compute_instance.placement.size != mig.profile.slices)
        snprintf(part, sizeof part, "%uc.", mig.compute_instance.placement.size);
    snprintf(text, sizeof text, "%s MIG %s%s", mig.gpu.name, part, mig.profile.name);
    return copy_text(text, name, length);
}

result copy_mig_uuid(const char *call, const struct device *device, char *uuid, unsigned length)
{
    struct mig_device mig;
    result ready = enter_mig_device(call, device, &mig);
    return ready ? ready : copy_text(mig.compute_instance.uuid, uuid, length);
}
