/*
 * A libnvidia-ml.so.1 for machines without a GPU, about the same cards and processes as the
 * stand-in for CUDA (cuda.c): what discovery, HAMi-core and monitors ask. Cards: gpus.h.
 *
 * Only those cards are counted whose device nodes are visible, as in a container. Processes have
 * the PIDs that they have on the host. Event sets are there, but no event ever comes.
 *
 * Layouts and numbers: nvml.h.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "gpus.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    DRIVER_NOT_LOADED = 9,
};
enum { MEMORY_V2 = 0x02000028, CUDA_VERSION = 12040, TESLA = 14, AMPERE = 7, CORES = 64 };
#define EXPORT __attribute__((visibility("default")))

typedef int Return;
typedef const int *Device; /* the card's place among the visible ones */

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long bytes; } ProcessV1;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } ProcessV2;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } Sample;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned value_type, result;
    unsigned long long value;
} FieldValue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below */
static Machine machine;
static int started;

EXPORT Return nvmlInitWithFlags(unsigned flags)
{
    Return result = SUCCESS;

    pthread_mutex_lock(&lock);
    if (!machine.state && !machine_open(&machine))
        result = DRIVER_NOT_LOADED;
    else
        started++;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT Return nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT Return nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT Return nvmlShutdown(void)
{
    Return result = SUCCESS;

    pthread_mutex_lock(&lock);
    if (started)
        started--;
    else
        result = UNINITIALIZED;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT const char *nvmlErrorString(Return result)
{
    return "an error of the stand-in";
}

EXPORT Return nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "%s", machine.driver);
    return started ? SUCCESS : UNINITIALIZED;
}

EXPORT Return nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = CUDA_VERSION;
    return SUCCESS;
}

EXPORT Return nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* Devices. */

static const Card *card_of(Device device)
{
    return &machine.cards[*device];
}

EXPORT Return nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)machine.visible_count;
    return started ? SUCCESS : UNINITIALIZED;
}

