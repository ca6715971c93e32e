/* NVML: GPU performance monitoring, energy, power, temperature and clocks. */
#include "nvml_mig.h"

#include <sys/file.h>

/* ---- GPU performance monitoring ---------------------------------------------------------- */

struct gpm_sample {
    int taken;
    double time_s;
    struct use sums;
};

struct gpm_metric {
    unsigned id;
    result outcome;
    double value;
    struct {
        char *short_name, *long_name, *unit;
    } info;
};

struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};

struct gpm_support {
    unsigned version, is_supported;
};

EXPORT result nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *support)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(support);
    if (support->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    support->is_supported = (unsigned)gpu.gpm;
    return SUCCESS;
}

EXPORT result nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    ENTER();
    NEED(sample);
    *sample = calloc(1, sizeof **sample);
    return *sample ? SUCCESS : MEMORY;
}

EXPORT result nvmlGpmSampleFree(struct gpm_sample *sample)
{
    ENTER();
    NEED(sample);
    free(sample);
    return SUCCESS;
}

EXPORT result nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(sample);
    if (!gpu.gpm)
        return NOT_SUPPORTED;
    read_sums(node, gpu.uuid, &sample->sums);
    sample->time_s = read_monotonic_s();
    sample->taken = 1;
    return SUCCESS;
}

/* What is written down are shares of the whole GPU; NVML gives shares of the instance. */
EXPORT result nvmlGpmMigSampleGet(struct device *device, unsigned gpu_instance,
                                  struct gpm_sample *sample)
{
    struct gpu gpu;
    struct profile_table table;
    struct instances instances;
    unsigned number;
    ENTER_DEVICE(device, &gpu);
    NEED(sample);
    if (!gpu.gpm || !read_profiles(&gpu, &table))
        return NOT_SUPPORTED;
    /* Measured with MIG off: an instance that is not there is an invalid argument. */
    read_instances(&gpu, &instances);
    for (number = 0; number < instances.gpu_count; number++) {
        const struct gpu_instance *one = &instances.gpu[number];
        const struct profile *profile = find_profile(&table, one->profile_id);
        double sms, slices;
        if (one->id != gpu_instance || !profile)
            continue;
        read_instance_sums(node, gpu.uuid, gpu_instance, &sample->sums);
        sms = (double)gpu.sm_count / profile->sms;
        slices = (double)table.memory_slices / one->placement.size;
        sample->sums.sm *= sms;
        sample->sums.tensor *= sms;
        sample->sums.occupancy *= sms;
        sample->sums.dram *= slices;
        sample->time_s = read_monotonic_s();
        sample->taken = 1;
        return SUCCESS;
    }
    return INVALID_ARGUMENT;
}

static void compute_metric(struct gpm_metric *metric, const struct use *mean)
{
    metric->outcome = SUCCESS;
    metric->value = 0.0;
    memset(&metric->info, 0, sizeof metric->info);
    switch (metric->id) {
    case 1: /* graphics or compute active */
        metric->value = cap(mean->duty);
        break;
    case 2: /* SM active */
        metric->value = cap(mean->sm);
        break;
    case 3: /* SM occupancy */
        metric->value = cap(mean->occupancy);
        break;
    case 5: /* any tensor */
    case 7: /* HMMA */
        metric->value = cap(mean->tensor);
        break;
    case 10: /* DRAM bandwidth */
        metric->value = cap(mean->dram);
        break;
    case 20: /* PCIe TX, MiB/s: traffic over PCIe is not simulated */
    case 21: /* PCIe RX */
        break;
    case 60: /* NVLink RX over all links, MiB/s */
    case 61: /* NVLink TX: what GPUs of one process exchange goes both ways */
        metric->value = mean->nvlink;
        break;
    case 170: /* GR0 context switches: measured, valid and 0 */
    case 171:
    case 172:
    case 173:
    case 174:
        break;
    case 248: /* cycle counters: measured, invalid argument */
    case 249:
        metric->outcome = INVALID_ARGUMENT;
        break;
    default:
        metric->outcome = NOT_SUPPORTED;
    }
}

