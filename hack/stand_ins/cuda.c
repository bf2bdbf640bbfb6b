/*
 * A libcuda.so.1 for machines without a GPU: the part of CUDA's driver API that limiters hook and
 * that the test program uses (tenant.c). Cards, and what processes share of them: gpus.h.
 *
 * Memory is only counted, and an address is a number that leads nowhere: an allocation fails with CUDA_ERROR_OUT_OF_MEMORY once all processes
 * together have more than the card. Kernels take time on a card, one after the other in the order
 * of their launches, and compute nothing; a process may be QUEUE_NS ahead of the card.
 *
 * CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER work as in CUDA. Without PCI_BUS_ID as the order, the
 * card with the most multiprocessors comes first. If the folder CUDA_MPS_PIPE_DIRECTORY (or else
 * /tmp/nvidia-mps) has a file `control`, a process is limited by CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
 * and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, as under MPS.
 *
 * Numbers and layouts: cuda.h.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "gpus.h"

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
};
enum { CUDA_VERSION = 12040, RESERVED_HIGH = 6, USED_HIGH = 8 };
#define QUEUE_NS 20000000ULL /* 20 ms */
#define EXPORT __attribute__((visibility("default")))

typedef int Result;
typedef unsigned long long Pointer;
typedef struct { int device; } Context;
typedef struct { uint64_t at_ns; } Event;
typedef struct Chunk {
    Pointer address;
    uint64_t bytes;
    int device, is_async;
    struct Chunk *next;
} Chunk;

static Machine machine;
static Process *self;
static int devices[MAX_CARDS], device_count; /* the process's devices, as indices of cards */
static Context primary[MAX_CARDS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the context */
static Chunk *chunks;
static int retained[MAX_CARDS];
static uint64_t end_ns[MAX_CARDS], mps_bytes[MAX_CARDS];
static uint64_t pool_bytes[MAX_CARDS], pool_high_bytes[MAX_CARDS];
static uint64_t mps_percent = 100;

static _Thread_local Context *context; /* of this thread */

/* Order and visibility of devices. */

static int by_bus(const void *left, const void *right)
{
    return strcasecmp(machine.cards[*(const int *)left].bus_id,
                      machine.cards[*(const int *)right].bus_id);
}

static int fastest_first(const void *left, const void *right)
{
    int difference = machine.cards[*(const int *)right].multiprocessors
        - machine.cards[*(const int *)left].multiprocessors;

    return difference ? difference : by_bus(left, right);
}

static int named(const char *name, const int *all, int count)
{
    char *end;
    long index = strtol(name, &end, 10);

    if (*name && *end == '\0')
        return index >= 0 && index < count ? all[index] : -1;
    for (int i = 0; i < count; i++)
        if (*name && strncasecmp(machine.cards[all[i]].uuid, name, strlen(name)) == 0)
            return all[i];
    return -1;
}

static void find_devices(void)
{
    const char *order = getenv("CUDA_DEVICE_ORDER"), *wanted = getenv("CUDA_VISIBLE_DEVICES");
    int all[MAX_CARDS], count = machine.visible_count;
    char *copy, *rest = NULL;

    memcpy(all, machine.visible, sizeof all);
    qsort(all, (size_t)count, sizeof *all,
          order && strcmp(order, "PCI_BUS_ID") == 0 ? by_bus : fastest_first);
    device_count = 0;
    if (!wanted) {
        memcpy(devices, all, sizeof all);
        device_count = count;
        return;
    }
    copy = strdup(wanted);
    for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        int card = named(name, all, count);

        if (card < 0)
            break; /* CUDA ignores the names after a wrong one */
        devices[device_count++] = card;
    }
    free(copy);
}

static void read_mps_limits(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY"), *percent, *limits;
    char path[4096], *copy, *rest = NULL;
    unsigned device;
    unsigned long long mib;

    snprintf(path, sizeof path, "%s/control", folder && *folder ? folder : "/tmp/nvidia-mps");
    if (access(path, F_OK) != 0)
        return;
    percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    if (percent && atoi(percent) > 0 && atoi(percent) < 100)
        mps_percent = (uint64_t)atoi(percent);
    copy = strdup(limits ? limits : "");
    for (char *each = strtok_r(copy, ",", &rest); each; each = strtok_r(NULL, ",", &rest))
        if (sscanf(each, "%u=%lluM", &device, &mib) == 2 && device < MAX_CARDS)
            mps_bytes[device] = mib * MIB;
    free(copy);
}