EXPORT Return nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    if (!started)
        return UNINITIALIZED;
    if (index >= (unsigned)machine.visible_count)
        return INVALID_ARGUMENT;
    *device = &machine.visible[index];
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetHandleByIndex(unsigned index, Device *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT Return nvmlDeviceGetHandleByUUID(const char *uuid, Device *device)
{
    for (int i = 0; started && i < machine.visible_count; i++)
        if (strcasecmp(machine.cards[machine.visible[i]].uuid, uuid) == 0) {
            *device = &machine.visible[i];
            return SUCCESS;
        }
    return started ? NOT_FOUND : UNINITIALIZED;
}

EXPORT Return nvmlDeviceGetIndex(Device device, unsigned *index)
{
    *index = (unsigned)(device - machine.visible);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetUUID(Device device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "%s", card_of(device)->uuid);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetName(Device device, char *name, unsigned length)
{
    snprintf(name, length, "%s", card_of(device)->name);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMinorNumber(Device device, unsigned *minor)
{
    *minor = (unsigned)card_of(device)->minor;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo *pci)
{
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", card_of(device)->bus_id);
    sscanf(pci->bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetPciInfo_v2(Device device, PciInfo *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

EXPORT Return nvmlDeviceGetBrand(Device device, unsigned *brand)
{
    *brand = TESLA;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetArchitecture(Device device, unsigned *architecture)
{
    *architecture = AMPERE;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    *major = 8;
    *minor = 0;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMaxClockInfo(Device device, int type, unsigned *clock)
{
    *clock = 1410;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetNumGpuCores(Device device, unsigned *cores)
{
    *cores = (unsigned)card_of(device)->multiprocessors * CORES;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    *current = *pending = 0;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetComputeMode(Device device, unsigned *mode)
{
    *mode = 0;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values)
{
    for (int i = 0; i < count; i++)
        values[i].result = NOT_SUPPORTED;
    return SUCCESS;
}

/* Memory, processes and their work. */

static uint64_t used(Device device)
{
    uint64_t bytes;

    machine_lock(&machine);
    bytes = machine_bytes(&machine, *device);
    machine_unlock(&machine);
    return bytes;
}

EXPORT Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    memory->total = card_of(device)->bytes;
    memory->used = used(device);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory)
{
    if (memory->version != MEMORY_V2)
        return INVALID_ARGUMENT;
    memory->total = card_of(device)->bytes;
    memory->reserved = 0;
    memory->used = used(device);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

/* Copies the processes that have memory on the card; returns their number. */
static unsigned processes_on(Device device, ProcessV2 *found)
{
    unsigned count = 0;

    machine_lock(&machine);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const Process *process = &machine.state->processes[i];

        if (process->bytes[*device] && machine_is_alive(&machine, i))
            found[count++] = (ProcessV2){(unsigned)process->pid, process->bytes[*device], ~0U, ~0U};
    }
    machine_unlock(&machine);
    return count;
}

static Return fits(unsigned *room, unsigned count)
{
    unsigned had = *room;

    *room = count;
    return had < count ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT Return nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *room, ProcessV1 *infos)
{
    ProcessV2 found[MAX_PROCESSES];
    unsigned count = processes_on(device, found);
    Return result = fits(room, count);

    for (unsigned i = 0; i < count && result == SUCCESS; i++)
        infos[i] = (ProcessV1){found[i].pid, found[i].bytes};
    return result;
}

EXPORT Return nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *room,
                                                      ProcessV2 *infos)
{
    ProcessV2 found[MAX_PROCESSES];
    unsigned count = processes_on(device, found);
    Return result = fits(room, count);

    if (result == SUCCESS)
        memcpy(infos, found, count * sizeof *infos);
    return result;
}

EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *room,
                                                      ProcessV2 *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v2(device, room, infos);
}

EXPORT Return nvmlDeviceGetProcessUtilization(Device device, Sample *samples, unsigned *room,
                                              unsigned long long last_seen_us)
{
    unsigned count = 0;

    if (!samples) {
        *room = MAX_PROCESSES;
        return INSUFFICIENT_SIZE;
    }
    machine_lock(&machine);
    for (int i = 0; i < MAX_PROCESSES && count < *room; i++) {
        const Process *process = &machine.state->processes[i];
        unsigned percent = process->pid ? machine_percent(process, *device) : 0;

        if (percent && machine_is_alive(&machine, i))
            samples[count++] = (Sample){(unsigned)process->pid, machine_now_ns() / 1000,
                                        percent, 0, 0, 0};
    }
    machine_unlock(&machine);
    *room = count;
    return count ? SUCCESS : NOT_FOUND;
}

EXPORT Return nvmlDeviceGetUtilizationRates(Device device, Utilization *utilization)
{
    Sample samples[MAX_PROCESSES];
    unsigned count = MAX_PROCESSES, sum = 0;

    if (nvmlDeviceGetProcessUtilization(device, samples, &count, 0) == SUCCESS)
        for (unsigned i = 0; i < count; i++)
            sum += samples[i].sm;
    *utilization = (Utilization){sum > 100 ? 100 : sum, 0};
    return SUCCESS;
}

/* Events. */

EXPORT Return nvmlEventSetCreate(void **set)
{
    *set = malloc(1);
    return started ? SUCCESS : UNINITIALIZED;
}

EXPORT Return nvmlEventSetFree(void *set)
{
    free(set);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types)
{
    *types = 0xffff;
    return SUCCESS;
}

EXPORT Return nvmlDeviceRegisterEvents(Device device, unsigned long long types, void *set)
{
    return SUCCESS;
}

EXPORT Return nvmlEventSetWait_v2(void *set, void *event, unsigned timeout_ms)
{
    usleep(timeout_ms * 1000);
    return TIMEOUT;
}
