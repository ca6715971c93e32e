/* NVML: what a GPU is, and its compute mode. */
#include "nvml_mig.h"

#include <sys/file.h>

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
    if (is_mig_device(device))
        return copy_mig_name(__func__, device, name, length);
    ENTER_DEVICE(device, &gpu);
    return copy_text(gpu.name, name, length);
}

EXPORT result nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length)
{
    struct gpu gpu;
    struct faults faults;
    if (is_mig_device(device))
        return copy_mig_uuid(__func__, device, uuid, length);
    ENTER_DEVICE(device, &gpu);
    read_faults(&faults, NULL);
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

EXPORT result nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    struct gpu gpu;
    ENTER_DEVICE(get_parent(device), &gpu);
    NEED(major && minor);
    *major = gpu.capability_major;
    *minor = gpu.capability_minor;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetArchitecture(struct device *device, unsigned *architecture)
{
    struct gpu gpu;
    ENTER_DEVICE(get_parent(device), &gpu);
    NEED(architecture);
    *architecture = gpu.architecture;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetComputeMode(struct device *device, unsigned *mode)
{
    struct gpu gpu;
    ENTER_DEVICE(get_parent(device), &gpu);
    NEED(mode);
    *mode = gpu.compute_mode;
    return SUCCESS;
}

EXPORT result nvmlDeviceSetComputeMode(struct device *device, unsigned mode)
{
    static const char *const keys[] = {"compute_mode", NULL};
    struct gpu gpu;
    int lock, done;
    ENTER_DEVICE(device, &gpu);
    NEED(mode <= 3);
    if (mode == 1) /* exclusive thread, gone since CUDA 8 */
        return NOT_SUPPORTED;
    if (geteuid() != 0)
        return NO_PERMISSION;
    lock = lock_node(node, LOCK_EX);
    if (lock < 0)
        return UNKNOWN;
    done = write_gpu_values(node, &gpu, keys, &mode);
    close(lock);
    return done ? SUCCESS : UNKNOWN;
}

/* Modes: 0 none, 1 passed through, 2 a vGPU in a guest. */
EXPORT result nvmlDeviceGetVirtualizationMode(struct device *device, unsigned *mode)
{
    struct gpu gpu;
    struct faults faults;
    ENTER_DEVICE(device, &gpu);
    NEED(mode);
    read_faults(&faults, NULL);
    *mode = faults.is_vgpu ? 2 : 0;
    return SUCCESS;
}
