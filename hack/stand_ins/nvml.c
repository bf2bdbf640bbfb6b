/*
 * A libnvidia-ml.so.1 for machines without a GPU. It answers from the file of the cards (gpus.h),
 * and tells of the memory and work of the processes that use the stand-in for CUDA (cuda.c).
 *
 * The file is read at every nvmlInitWithFlags, so that a test can change the machine between two
 * readings. A query without a line is NVML_ERROR_NOT_SUPPORTED. An answer is
 *
 *     a text or a number     returned as it is; several numbers have blanks between them
 *     !<number>              that nvmlReturn_t
 *     ~<path> <answer>       blocks until the path exists, then returns the answer
 *
 * As in the real library, the cards are counted when NVML is initialised, and not again until it is
 * shut down as often as it was initialised.
 *
 * Events are the lines `<card> <type> <data> [GPU instance]` that are added to the file <file>.events while there
 * is an event set. The query `events` of a card is the mask of types that it supports; `event_wait`
 * of the system is queried before each wait.
 *
 * The file <file>.open has the indices of the cards that the process keeps open. While NVML is initialised,
 * the process has <file>.nvidiactl open, in place of /dev/nvidiactl.
 *
 * Memory limits of cgroups are lines `<card> <hard> <cgroup>` of <file>.limits. `accounting` is dmem or
 * misc; `group_used` are the bytes of each cgroup, to which <file>.used adds lines `<card> <bytes>
 * <cgroup>` for this cgroup and those above; `set_limits` and `get_limits` make a call fail. A limit below
 * the use is refused by misc and silently dropped by dmem.
 *
 * In MIG mode a card has as many partitions as its query `partitions` says. Queries about partition 1 of
 * card 0 have the scope 0.1; `instances` is the number of its GPU instance and of its compute instance,
 * `attributes` are its multiprocessors and MiB.
 * The query `profile4` of a card has the multiprocessors of a GPU instance of NVML's profile 4.
 *
 * Processes are also lines `<scope> <list> <pid> <number>` of <file>.processes. A list is compute, graphics
 * or mps, with bytes, or utilization, with percent; a query of that name makes its call fail.
 *
 * With the query `threads` of the system, only that many threads may call; calls from others return
 * NVML_ERROR_UNKNOWN. -DOLD_DRIVER omits the functions that drivers before 510 or 615 lack, and -DNO_EVENTS
 * those for events.
 *
 * Layouts and numbers: nvml.h.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpus.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    OPERATING_SYSTEM = 17,
    UNKNOWN = 999,
};
enum { MAX_PARTITIONS = 8, MAX_SCOPE = 16 };
enum { MAX_THREADS = 16, MAX_LISTED = 1024, MEMORY_V2 = 0x02000028, RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };
#define EXPORT __attribute__((visibility("default")))

typedef int Return;
/* index: of the card in the file; partition: its number and one, 0 for the card itself */
typedef struct { int index, partition; } Handle, *Device;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long bytes; } ProcessInfo;
typedef struct { unsigned pid; unsigned long long number; unsigned instance, compute; } ProcessInfoV3;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } Sample;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned value_type, result;
    union { unsigned number; double wide; } value;
} FieldValue;
typedef struct {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;
typedef struct { unsigned long long types[MAX_CARDS]; FILE *file; } *EventSet;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the answers */
static Machine machine;
static int started, control;
static unsigned counted;
static long threads[MAX_THREADS];
static Handle handles[MAX_CARDS][1 + MAX_PARTITIONS];
static int is_open[MAX_CARDS];

/* Under the lock. */
static int is_known_thread(void)
{
    long self = syscall(SYS_gettid);
    char most[MAX_ANSWER];

    if (!machine_find(&machine, "system", "threads", most))
        return 1;
    for (int i = 0; i < MAX_THREADS && i < atoi(most); i++) {
        if (threads[i] == 0)
            threads[i] = self;
        if (threads[i] == self)
            return 1;
    }
    return 0;
}

/* Opens the file <file>.<name>. */
static FILE *open_book(const char *name, const char *mode)
{
    char path[4096];

    snprintf(path, sizeof path, "%s.%s", machine_path(), name);
    return fopen(path, mode);
}

static void write_open(void)
{
    FILE *file = open_book("open", "w");

    for (int i = 0; file && i < MAX_CARDS; i++)
        if (is_open[i])
            fprintf(file, "%d ", i);
    if (file)
        fclose(file);
}

static void write_scope(Device device, char *scope)
{
    if (device->partition)
        snprintf(scope, MAX_SCOPE, "%d.%d", device->index, device->partition - 1);
    else
        snprintf(scope, MAX_SCOPE, "%d", device->index);
}

/* Returns the answer to a query of a card or partition, or of the system without one. */
static Return ask(Device device, const char *query, char *answer)
{
    char scope[MAX_SCOPE] = "system";
    int known, found;

    if (!started)
        return UNINITIALIZED;
    if (device)
        write_scope(device, scope);
    pthread_mutex_lock(&lock);
    known = is_known_thread();
    found = machine_find(&machine, scope, query, answer);
    pthread_mutex_unlock(&lock);
    if (!known || !found)
        return known ? NOT_SUPPORTED : UNKNOWN;
    if (answer[0] == '~') {
        char path[MAX_ANSWER], rest[MAX_ANSWER] = "";

        sscanf(answer + 1, "%255s %255[^\n]", path, rest);
        while (access(path, F_OK) != 0)
            usleep(5000);
        strcpy(answer, rest);
    }
    return answer[0] == '!' ? atoi(answer + 1) : SUCCESS;
}

/* The result of a query that only makes a call fail; without a line the call succeeds. */
static Return failure(Device device, const char *query)
{
    char answer[MAX_ANSWER] = "";
    Return result = ask(device, query, answer);

    return result == NOT_SUPPORTED && !answer[0] ? SUCCESS : result;
}

static Return ask_text(Device device, const char *query, char *text, unsigned length)
{
    char answer[MAX_ANSWER];
    Return result = ask(device, query, answer);

    if (result != SUCCESS)
        return result;
    if (strlen(answer) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(text, answer);
    return SUCCESS;
}

/* Reads what an answer has, as sscanf does. */
static Return ask_values(Device device, const char *query, const char *format, ...)
{
    char answer[MAX_ANSWER];
    va_list values;
    Return result = ask(device, query, answer);

    va_start(values, format);
    if (result == SUCCESS)
        vsscanf(answer, format, values);
    va_end(values);
    return result;
}

EXPORT Return nvmlInitWithFlags(unsigned flags)
{
    Return result = DRIVER_NOT_LOADED;
    int is_read;

    pthread_mutex_lock(&lock);
    is_read = machine_read(&machine);
    if (started++ == 0) {
        char path[4096];

        counted = (unsigned)machine.visible_count;
        snprintf(path, sizeof path, "%s.nvidiactl", machine_path());
        control = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    }
    pthread_mutex_unlock(&lock);
    if (is_read)
        result = failure(NULL, "init");
    pthread_mutex_lock(&lock);
    if (result != SUCCESS && --started == 0)
        close(control);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT Return nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT Return nvmlShutdown(void)
{
    Return result = SUCCESS;

    pthread_mutex_lock(&lock);
    if (!started)
        result = UNINITIALIZED;
    else if (--started == 0) {
        memset(is_open, 0, sizeof is_open);
        write_open();
        close(control);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT const char *nvmlErrorString(Return result)
{
    return "an error of the stand-in";
}

EXPORT Return nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return ask_text(NULL, "driver", version, length);
}

EXPORT Return nvmlSystemGetCudaDriverVersion_v2(unsigned *version)
{
    return ask_values(NULL, "cuda", "%i", version);
}

EXPORT Return nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = counted;
    return started ? SUCCESS : UNINITIALIZED;
}

EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    int card;

    if (index >= MAX_CARDS)
        return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    card = index < (unsigned)machine.visible_count ? machine.visible[index] : (int)index;
    handles[card][0].index = card;
    if (started && !is_open[card]) {
        is_open[card] = 1;
        write_open();
    }
    pthread_mutex_unlock(&lock);
    *device = &handles[card][0];
    return failure(*device, "handle");
}

EXPORT Return nvmlDeviceGetHandleByIndex(unsigned index, Device *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT Return nvmlDeviceGetHandleByUUID(const char *uuid, Device *device)
{
    char found[MAX_ANSWER];

    for (unsigned index = 0; index < counted; index++)
        if (nvmlDeviceGetHandleByIndex_v2(index, device) == SUCCESS &&
            ask(*device, "uuid", found) == SUCCESS && strcmp(found, uuid) == 0)
            return SUCCESS;
    return NOT_FOUND;
}

EXPORT Return nvmlDeviceGetIndex(Device device, unsigned *index)
{
    for (int i = 0; i < machine.visible_count; i++)
        if (machine.visible[i] == device->index)
            *index = (unsigned)i;
    return SUCCESS;
}

/* Functions that return one answer of the card. */
#define TEXT(function, query)                                          \
    EXPORT Return function(Device device, char *text, unsigned length) \
    {                                                                  \
        return ask_text(device, query, text, length);                  \
    }
#define NUMBER(function, query)                             \
    EXPORT Return function(Device device, unsigned *number) \
    {                                                       \
        return ask_values(device, query, "%i", number);     \
    }
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
#endif

EXPORT Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo *pci)
{
    Return result = ask_text(device, "pci", pci->bus_id, sizeof pci->bus_id);

    if (result == SUCCESS)
        sscanf(pci->bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    return result;
}

EXPORT Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    return ask_values(device, "compute_capability", "%d %d", major, minor);
}

EXPORT Return nvmlDeviceGetMaxClockInfo(Device device, int type, unsigned *clock)
{
    return ask_values(device, "clock", "%i", clock);
}

/* The query `nvlink<number>` is `<active> <type of the other end> <its PCI bus ID>`. */
static Return ask_link(Device device, unsigned link, const char *format, void *value)
{
    char query[32];

    snprintf(query, sizeof query, "nvlink%u", link);
    return ask_values(device, query, format, value);
}

EXPORT Return nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active)
{
    return ask_link(device, link, "%u", active);
}

EXPORT Return nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *type)
{
    return ask_link(device, link, "%*u %u", type);
}

