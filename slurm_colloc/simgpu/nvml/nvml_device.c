/* NVML: what a GPU is, and its compute mode. */
#include "nvml_common.h"

EXPORT result nvmlDeviceGetIndex(struct device *device, unsigned *index)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(index);
    *index = (unsigned)(device - devices);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetName(struct device *device, char *name, unsigned length)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    return copy_text(gpu.name, name, length);
}

EXPORT result nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length)
{
    struct gpu gpu;
    struct faults faults;
    ENTER_DEVICE(device, &gpu);
    read_faults(&faults);
    if (faults.lie_uuid) {
        char *last = gpu.uuid + strlen(gpu.uuid) - 1;
        *last = *last == '0' ? '1' : '0';
    }
    return copy_text(gpu.uuid, uuid, length);
}

EXPORT result nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(minor);
    *minor = gpu.minor;
    return SUCCESS;
}

struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

EXPORT result nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
    struct gpu gpu;
    struct pci_address address;
    ENTER_DEVICE(device, &gpu);
    NEED(info);
    memset(info, 0, sizeof *info);
    if (!parse_pci(gpu.pci_bus_id, &address))
        return UNKNOWN;
    info->domain = address.domain;
    info->bus = address.bus;
    info->device = address.device;
    info->device_id = 0x10DE; /* NVIDIA; which product is not simulated */
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", address.domain & 0xFFFFFFFFu,
             address.bus & 0xFFu, address.device & 0xFFu);
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%04X:%02X:%02X.0",
             address.domain & 0xFFFFu, address.bus & 0xFFu, address.device & 0xFFu);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetPciInfo_v2(struct device *device, struct pci_info *info)
{
    return nvmlDeviceGetPciInfo_v3(device, info);
}

EXPORT result nvmlDeviceGetNumGpuCores(struct device *device, unsigned *count)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(count);
    *count = gpu.core_count;
    return SUCCESS;
}

/* nvml.h: "This API currently only supports MIG device handles". */
EXPORT result nvmlDeviceGetAttributes_v2(struct device *device, void *attributes)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(attributes);
    return NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(major && minor);
    *major = gpu.capability_major;
    *minor = gpu.capability_minor;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetArchitecture(struct device *device, unsigned *architecture)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(architecture);
    *architecture = gpu.architecture;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(current && pending);
    if (!gpu.mig)
        return NOT_SUPPORTED;
    *current = *pending = 0;
    return SUCCESS;
}

/* nvml.h: "Returns zero if MIG is not supported or enabled". */
EXPORT result nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(count);
    *count = 0;
    return SUCCESS;
}

EXPORT result nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *is_mig)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(is_mig);
    *is_mig = 0;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetComputeMode(struct device *device, unsigned *mode)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(mode);
    *mode = gpu.compute_mode;
    return SUCCESS;
}

EXPORT result nvmlDeviceSetComputeMode(struct device *device, unsigned mode)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(mode <= 3);
    if (mode == 1) /* exclusive thread, gone since CUDA 8 */
        return NOT_SUPPORTED;
    if (geteuid() != 0)
        return NO_PERMISSION;
    return write_compute_mode(node, &gpu, mode) ? SUCCESS : UNKNOWN;
}
