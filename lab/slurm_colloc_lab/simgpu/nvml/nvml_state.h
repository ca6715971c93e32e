/* The state of simulated GPUs as nvml.c reads it; state.py and records.py describe the files. */
#ifndef NVML_STATE_H
#define NVML_STATE_H

#include <stddef.h>
#include <sys/types.h>

#define MOST_GPUS 64
#define MOST_PROCESSES 512
#define FILE_BYTES 4096
#define TOTALS_BYTES 65536
#define INSTANCE_NONE 0xFFFFFFFFu

struct gpu {
    int nvml_index;
    char uuid[96];
    char name[96];
    char pci_bus_id[32];
    char device[1024];
    unsigned minor;
    unsigned long long gpu_memory_mb;
    unsigned long long reserved_mb;
    unsigned sm_count;
    unsigned core_count;
    int capability_major;
    int capability_minor;
    unsigned architecture;
    unsigned compute_mode;
    unsigned idle_power_mw;
    unsigned power_limit_mw;
    unsigned default_power_limit_mw;
    unsigned persistence_mode;
    unsigned min_power_limit_mw;
    unsigned sm_clock_mhz;
    unsigned memory_clock_mhz;
    int mig;
    unsigned mig_mode;
    unsigned mig_pending;
    int gpm;
};

/* What a process uses now, or what all of a GPU's processes have used. Per cent; mW; mJ; MiB/s
 * and MiB over NVLink. */
struct use {
    double duty;
    double sm;
    double dram;
    double tensor;
    double occupancy;
    double nvlink;
    double power;
};

struct process {
    unsigned pid;
    int is_client;
    unsigned mps_server;
    /* The compute instance that it is on; INSTANCE_NONE on a whole GPU. */
    unsigned gpu_instance;
    unsigned compute_instance;
    unsigned long long gpu_memory_mb;
    struct use now;
};

struct faults {
    int absent;
    int no_driver;
    int lie_uuid;
    int lie_processes;
    int lost;
    char lost_uuid[96];
    double hang_s;
    /* Of the call that asked. */
    int code;
    int hangs;
    int loses;
    double slow_s;
    /* A GPU or MIG device that a service has a handle on, though nothing runs there. */
    char held_uuid[96];
    int real_latency;
    int is_vgpu;
};

/* The directory of this process's node, with all that is below it; 0 where there is none. */
int find_node(char *path, size_t size);

/* The simulation's directory; 0 where there is none. */
int find_root(char *path, size_t size);

/* The value of a `key=value` line; 0 where there is no such line or it does not fit. */
int find_value(const char *text, const char *key, char *value, size_t size);

/* The number in a `key=value` line, or a count; 0 where there is none. */
double find_number(const char *text, const char *key);
unsigned find_count(const char *text, const char *key);

/* A small regular file as a string; the number of bytes, or -1. */
ssize_t read_text(const char *path, char *text, size_t size);

int read_gpu(const char *node, int nvml_index, struct gpu *gpu);
int is_permitted(const struct gpu *gpu);

/* Replace values of a GPU's file: keys, NULL at the end, and numbers. The lock is held. */
int write_gpu_values(const char *node, const struct gpu *gpu, const char *const *keys,
                     const unsigned *values);

/* The node's lock as a file, to be closed; -1 where it cannot be had. */
int lock_node(const char *node, int operation);

/* The number in a text, whatever the locale; 0 where there is none. */
double to_number(const char *text);

/* The living processes with a context on the GPU, by pid; their number. */
int read_processes(const char *node, const char *uuid, struct process *found, int most);

/* All that was ever used on the GPU above idle: shares times seconds, and millijoules as power. */
void read_sums(const char *node, const char *uuid, struct use *sums);

/* The same of one GPU instance, in shares of the whole GPU. */
void read_instance_sums(const char *node, const char *uuid, unsigned gpu_instance,
                        struct use *sums);

/* What is to go wrong, for the named call too; NULL where it has been asked before. */
void read_faults(struct faults *faults, const char *call);

/* From now on a GPU has fallen off the bus, for every process. */
void lose_gpu(const char *uuid);

/* Seconds since the machine's start, and since any fixed moment. */
double read_boot_s(void);
double read_monotonic_s(void);

#endif