EXPORT Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, PciInfo *pci)
{
    return ask_link(device, link, "%*u %*u %31s", pci->bus_id);
}

/* Memory, and the processes that use it. Before the first of them there is no state to map. */

EXPORT Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    Return result = ask_values(device, "memory", "%lli", &memory->total);

    if (result != SUCCESS)
        return result;
    memory->used = 0;
    if (machine_lock(&machine, 0)) {
        memory->used = machine_bytes(&machine, device->index);
        machine_unlock(&machine);
    }
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *room,
                                                   ProcessInfo *infos)
{
    unsigned count = 0, had = *room;

    if (machine_lock(&machine, 0)) {
        for (int i = 0; i < MAX_PROCESSES; i++) {
            const Process *process = &machine.state->processes[i];
            unsigned long long bytes = process->bytes[device->index];

            if (bytes && machine_is_alive(&machine, i) && count++ < had)
                infos[count - 1] = (ProcessInfo){(unsigned)process->pid, bytes};
        }
        machine_unlock(&machine);
    }
    *room = count;
    return had < count ? INSUFFICIENT_SIZE : SUCCESS;
}

static Return list(Device device, const char *query, unsigned *room, ProcessInfoV3 *infos)
{
    FILE *file = open_book("processes", "r");
    ProcessInfoV3 info = {.instance = ~0u, .compute = ~0u};
    Return result = failure(device, query);
    unsigned count = 0;
    char name[32], scope[MAX_SCOPE], own[MAX_SCOPE];

    write_scope(device, own);
    while (file && fscanf(file, "%15s %31s %u %llu\n", scope, name, &info.pid, &info.number) == 4)
        if (strcmp(scope, own) == 0 && strcmp(name, query) == 0 && count++ < *room)
            infos[count - 1] = info;
    if (file)
        fclose(file);
    if (result == SUCCESS && *room < count)
        result = INSUFFICIENT_SIZE;
    *room = count;
    return result;
}

