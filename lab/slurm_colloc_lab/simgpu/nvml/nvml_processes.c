/* NVML: gpu_memory, processes and utilization. */
#include "nvml_mig.h"

/* ---- gpu_memory and processes ------------------------------------------------------------ */

#define MIB 1048576ULL

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

/* Of a whole GPU, or of the one GPU instance. */
static void read_memory(const struct gpu *gpu, unsigned gpu_instance, unsigned long long total_mb,
                        unsigned long long reserved_mb, struct memory_v2 *memory)
{
    struct process *found = calloc(MOST_PROCESSES, sizeof *found);
    unsigned long long used_mb = 0, room_mb = total_mb - reserved_mb;
    int count = found ? read_processes(node, gpu->uuid, found, MOST_PROCESSES) : 0, number;
    for (number = 0; number < count; number++)
        if (gpu_instance == INSTANCE_NONE || found[number].gpu_instance == gpu_instance)
            used_mb += found[number].gpu_memory_mb;
    free(found);
    if (used_mb > room_mb)
        used_mb = room_mb;
    memory->total = total_mb * MIB;
    memory->reserved = reserved_mb * MIB;
    memory->used = used_mb * MIB;
    memory->free = (room_mb - used_mb) * MIB;
}

/* nvml.h: "In MIG mode, if device handle is provided, the API returns aggregate information, only
 * if the caller has appropriate privileges." */
static int may_see_all(const struct gpu *gpu) { return !gpu->mig_mode || geteuid() == 0; }

static result get_memory(const char *call, struct device *device, struct memory_v2 *memory)
{
    struct gpu gpu;
    if (is_mig_device(device)) {
        struct mig_device mig;
        result ready = enter_mig_device(call, device, &mig);
        if (!ready)
            read_memory(&mig.gpu, mig.gpu_instance.id, mig.profile.gpu_memory_mb, 0, memory);
        return ready;
    }
    ENTER_DEVICE_OF(call, device, &gpu);
    if (!may_see_all(&gpu))
        return NO_PERMISSION;
    read_memory(&gpu, INSTANCE_NONE, gpu.gpu_memory_mb, gpu.reserved_mb, memory);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    struct memory_v2 seen;
    result got = get_memory(__func__, device, &seen);
    if (got)
        return got;
    NEED(memory);
    memory->total = seen.total;
    memory->free = seen.free;
    memory->used = seen.used + seen.reserved;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
    struct memory_v2 seen;
    result got = get_memory(__func__, device, &seen);
    if (got)
        return got;
    NEED(memory);
    if (memory->version != (sizeof *memory | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    seen.version = memory->version;
    *memory = seen;
    return SUCCESS;
}

struct process_info {
    unsigned pid;
    unsigned long long gpu_memory;
    unsigned gpu_instance, compute_instance;
};

/* Clients of MPS and everything else that computes, or the clients alone. */
static result list_processes(const char *call, struct device *device, unsigned *count,
                             struct process_info *infos, int clients_only)
{
    struct gpu gpu;
    struct mig_device mig;
    struct faults faults;
    int is_mig = is_mig_device(device);
    struct process *found;
    unsigned room, listed = 0;
    int total, number;
    if (is_mig) {
        result ready = enter_mig_device(call, device, &mig);
        if (ready)
            return ready;
        gpu = mig.gpu;
    } else {
        ENTER_DEVICE_OF(call, device, &gpu);
        if (!may_see_all(&gpu))
            return NO_PERMISSION;
    }
    NEED(count && (infos || !*count));
    room = *count;
    found = calloc(MOST_PROCESSES, sizeof *found);
    if (!found)
        return MEMORY;
    read_faults(&faults, NULL);
    total = faults.lie_processes ? 0 : read_processes(node, gpu.uuid, found, MOST_PROCESSES);
    for (number = 0; number < total; number++) {
        if (clients_only && !found[number].is_client)
            continue;
        if (is_mig && (found[number].gpu_instance != mig.gpu_instance.id ||
                       found[number].compute_instance != mig.compute_instance.id))
            continue;
        if (infos && listed < room) {
            infos[listed].pid = found[number].pid;
            infos[listed].gpu_memory = found[number].gpu_memory_mb * MIB;
            infos[listed].gpu_instance = found[number].gpu_instance;
            infos[listed].compute_instance = found[number].compute_instance;
        }
        listed++;
    }
    free(found);
    *count = listed;
    return listed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT result nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                      struct process_info *infos)
{
    return list_processes(__func__, device, count, infos, 0);
}

EXPORT result nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                      struct process_info *infos)
{
    return list_processes(__func__, device, count, infos, 0);
}

EXPORT result nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                         struct process_info *infos)
{
    return list_processes(__func__, device, count, infos, 1);
}

EXPORT result nvmlDeviceGetMPSComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                         struct process_info *infos)
{
    return list_processes(__func__, device, count, infos, 1);
}

EXPORT result nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count,
                                                       struct process_info *infos)
{
    struct gpu gpu;
    (void)infos;
    ENTER_DEVICE(device, &gpu);
    NEED(count);
    *count = 0;
    return SUCCESS;
}

/* ---- utilization ------------------------------------------------------------------------- */

double cap(double percent) { return percent < 0 ? 0 : percent > 100 ? 100 : percent; }

void read_now(const struct gpu *gpu, struct use *now)
{
    struct process *found = calloc(MOST_PROCESSES, sizeof *found);
    int count = found ? read_processes(node, gpu->uuid, found, MOST_PROCESSES) : 0, number;
    memset(now, 0, sizeof *now);
    for (number = 0; number < count; number++) {
        now->duty += found[number].now.duty;
        now->sm += found[number].now.sm;
        now->dram += found[number].now.dram;
        now->power += found[number].now.power;
    }
    free(found);
}

struct utilization {
    unsigned gpu, memory;
};

EXPORT result nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates)
{
    struct gpu gpu;
    struct use now;
    ENTER_DEVICE(device, &gpu);
    if (gpu.mig_mode) /* nvml.h: not supported where MIG is on */
        return NOT_SUPPORTED;
    NEED(rates);
    read_now(&gpu, &now);
    rates->gpu = (unsigned)(cap(now.duty) + 0.5);
    rates->memory = (unsigned)(cap(now.dram) + 0.5);
    return SUCCESS;
}

struct process_sample {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
};

/* Measured: what MPS clients use is all reported under their server's pid. */
EXPORT result nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *samples,
                                              unsigned *count, unsigned long long last_seen_us)
{
    struct gpu gpu;
    struct timespec now;
    struct process *found;
    unsigned long long now_us;
    unsigned pids[MOST_PROCESSES], room, used = 0, slot;
    double sm[MOST_PROCESSES], dram[MOST_PROCESSES];
    int total, number;
    ENTER_DEVICE(device, &gpu);
    if (gpu.mig_mode)
        return NOT_SUPPORTED;
    NEED(count);
    room = samples ? *count : 0;
    clock_gettime(CLOCK_REALTIME, &now);
    now_us = (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000;
    found = calloc(MOST_PROCESSES, sizeof *found);
    if (!found)
        return MEMORY;
    total = read_processes(node, gpu.uuid, found, MOST_PROCESSES);
    for (number = 0; number < total; number++) {
        unsigned pid = found[number].mps_server ? found[number].mps_server : found[number].pid;
        if (found[number].now.sm <= 0)
            continue;
        for (slot = 0; slot < used && pids[slot] != pid; slot++)
            ;
        if (slot == used) {
            pids[used] = pid;
            sm[used] = dram[used] = 0;
            used++;
        }
        sm[slot] += found[number].now.sm;
        dram[slot] += found[number].now.dram;
    }
    free(found);
    *count = used;
    if (!used || last_seen_us >= now_us)
        return NOT_FOUND;
    if (room < used)
        return INSUFFICIENT_SIZE;
    for (slot = 0; slot < used; slot++) {
        memset(&samples[slot], 0, sizeof *samples);
        samples[slot].pid = pids[slot];
        samples[slot].time_us = now_us;
        samples[slot].sm = (unsigned)(cap(sm[slot]) + 0.5);
        samples[slot].memory = (unsigned)(cap(dram[slot]) + 0.5);
    }
    return SUCCESS;
}
