/* The instances of a partitioned GPU; simulated_instances.py describes the files. */
#ifndef NVML_MIG_H
#define NVML_MIG_H

#include "nvml_common.h"

#define MOST_PROFILES 16
#define MOST_PLACEMENTS 8
#define MOST_INSTANCES 8
#define MOST_MIG_DEVICES 8

struct placement {
    unsigned start, size;
};

/* A kind of GPU instance: SIM/nodes/NODE/profiles/N has a line for each. */
struct profile {
    unsigned nvml_profile, id, slices, memory_slices, most, sms;
    unsigned copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long gpu_memory_mb;
    int has_media;
    char name[48];
    unsigned placement_count;
    struct placement placements[MOST_PLACEMENTS];
};

struct profile_table {
    unsigned slices, memory_slices;
    /* The driver knows no profile from this number on. */
    unsigned known_profiles;
    unsigned count;
    struct profile profiles[MOST_PROFILES];
};

struct gpu_instance {
    unsigned id, profile_id;
    struct placement placement;
    unsigned long long serial;
};

struct compute_instance {
    unsigned gpu_instance, id, profile_id;
    struct placement placement;
    /* Under which number its MIG device is found. */
    unsigned mig_index;
    unsigned long long serial;
    char uuid[64];
};

/* SIM/nodes/NODE/instances/N; without the file there are none. */
struct instances {
    unsigned long long made;
    unsigned gpu_count, compute_count;
    struct gpu_instance gpu[MOST_INSTANCES];
    struct compute_instance compute[MOST_MIG_DEVICES];
};

/* What an nvmlGpuInstance_t and an nvmlComputeInstance_t point to. */
struct instance_handle {
    struct device *device;
    unsigned long long serial;
};

/* A MIG device with all that it is part of. */
struct mig_device {
    struct gpu gpu;
    struct profile profile;
    struct gpu_instance gpu_instance;
    struct compute_instance compute_instance;
    unsigned sms;
};

int read_profiles(const struct gpu *gpu, struct profile_table *table);
void read_instances(const struct gpu *gpu, struct instances *instances);
int write_instances(const struct gpu *gpu, const struct instances *instances);

/* The profile with that id and its table, or NVML's error; `found` is a copy. */
result get_profile(const struct gpu *gpu, unsigned id, struct profile_table *table,
                   struct profile *found);
const struct profile *find_profile(const struct profile_table *table, unsigned id);
struct gpu_instance *find_gpu_instance(struct instances *instances, unsigned long long serial);
struct compute_instance *find_compute_instance(struct instances *instances,
                                               unsigned long long serial);

/* Handles stay valid memory for good; the same instance has the same one. */
struct instance_handle *get_handle(struct device *device, unsigned long long serial);
int is_handle(const struct instance_handle *handle);

int overlaps(struct placement one, struct placement other);

/* Whether living processes are on a GPU, one of its instances or one compute instance of it. */
int is_busy(const struct gpu *gpu, unsigned gpu_instance, unsigned compute_instance);

/* The time that a step takes on a real GPU, where that was asked for. */
void take_time(double seconds);

/* The multiprocessors of so many compute slices of an instance. */
unsigned count_sms(const struct profile_table *table, const struct profile *profile,
                   unsigned slices);

/* What every call does first on a MIG device; NOT_FOUND where that has gone. */
result enter_mig_device(const char *call, const struct device *device, struct mig_device *found);

#define ENTER_MIG_DEVICE(device, found)                                                            \
    do {                                                                                           \
        result ready_ = enter_mig_device(__func__, device, found);                                 \
        if (ready_)                                                                                \
            return ready_;                                                                         \
    } while (0)

/* What belongs to a GPU instance's handle. */
struct opened {
    struct gpu gpu;
    struct profile_table table;
    struct profile profile;
    struct instances instances;
    struct gpu_instance one;
};

/* What every call does first with a GPU instance's handle. */
result open_instance(const char *call, const struct instance_handle *handle,
                     struct opened *opened);

#define OPEN_INSTANCE(call, handle, opened)                                                        \
    do {                                                                                           \
        result opened_ = open_instance(call, handle, opened);                                      \
        if (opened_)                                                                               \
            return opened_;                                                                        \
    } while (0)

/* A kind of compute instance, of one GPU instance, with where those may lie. */
struct compute_profile {
    unsigned id, slices, count, sms;
    struct placement places[MOST_PLACEMENTS];
};

result get_compute_profile(const struct opened *opened, unsigned id,
                           struct compute_profile *found);

result copy_mig_name(const char *call, const struct device *device, char *name, unsigned length);
result copy_mig_uuid(const char *call, const struct device *device, char *uuid, unsigned length);

/* The GPU of a MIG device, or the GPU itself. */
struct device *get_parent(struct device *device);

#endif