EXPORT Result cuInit(unsigned flags)
{
    Result result = SUCCESS;

    pthread_mutex_lock(&lock);
    if (!self) {
        if (machine_read(&machine) && machine_map(&machine, O_CREAT)) {
            find_devices();
            read_mps_limits();
            if (device_count) {
                machine_lock(&machine);
                self = machine_enter(&machine);
                machine_unlock(&machine);
            }
        }
        for (int i = 0; i < MAX_CARDS; i++)
            primary[i].device = i;
        result = self ? SUCCESS : NO_DEVICE;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT Result cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return SUCCESS;
}

/* Devices. */

static Result check(int device)
{
    if (!self)
        return NOT_INITIALIZED;
    return device >= 0 && device < device_count ? SUCCESS : INVALID_DEVICE;
}

static const Card *card_of(int device)
{
    return &machine.cards[devices[device]];
}

EXPORT Result cuDeviceGetCount(int *count)
{
    *count = device_count;
    return self ? SUCCESS : NOT_INITIALIZED;
}

EXPORT Result cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return check(ordinal);
}

EXPORT Result cuDeviceGetName(char *name, int length, int device)
{
    if (check(device) == SUCCESS)
        snprintf(name, (size_t)length, "%s", card_of(device)->name);
    return check(device);
}

EXPORT Result cuDeviceGetUuid(unsigned char *uuid, int device)
{
    Result result = check(device);
    const char *text = result == SUCCESS ? card_of(device)->uuid + strlen("GPU-") : "";
    unsigned byte;

    for (int i = 0; i < 16 && result == SUCCESS; i++) {
        text += *text == '-';
        sscanf(text, "%2x", &byte);
        uuid[i] = (unsigned char)byte;
        text += 2;
    }
    return result;
}

EXPORT Result cuDeviceGetPCIBusId(char *text, int length, int device)
{
    if (check(device) == SUCCESS)
        snprintf(text, (size_t)length, "%s", card_of(device)->bus_id);
    return check(device);
}

EXPORT Result cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    if (check(device) == SUCCESS)
        *bytes = card_of(device)->bytes;
    return check(device);
}

EXPORT Result cuDeviceGetAttribute(int *value, int attribute, int device)
{
    Result result = check(device);

    if (result != SUCCESS)
        return result;
    switch (attribute) {
    case 1: *value = 1024; break;                            /* threads of a block */
    case 10: *value = 32; break;                             /* threads of a warp */
    case 16: *value = card_of(device)->multiprocessors; break;
    case 39: *value = 2048; break;                           /* threads of a multiprocessor */
    case 75: *value = 8; break;                              /* compute capability, major */
    case 83: case 102: case 115: *value = 1; break;          /* managed, virtual, pools */
    default: *value = 0;
    }
    return SUCCESS;
}

/* Contexts. */

static int current(void)
{
    return context ? context->device : -1;
}

static Result take(int device, uint64_t bytes)
{
    int card = devices[device];
    Result result = SUCCESS;

    machine_lock(&machine);
    if (machine_bytes(&machine, card) + bytes > machine.cards[card].bytes
        || (mps_bytes[device] && self->bytes[card] + bytes > mps_bytes[device]))
        result = OUT_OF_MEMORY;
    else
        self->bytes[card] += bytes;
    machine_unlock(&machine);
    return result;
}

static void give_back(int device, uint64_t bytes)
{
    machine_lock(&machine);
    self->bytes[devices[device]] -= bytes;
    machine_unlock(&machine);
}