#ifndef OLD_DRIVER
#define LIST(function, query)                                                            \
    EXPORT Return function(Device device, unsigned *room, ProcessInfoV3 *infos)           \
    {                                                                                    \
        return list(device, query, room, infos);                                         \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
#endif

EXPORT Return nvmlDeviceGetProcessUtilization(Device device, Sample *samples, unsigned *room,
                                              unsigned long long last_seen_us)
{
    ProcessInfoV3 listed[MAX_LISTED];
    unsigned count = 0, more = MAX_LISTED;
    Return result = list(device, "utilization", &more, listed);

    if (result != SUCCESS || !samples) {
        *room = MAX_PROCESSES + more;
        return result != SUCCESS ? result : INSUFFICIENT_SIZE;
    }
    for (; count < more && count < *room; count++)
        samples[count] = (Sample){listed[count].pid, machine_now_ns() / 1000,
                                  (unsigned)listed[count].number, 0, 0, 0};
    if (machine_lock(&machine, 0)) {
        for (int i = 0; i < MAX_PROCESSES && count < *room; i++) {
            const Process *process = &machine.state->processes[i];
            unsigned percent = process->pid ? machine_percent(process, device->index) : 0;

            if (percent && machine_is_alive(&machine, i))
                samples[count++] = (Sample){(unsigned)process->pid, machine_now_ns() / 1000,
                                            percent, 0, 0, 0};
        }
        machine_unlock(&machine);
    }
    *room = count;
    return count ? SUCCESS : NOT_FOUND;
}

#ifndef NO_EVENTS
/* Lines that are in the file already are past events. */
EXPORT Return nvmlEventSetCreate(EventSet *set)
{
    if (!started)
        return UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    (*set)->file = open_book("events", "r");
    if ((*set)->file)
        fseek((*set)->file, 0, SEEK_END);
    return SUCCESS;
}

EXPORT Return nvmlEventSetFree(EventSet set)
{
    if (set->file)
        fclose(set->file);
    free(set);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types)
{
    return ask_values(device, "events", "%lli", types);
}

EXPORT Return nvmlDeviceRegisterEvents(Device device, unsigned long long types, EventSet set)
{
    set->types[device->index] |= types;
    return failure(device, "register");
}

static int next_event(EventSet set, EventData *event)
{
    char line[MAX_ANSWER];
    int index;

    if (!set->file)
        return 0;
    clearerr(set->file); /* it may have grown */
    event->gpu_instance = event->compute_instance = ~0u;
    while (fgets(line, sizeof line, set->file))
        if (sscanf(line, "%d %llu %llu %u", &index, &event->type, &event->data,
                   &event->gpu_instance) >= 3 && set->types[index] & event->type) {
            event->device = &handles[index][0];
            return 1;
        }
    return 0;
}

EXPORT Return nvmlEventSetWait_v2(EventSet set, EventData *event, unsigned timeout_ms)
{
    Return result = failure(NULL, "event_wait");

    if (result != SUCCESS)
        return result;
    for (unsigned waited_ms = 0; waited_ms < timeout_ms; waited_ms += 5) {
        if (next_event(set, event))
            return SUCCESS;
        usleep(5000);
    }
    return TIMEOUT;
}
#endif

#ifndef OLD_DRIVER
EXPORT Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values)
{
    for (int i = 0; i < count; i++) {
        values[i].result = NOT_SUPPORTED;
        values[i].value_type = UNSIGNED_INT;
        if (values[i].field == RECOVERY_ACTION)
            values[i].result =
                (unsigned)ask_values(device, "recovery", "%i", &values[i].value.number);
    }
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory)
{
    Memory found = {0, 0, 0};
    Return result = nvmlDeviceGetMemoryInfo(device, &found);

    if (memory->version != MEMORY_V2)
        return INVALID_ARGUMENT;
    if (result != SUCCESS)
        return result;
    memory->total = found.total;
    memory->used = found.used;
    memory->free = found.free;
    return ask_values(device, "reserved", "%lli", &memory->reserved);
}

