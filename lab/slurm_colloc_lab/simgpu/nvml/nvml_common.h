/* What the parts of the simulated NVML share. */
#ifndef NVML_COMMON_H
#define NVML_COMMON_H

#define _GNU_SOURCE
#include "nvml_state.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    LIBRARY_NOT_FOUND = 12,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    MEMORY = 20,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
} result;

/*
 * What a handle points to: a GPU that this process could open when it initialised NVML, or a MIG
 * device of it, which is named by what its compute instance got at its creation.
 */
struct device {
    int nvml_index;
    struct device *parent;
    unsigned long long serial;
};

struct pci_address {
    unsigned domain, bus, device;
};

extern struct device devices[MOST_GPUS];
extern char node[PATH_MAX];

/* What every call does first. */
result enter(const char *call, struct faults *faults);
result enter_device(const char *call, const struct device *device, struct gpu *gpu);

/* MIG devices: by UUID, by what their compute instance got at its creation, and whether one is. */
result find_mig_device(const char *uuid, struct device **found);
struct device *get_mig_device(struct device *parent, unsigned long long serial);
int is_mig_device(const struct device *device);

/* The GPUs, by which this process knows them. */
extern unsigned device_count;

result copy_text(const char *text, char *buffer, unsigned size);
int parse_pci(const char *text, struct pci_address *address);

/* SIM/driver: driver_version, nvml_version, cuda_version (13000 for 13.0) and born_s. */
int find_driver_value(const char *key, char *value, size_t size);

/* What all processes of a GPU use now, and a percentage within its limits. */
void read_now(const struct gpu *gpu, struct use *now);
double cap(double percent);

#define ENTER()                                                                                    \
    do {                                                                                           \
        struct faults faults_;                                                                     \
        result ready_ = enter(__func__, &faults_);                                                           \
        if (ready_)                                                                                \
            return ready_;                                                                         \
    } while (0)

#define ENTER_DEVICE(device, gpu) ENTER_DEVICE_OF(__func__, device, gpu)

/* In what several calls have in common, with the call's name; NULL after ENTER. */
#define ENTER_DEVICE_OF(call, device, gpu)                                                         \
    do {                                                                                           \
        result ready_ = enter_device(call, device, gpu);                                                 \
        if (ready_)                                                                                \
            return ready_;                                                                         \
    } while (0)

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return INVALID_ARGUMENT;                                                               \
    } while (0)

#endif