EXPORT result nvmlGpmMetricsGet(struct gpm_metrics *wanted)
{
    struct use mean;
    double seconds;
    unsigned number;
    ENTER();
    NEED(wanted);
    if (wanted->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    NEED(wanted->first && wanted->second && wanted->first->taken && wanted->second->taken);
    seconds = wanted->second->time_s - wanted->first->time_s;
    NEED(seconds > 0);
    mean.duty = (wanted->second->sums.duty - wanted->first->sums.duty) / seconds;
    mean.sm = (wanted->second->sums.sm - wanted->first->sums.sm) / seconds;
    mean.dram = (wanted->second->sums.dram - wanted->first->sums.dram) / seconds;
    mean.tensor = (wanted->second->sums.tensor - wanted->first->sums.tensor) / seconds;
    mean.occupancy = (wanted->second->sums.occupancy - wanted->first->sums.occupancy) / seconds;
    mean.nvlink = (wanted->second->sums.nvlink - wanted->first->sums.nvlink) / seconds;
    for (number = 0; number < wanted->count; number++)
        compute_metric(&wanted->metrics[number], &mean);
    return SUCCESS;
}

/* ---- power, temperature, clocks ---------------------------------------------------------- */

static unsigned read_power_mw(const struct gpu *gpu)
{
    struct use now;
    double power;
    read_now(gpu, &now);
    power = gpu->idle_power_mw + now.power;
    return power > gpu->power_limit_mw ? gpu->power_limit_mw : (unsigned)power;
}

EXPORT result nvmlDeviceGetTotalEnergyConsumption(struct device *device, unsigned long long *energy)
{
    struct gpu gpu;
    struct use sums;
    char value[64];
    double idle_s;
    ENTER_DEVICE(device, &gpu);
    NEED(energy);
    read_sums(node, gpu.uuid, &sums);
    /* Since the driver was loaded: when the simulation was made, or the machine's last start. */
    idle_s = read_boot_s();
    if (find_driver_value("born_s", value, sizeof value) && atoll(value) <= (long long)idle_s)
        idle_s -= (double)atoll(value);
    *energy = (unsigned long long)(idle_s * gpu.idle_power_mw + sums.power);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetPowerUsage(struct device *device, unsigned *power)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(power);
    *power = read_power_mw(&gpu);
    return SUCCESS;
}

static result get_power_limit(const char *call, struct device *device, unsigned *limit)
{
    struct gpu gpu;
    ENTER_DEVICE_OF(call, device, &gpu);
    NEED(limit);
    *limit = gpu.power_limit_mw;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned *limit)
{
    return get_power_limit(__func__, device, limit);
}

EXPORT result nvmlDeviceGetPowerManagementLimit(struct device *device, unsigned *limit)
{
    return get_power_limit(__func__, device, limit);
}

EXPORT result nvmlDeviceGetPowerManagementDefaultLimit(struct device *device, unsigned *limit)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(limit);
    *limit = gpu.default_power_limit_mw;
    return SUCCESS;
}

/* In mW; root's, and within the card's bounds. */
EXPORT result nvmlDeviceSetPowerManagementLimit(struct device *device, unsigned limit)
{
    static const char *const keys[] = {"power_limit_mw", NULL};
    struct gpu gpu;
    int lock, done;
    ENTER_DEVICE(device, &gpu);
    if (geteuid() != 0)
        return NO_PERMISSION;
    NEED(limit >= gpu.min_power_limit_mw && limit <= gpu.default_power_limit_mw);
    lock = lock_node(node, LOCK_EX);
    if (lock < 0)
        return UNKNOWN;
    done = write_gpu_values(node, &gpu, keys, &limit);
    close(lock);
    return done ? SUCCESS : UNKNOWN;
}

EXPORT result nvmlDeviceGetPersistenceMode(struct device *device, unsigned *mode)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(mode);
    *mode = gpu.persistence_mode;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetPowerManagementLimitConstraints(struct device *device, unsigned *low,
                                                           unsigned *high)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(low && high);
    *low = gpu.min_power_limit_mw;
    *high = gpu.default_power_limit_mw;
    return SUCCESS;
}

/* From 30 degrees at rest to 70 at the power limit. */
static unsigned read_temperature(const struct gpu *gpu)
{
    return gpu->power_limit_mw
               ? 30 + (unsigned)(40ULL * read_power_mw(gpu) / gpu->power_limit_mw)
               : 30;
}

EXPORT result nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *degrees)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(sensor == 0 && degrees);
    *degrees = read_temperature(&gpu);
    return SUCCESS;
}

struct temperature {
    unsigned version, sensor;
    int degrees;
};

EXPORT result nvmlDeviceGetTemperatureV(struct device *device, struct temperature *temperature)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(temperature);
    if (temperature->version != (sizeof *temperature | 1u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    NEED(temperature->sensor == 0);
    temperature->degrees = (int)read_temperature(&gpu);
    return SUCCESS;
}

#define IDLE_CLOCK_MHZ 345

/* Types: 0 graphics, 1 SM, 2 memory, 3 video. */
static result get_clock(const char *call, struct device *device, unsigned type, unsigned *clock,
                        int highest)
{
    struct gpu gpu;
    struct use now;
    ENTER_DEVICE_OF(call, device, &gpu);
    NEED(clock && type <= 3);
    read_now(&gpu, &now);
    if (type == 2)
        *clock = gpu.memory_clock_mhz;
    else
        *clock = highest || now.duty > 0 ? gpu.sm_clock_mhz : IDLE_CLOCK_MHZ;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetClockInfo(struct device *device, unsigned type, unsigned *clock)
{
    return get_clock(__func__, device, type, clock, 0);
}

EXPORT result nvmlDeviceGetMaxClockInfo(struct device *device, unsigned type, unsigned *clock)
{
    return get_clock(__func__, device, type, clock, 1);
}

#define REASON_IDLE 0x1ULL
#define REASON_POWER_CAP 0x4ULL

EXPORT result nvmlDeviceGetCurrentClocksEventReasons(struct device *device,
                                                     unsigned long long *reasons)
{
    struct gpu gpu;
    struct use now;
    ENTER_DEVICE(device, &gpu);
    NEED(reasons);
    read_now(&gpu, &now);
    *reasons = now.duty > 0 ? 0 : REASON_IDLE;
    if (now.power + gpu.idle_power_mw >= gpu.power_limit_mw)
        *reasons |= REASON_POWER_CAP;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device,
                                                        unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

EXPORT result nvmlDeviceGetSupportedClocksEventReasons(struct device *device,
                                                       unsigned long long *reasons)
{
    struct gpu gpu;
    ENTER_DEVICE(device, &gpu);
    NEED(reasons);
    *reasons = REASON_IDLE | REASON_POWER_CAP;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetSupportedClocksThrottleReasons(struct device *device,
                                                          unsigned long long *reasons)
{
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}