EXPORT Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    return ask_values(device, "mig", "%u %u", current, pending);
}

/* As in the real library, the numbers of partitions have gaps. */
EXPORT Return nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count)
{
    return ask_values(device, "partitions", "%u", count);
}

EXPORT Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *partition)
{
    char uuid[MAX_ANSWER];
    Return result;

    if (index >= MAX_PARTITIONS)
        return INVALID_ARGUMENT;
    *partition = &handles[device->index][1 + index];
    **partition = (Handle){device->index, 1 + (int)index};
    result = ask(*partition, "uuid", uuid);
    return result == NOT_SUPPORTED ? NOT_FOUND : result;
}

EXPORT Return nvmlDeviceGetGpuInstanceId(Device device, unsigned *id)
{
    return ask_values(device, "instances", "%u", id);
}

EXPORT Return nvmlDeviceGetComputeInstanceId(Device device, unsigned *id)
{
    return ask_values(device, "instances", "%*u %u", id);
}

typedef struct { unsigned multiprocessors, engines[5], slices[2]; unsigned long long mib; } Attributes;

EXPORT Return nvmlDeviceGetAttributes_v2(Device device, Attributes *attributes)
{
    *attributes = (Attributes){0};
    return ask_values(device, "attributes", "%u %llu", &attributes->multiprocessors, &attributes->mib);
}