EXPORT Result cuDevicePrimaryCtxRetain(Context **found, int device)
{
    Result result = check(device);

    if (result != SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    if (retained[device] == 0)
        result = take(device, machine.context_bytes);
    if (result == SUCCESS) {
        retained[device]++;
        *found = &primary[device];
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT Result cuDevicePrimaryCtxRelease_v2(int device)
{
    Result result = check(device);

    if (result != SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    if (retained[device] == 0)
        result = INVALID_CONTEXT;
    else if (--retained[device] == 0)
        give_back(device, machine.context_bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT Result cuCtxSetCurrent(Context *wanted)
{
    context = wanted;
    return SUCCESS;
}

EXPORT Result cuCtxGetCurrent(Context **found)
{
    *found = context;
    return self ? SUCCESS : NOT_INITIALIZED;
}

EXPORT Result cuCtxGetDevice(int *device)
{
    if (!context)
        return self ? INVALID_CONTEXT : NOT_INITIALIZED;
    *device = current();
    return SUCCESS;
}

/* Memory. */

static Result allocate(Pointer *address, uint64_t bytes, int device, int is_async)
{
    static Pointer next = 1ULL << 40;
    Chunk *chunk;
    Result result = device < 0 ? INVALID_CONTEXT : bytes ? take(device, bytes) : INVALID_VALUE;

    if (result != SUCCESS)
        return result;
    chunk = malloc(sizeof *chunk);
    pthread_mutex_lock(&lock);
    *chunk = (Chunk){next, bytes, device, is_async, chunks};
    next += bytes;
    chunks = chunk;
    if (is_async && (pool_bytes[device] += bytes) > pool_high_bytes[device])
        pool_high_bytes[device] = pool_bytes[device];
    pthread_mutex_unlock(&lock);
    *address = chunk->address;
    return SUCCESS;
}

static Result release(Pointer address)
{
    Chunk *found = NULL;

    pthread_mutex_lock(&lock);
    for (Chunk **each = &chunks; *each; each = &(*each)->next)
        if ((*each)->address == address) {
            found = *each;
            *each = found->next;
            if (found->is_async)
                pool_bytes[found->device] -= found->bytes;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!found)
        return address ? INVALID_VALUE : SUCCESS;
    give_back(found->device, found->bytes);
    free(found);
    return SUCCESS;
}

EXPORT Result cuMemAlloc_v2(Pointer *address, size_t bytes)
{
    return allocate(address, bytes, current(), 0);
}

EXPORT Result cuMemAllocManaged(Pointer *address, size_t bytes, unsigned flags)
{
    return allocate(address, bytes, current(), 0);
}

EXPORT Result cuMemAllocPitch_v2(Pointer *address, size_t *pitch, size_t width, size_t height,
                                 unsigned element)
{
    *pitch = (width + 511) / 512 * 512;
    return allocate(address, *pitch * height, current(), 0);
}

EXPORT Result cuMemAllocAsync(Pointer *address, size_t bytes, void *stream)
{
    return allocate(address, bytes, current(), 1);
}

EXPORT Result cuMemFree_v2(Pointer address)
{
    return release(address);
}

EXPORT Result cuMemGetInfo_v2(size_t *available, size_t *total)
{
    int device = current();
    uint64_t bytes;

    if (device < 0)
        return INVALID_CONTEXT;
    machine_lock(&machine);
    bytes = machine_bytes(&machine, devices[device]);
    machine_unlock(&machine);
    *total = card_of(device)->bytes;
    *available = *total > bytes ? *total - bytes : 0;
    return SUCCESS;
}

typedef struct { int type, handle_types, location_type, device; } Properties;

EXPORT Result cuMemCreate(Pointer *handle, size_t bytes, const Properties *properties,
                          unsigned long long flags)
{
    Result result = check(properties->device);

    return result == SUCCESS ? allocate(handle, bytes, properties->device, 0) : result;
}

EXPORT Result cuDeviceGetMemPool(int **pool, int device)
{
    *pool = &devices[device];
    return check(device);
}

EXPORT Result cuMemPoolGetAttribute(int *pool, int attribute, uint64_t *value)
{
    int device = (int)(pool - devices);

    *value = attribute == RESERVED_HIGH || attribute == USED_HIGH ? pool_high_bytes[device]
                                                                  : pool_bytes[device];
    return SUCCESS;
}

/* Kernels, streams and events. */

static void sleep_until(uint64_t moment_ns)
{
    struct timespec moment = {(time_t)(moment_ns / 1000000000), (long)(moment_ns % 1000000000)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) != 0)
        ;
}

static uint64_t later(uint64_t left, uint64_t right)
{
    return left > right ? left : right;
}

static void count_busy(int card, uint64_t moment_ns, uint64_t busy_ns)
{
    uint64_t number = moment_ns / BUCKET_NS;
    Bucket *bucket = &self->buckets[card][number % BUCKETS];

    if (bucket->number != number)
        *bucket = (Bucket){number, 0};
    bucket->busy_ns += busy_ns;
}

/* Appends a kernel to the card's work. Under MPS it has a part of the card for a longer time. */
static void launch(int device, uint64_t blocks)
{
    int card = devices[device];
    uint64_t now, end, busy_ns = machine.block_ns * blocks;

    machine_lock(&machine);
    now = machine_now_ns();
    end = later(now, machine.state->busy_until_ns[card]) + busy_ns;
    machine.state->busy_until_ns[card] = end;
    count_busy(card, end, busy_ns);
    machine_unlock(&machine);
    pthread_mutex_lock(&lock);
    end_ns[device] = later(end, later(now, end_ns[device]) + busy_ns * 100 / mps_percent);
    end = end_ns[device];
    pthread_mutex_unlock(&lock);
    if (end > now + QUEUE_NS)
        sleep_until(end - QUEUE_NS);
}

EXPORT Result cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             void *stream, void **params, void **extra)
{
    if (!function)
        return INVALID_VALUE;
    if (!context)
        return self ? INVALID_CONTEXT : NOT_INITIALIZED;
    launch(current(), (uint64_t)grid_x * grid_y * grid_z);
    return SUCCESS;
}

static uint64_t end_of(int device)
{
    uint64_t end;

    pthread_mutex_lock(&lock);
    end = end_ns[device];
    pthread_mutex_unlock(&lock);
    return end;
}

EXPORT Result cuCtxSynchronize(void)
{
    if (!context)
        return self ? INVALID_CONTEXT : NOT_INITIALIZED;
    sleep_until(end_of(current()));
    return SUCCESS;
}

EXPORT Result cuEventCreate(Event **event, unsigned flags)
{
    *event = calloc(1, sizeof **event);
    return context ? SUCCESS : INVALID_CONTEXT;
}

EXPORT Result cuEventRecord(Event *event, void *stream)
{
    if (!context)
        return INVALID_CONTEXT;
    event->at_ns = later(machine_now_ns(), end_of(current()));
    return SUCCESS;
}

EXPORT Result cuEventSynchronize(Event *event)
{
    sleep_until(event->at_ns);
    return SUCCESS;
}

/* Modules: the content is not looked at. */

EXPORT Result cuModuleLoadData(void **module, const void *image)
{
    *module = &machine;
    return context ? SUCCESS : INVALID_CONTEXT;
}

EXPORT Result cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return module ? SUCCESS : INVALID_VALUE;
}

/* Errors and addresses. */

EXPORT Result cuGetErrorName(Result result, const char **name)
{
    switch (result) {
    case SUCCESS: *name = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    default: *name = "CUDA_ERROR_UNKNOWN";
    }
    return SUCCESS;
}

/* Base names, as callers of cuGetProcAddress have them. */
#define SAME(name) {#name, (void *)name}
#define SECOND(name) {#name, (void *)name##_v2}
Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                           int *status);
static const struct { const char *name; void *function; } entries[] = {
    SAME(cuInit), SAME(cuDriverGetVersion), SAME(cuDeviceGetCount), SAME(cuDeviceGet),
    SAME(cuDeviceGetName), SAME(cuDeviceGetUuid), SAME(cuDeviceGetPCIBusId),
    SECOND(cuDeviceTotalMem), SAME(cuDeviceGetAttribute), SAME(cuDevicePrimaryCtxRetain),
    SECOND(cuDevicePrimaryCtxRelease), SAME(cuCtxSetCurrent), SAME(cuCtxGetCurrent),
    SAME(cuCtxGetDevice), SAME(cuCtxSynchronize), SECOND(cuMemAlloc), SAME(cuMemAllocManaged),
    SECOND(cuMemAllocPitch), SAME(cuMemAllocAsync), SECOND(cuMemFree), SECOND(cuMemGetInfo),
    SAME(cuMemCreate), SAME(cuDeviceGetMemPool), SAME(cuMemPoolGetAttribute), SAME(cuLaunchKernel),
    SAME(cuEventCreate), SAME(cuEventRecord), SAME(cuEventSynchronize), SAME(cuModuleLoadData),
    SAME(cuModuleGetFunction), SAME(cuGetErrorName), SECOND(cuGetProcAddress),
};

EXPORT Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                  int *status)
{
    *function = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries && !*function; i++)
        if (strcmp(entries[i].name, name) == 0)
            *function = entries[i].function;
    if (status)
        *status = *function ? 0 : 1; /* found, or no such symbol */
    return *function ? SUCCESS : NOT_FOUND;
}
