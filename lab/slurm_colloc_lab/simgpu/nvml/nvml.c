/*
 * A simulated libnvidia-ml.so.1: NVIDIA's management library over files (state.py, records.py).
 *
 * Names, structures, versions and error numbers are those of NVML's public API reference (nvml.h,
 * CUDA 13). What a call answers follows measurements of an H200 with driver 580.159.04
 * (docs/simulated-gpu.md). A function that is not here is one that this driver does not have:
 * programs get "function not found", as with a driver that is too old.
 */
#include "nvml_common.h"

#include <pthread.h>

struct device devices[MOST_GPUS];
char node[PATH_MAX];
unsigned device_count;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;

/* ---- entering ---------------------------------------------------------------------------- */

static void wait_s(double seconds)
{
    double end = read_monotonic_s() + seconds;
    struct timespec pause = {0, 20000000};
    while (read_monotonic_s() < end)
        nanosleep(&pause, NULL);
}

result enter(const char *call, struct faults *faults)
{
    read_faults(faults, call);
    if (faults->hang_s > 0 || faults->slow_s > 0)
        wait_s(faults->hang_s + faults->slow_s);
    while (faults->hangs)
        wait_s(1.0);
    return users ? (result)faults->code : UNINITIALIZED;
}

result enter_device(const char *call, const struct device *device, struct gpu *gpu)
{
    struct faults faults;
    result ready = enter(call, &faults);
    if (ready)
        return ready;
    if (is_mig_device(device))
        return NOT_SUPPORTED;
    if (device < devices || device >= devices + device_count)
        return INVALID_ARGUMENT;
    if (!read_gpu(node, device->nvml_index, gpu))
        return UNKNOWN;
    if (faults.loses)
        lose_gpu(gpu->uuid);
    return faults.loses || faults.lost || !strcasecmp(faults.lost_uuid, gpu->uuid) ? GPU_IS_LOST
                                                                                  : SUCCESS;
}

result copy_text(const char *text, char *buffer, unsigned size)
{
    if (!buffer)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

/* ---- the library ------------------------------------------------------------------------- */

static result find_devices(void)
{
    int number;
    if (!find_node(node, sizeof node))
        return DRIVER_NOT_LOADED;
    device_count = 0;
    for (number = 0; number < MOST_GPUS; number++) {
        struct gpu gpu;
        if (read_gpu(node, number, &gpu) && is_permitted(&gpu))
            devices[device_count++].nvml_index = number;
    }
    return SUCCESS;
}

EXPORT result nvmlInitWithFlags(unsigned flags)
{
    struct faults faults;
    result done = SUCCESS;
    (void)flags;
    enter(__func__, &faults);
    if (faults.absent)
        return LIBRARY_NOT_FOUND;
    if (faults.no_driver)
        return DRIVER_NOT_LOADED;
    if (faults.code)
        return (result)faults.code;
    pthread_mutex_lock(&guard);
    if (!users)
        done = find_devices();
    if (!done)
        users++;
    pthread_mutex_unlock(&guard);
    return done;
}

EXPORT result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT result nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT result nvmlShutdown(void)
{
    result done = UNINITIALIZED;
    pthread_mutex_lock(&guard);
    if (users) {
        users--;
        done = SUCCESS;
    }
    pthread_mutex_unlock(&guard);
    return done;
}

EXPORT const char *nvmlErrorString(result code)
{
    static const struct {
        int code;
        const char *text;
    } texts[] = {
        {0, "Success"},
        {1, "Uninitialized"},
        {2, "Invalid Argument"},
        {3, "Not Supported"},
        {4, "Insufficient Permissions"},
        {5, "Already Initialized"},
        {6, "Not Found"},
        {7, "Insufficient Size"},
        {8, "Insufficient External Power"},
        {9, "Driver Not Loaded"},
        {10, "Timeout"},
        {11, "Interrupt Request Issue"},
        {12, "NVML Shared Library Not Found"},
        {13, "Function Not Found"},
        {14, "Corrupted infoROM"},
        {15, "GPU is lost"},
        {16, "GPU requires reset"},
        {17, "GPU access blocked by the operating system"},
        {18, "Driver/library version mismatch"},
        {19, "In use by another client"},
        {20, "Insufficient Memory"},
        {21, "No data"},
        {23, "Insufficient Resources"},
        {25, "Argument version mismatch"},
        {28, "GPU not found"},
    };
    size_t number;
    for (number = 0; number < sizeof texts / sizeof *texts; number++)
        if (texts[number].code == (int)code)
            return texts[number].text;
    return "Unknown Error";
}

int find_driver_value(const char *key, char *value, size_t size)
{
    char root[PATH_MAX], path[PATH_MAX + 16], text[FILE_BYTES];
    if (!find_root(root, sizeof root))
        return 0;
    snprintf(path, sizeof path, "%s/driver", root);
    return read_text(path, text, sizeof text) > 0 && find_value(text, key, value, size);
}

static result copy_driver_value(const char *key, char *buffer, unsigned size)
{
    char value[64];
    if (!find_driver_value(key, value, sizeof value))
        return UNKNOWN;
    return copy_text(value, buffer, size);
}

EXPORT result nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ENTER();
    return copy_driver_value("driver_version", version, length);
}

EXPORT result nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ENTER();
    return copy_driver_value("nvml_version", version, length);
}

EXPORT result nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    char value[64];
    ENTER();
    NEED(version);
    if (!find_driver_value("cuda_version", value, sizeof value))
        return UNKNOWN;
    *version = atoi(value);
    return SUCCESS;
}

EXPORT result nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* ---- handles ----------------------------------------------------------------------------- */

EXPORT result nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER();
    NEED(count);
    *count = device_count;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT result nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    struct gpu gpu;
    ENTER();
    NEED(device && index < device_count);
    ENTER_DEVICE_OF(NULL, &devices[index], &gpu);
    *device = &devices[index];
    return SUCCESS;
}

EXPORT result nvmlDeviceGetHandleByIndex(unsigned index, struct device **device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT result nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
    struct gpu gpu;
    unsigned number;
    ENTER();
    NEED(uuid && device);
    if (!strncasecmp(uuid, "MIG-", 4))
        return find_mig_device(uuid, device);
    for (number = 0; number < device_count; number++) {
        if (read_gpu(node, devices[number].nvml_index, &gpu) && !strcasecmp(gpu.uuid, uuid)) {
            ENTER_DEVICE_OF(NULL, &devices[number], &gpu);
            *device = &devices[number];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int parse_pci(const char *text, struct pci_address *address)
{
    memset(address, 0, sizeof *address);
    if (sscanf(text, "%x:%x:%x", &address->domain, &address->bus, &address->device) == 3)
        return 1;
    address->domain = 0;
    return sscanf(text, "%x:%x", &address->bus, &address->device) == 2;
}

EXPORT result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct device **device)
{
    struct pci_address wanted, own;
    struct gpu gpu;
    unsigned number;
    ENTER();
    NEED(bus_id && device && parse_pci(bus_id, &wanted));
    for (number = 0; number < device_count; number++) {
        if (!read_gpu(node, devices[number].nvml_index, &gpu) || !parse_pci(gpu.pci_bus_id, &own))
            continue;
        if (!memcmp(&wanted, &own, sizeof own)) {
            ENTER_DEVICE_OF(NULL, &devices[number], &gpu);
            *device = &devices[number];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

EXPORT result nvmlDeviceGetHandleByPciBusId(const char *bus_id, struct device **device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
