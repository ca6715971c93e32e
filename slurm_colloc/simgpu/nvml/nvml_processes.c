/* NVML: gpu_memory, processes and utilization. */
#include "nvml_common.h"

/* ---- gpu_memory and processes ------------------------------------------------------------ */

#define MIB 1048576ULL

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static void read_memory(const struct gpu *gpu, struct memory_v2 *memory)
{
    struct process *found = calloc(MOST_PROCESSES, sizeof *found);
    unsigned long long used_mb = 0, room_mb = gpu->gpu_memory_mb - gpu->reserved_mb;
    int count = found ? read_processes(node, gpu->uuid, found, MOST_PROCESSES) : 0, number;
    for (number = 0; number < count; number++)
        used_mb += found[number].gpu_memory_mb;
    free(found);
    if (used_mb > room_mb)
        used_mb = room_mb;
    memory->total = gpu->gpu_memory_mb * MIB;
    memory->reserved = gpu->reserved_mb * MIB;
    memory->used = used_mb * MIB;
    memory->free = (room_mb - used_mb) * MIB;
}

EXPORT result nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    struct gpu gpu;
    struct memory_v2 seen;
    ENTER_DEVICE(device, &gpu);
    NEED(memory);
    read_memory(&gpu, &seen);
    memory->total = seen.total;
    memory->free = seen.free;
    memory->used = seen.used + seen.reserved;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(memory);
    if (memory->version != (sizeof *memory | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    read_memory(&gpu, memory);
    return SUCCESS;
}

struct process_info {
    unsigned pid;
    unsigned long long gpu_memory;
    unsigned gpu_instance, compute_instance;
};

/* Clients of MPS and everything else that computes, or the clients alone. */
static result list_processes(struct device *device, unsigned *count, struct process_info *infos,
                             int clients_only)
{
    struct gpu gpu;
    struct faults faults;
    struct process *found;
    unsigned room, listed = 0;
    int total, number;
    ENTER_DEVICE(device, &gpu);
    NEED(count && (infos || !*count));
    room = *count;
    found = calloc(MOST_PROCESSES, sizeof *found);
    if (!found)
        return MEMORY;
    read_faults(&faults);
    total = faults.lie_processes ? 0 : read_processes(node, gpu.uuid, found, MOST_PROCESSES);
    for (number = 0; number < total; number++) {
        if (clients_only && !found[number].is_client)
            continue;
        if (infos && listed < room) {
            infos[listed].pid = found[number].pid;
            infos[listed].gpu_memory = found[number].gpu_memory_mb * MIB;
            infos[listed].gpu_instance = infos[listed].compute_instance = 0xFFFFFFFFu;
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
    return list_processes(device, count, infos, 0);
}

EXPORT result nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                      struct process_info *infos)
{
    return list_processes(device, count, infos, 0);
}

EXPORT result nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                         struct process_info *infos)
{
    return list_processes(device, count, infos, 1);
}

EXPORT result nvmlDeviceGetMPSComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                         struct process_info *infos)
{
    return list_processes(device, count, infos, 1);
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