typedef struct { unsigned id, p2p, slices, instances, multiprocessors, engines[5]; unsigned long long mib; } Profile;

EXPORT Return nvmlDeviceGetGpuInstanceProfileInfo(Device device, unsigned profile, Profile *info)
{
    char query[32];

    *info = (Profile){0};
    snprintf(query, sizeof query, "profile%u", profile);
    return ask_values(device, query, "%u", &info->multiprocessors);
}

typedef struct { const char *group; unsigned long long soft, hard, used; } Limits;
_Static_assert(sizeof(Limits) == 32, "nvml.h; 24 without `used`, which only the getter has");

static unsigned long long group_used(Device device, const char *group)
{
    FILE *file = open_book("used", "r");
    unsigned long long used = 0, bytes;
    char line[4096];
    int index;

    ask_values(device, "group_used", "%llu", &used);
    while (file && fscanf(file, "%d %llu %4095[^\n]\n", &index, &bytes, line) == 3)
        if (index == device->index && strncmp(line, group, strlen(group)) == 0 &&
            strchr("/", line[strlen(group)]))
            used += bytes;
    if (file)
        fclose(file);
    return used;
}

static Return use_limits(Device device, const char *query, Limits *limits, int is_set)
{
    char answer[MAX_ANSWER] = "", group[4096];
    unsigned long long used = group_used(device, limits->group), total = 0, hard;
    Return result = ask(device, "accounting", answer);
    int index, is_misc = strcmp(answer, "misc") == 0, is_limited = is_set;
    FILE *file;

    ask_values(device, "memory", "%llu", &total);
    if (result != SUCCESS || (result = failure(device, query)) != SUCCESS)
        return result;
    file = open_book("limits", "a+");
    if (is_set && access(limits->group, F_OK) != 0)
        result = OPERATING_SYSTEM;
    else if (is_set && (limits->soft > limits->hard || (limits->hard > total && ~limits->hard) ||
                        (limits->hard < used && is_misc)))
        result = INVALID_ARGUMENT;
    else if (is_set && limits->hard >= used) /* otherwise the kernel drops it */
        fprintf(file, "%d %llu %s\n", device->index, limits->hard, limits->group);
    while (!is_set && fscanf(file, "%d %llu %4095[^\n]\n", &index, &hard, group) == 3)
        if (index == device->index && strcmp(group, limits->group) == 0) {
            *limits = (Limits){limits->group, 0, hard, used};
            is_limited = is_misc || ~hard;
        }
    fclose(file);
    return is_limited ? result : is_misc ? NOT_SUPPORTED : NOT_FOUND;
}

EXPORT Return nvmlDeviceSetMemoryLimits_v1(Device device, Limits *limits)
{
    return use_limits(device, "set_limits", limits, 1);
}

EXPORT Return nvmlDeviceGetMemoryLimits_v1(Device device, Limits *limits)
{
    return use_limits(device, "get_limits", limits, 0);
}
#endif
