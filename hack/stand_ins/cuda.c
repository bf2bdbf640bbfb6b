/*
 * A libcuda.so.1 for machines without a GPU: the part of CUDA's driver API that limiters hook and
 * that the test program uses (tenant.c). Cards, and what processes share of them: gpus.h.
 *
 * Memory is only counted, and its address is that of a record of its size: an allocation fails with
 * CUDA_ERROR_OUT_OF_MEMORY once all processes together have more than the card. Kernels take time
 * on a card, one after the other in the order of their launches, and compute nothing; a process may
 * be QUEUE_NS ahead of the card.
 *
 * CUDA_VISIBLE_DEVICES, by index, and CUDA_DEVICE_ORDER work as in CUDA. Without PCI_BUS_ID as the
 * order, the card with the most multiprocessors comes first. If CUDA_MPS_PIPE_DIRECTORY has a file
 * `control`, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE limit a process
 * as under MPS, memory on the first device only.
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
enum { CUDA_VERSION = 12040 };
#define QUEUE_NS 20000000ULL /* 20 ms */
#define EXPORT __attribute__((visibility("default")))

typedef int Result;
typedef unsigned long long Pointer;
typedef struct { int device; } Context;
typedef struct { uint64_t bytes; int device; } Chunk;

static Machine machine;
static Process *self;
static int devices[MAX_CARDS], device_count; /* the process's devices, as indices of cards */
static Context primary[MAX_CARDS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the context */
static int retained[MAX_CARDS];
static uint64_t end_ns[MAX_CARDS];
static uint64_t pool_bytes[MAX_CARDS]; /* from cuMemAllocAsync; nothing is given back */
static uint64_t mps_bytes, mps_percent = 100;

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

static void find_devices(void)
{
    const char *order = getenv("CUDA_DEVICE_ORDER"), *wanted = getenv("CUDA_VISIBLE_DEVICES");
    int all[MAX_CARDS], count = machine.visible_count;
    char *end;

    memcpy(all, machine.visible, sizeof all);
    qsort(all, (size_t)count, sizeof *all,
          order && strcmp(order, "PCI_BUS_ID") == 0 ? by_bus : fastest_first);
    device_count = 0;
    for (int i = 0; i < count && !wanted; i++)
        devices[device_count++] = all[i];
    for (; wanted && *wanted; wanted = *end ? end + 1 : end) {
        long index = strtol(wanted, &end, 10);

        if (end == wanted || index < 0 || index >= count)
            break; /* CUDA ignores the names after a wrong one */
        devices[device_count++] = all[index];
    }
}

static void read_mps_limits(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY"), *memory, *percent;
    char path[4096];
    unsigned long long mib;

    snprintf(path, sizeof path, "%s/control", folder ? folder : "");
    if (!folder || access(path, F_OK) != 0)
        return;
    memory = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    if (memory && sscanf(memory, "0=%lluM", &mib) == 1)
        mps_bytes = mib * MIB;
    if (percent)
        mps_percent = (uint64_t)atoi(percent);
}

EXPORT Result cuInit(unsigned flags)
{
    Result result = SUCCESS;

    pthread_mutex_lock(&lock);
    if (!self) {
        if (machine_read(&machine) && machine_lock(&machine, O_CREAT)) {
            find_devices();
            read_mps_limits();
            self = device_count ? machine_enter(&machine) : NULL;
            machine_unlock(&machine);
        }
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

/* Under MPS, as many as the limit leaves: seen on an H200 with driver 580.159.04. */
static int multiprocessors_of(int device)
{
    return card_of(device)->multiprocessors * (int)mps_percent / 100;
}

EXPORT Result cuDeviceGetAttribute(int *value, int attribute, int device)
{
    Result result = check(device);

    if (result != SUCCESS)
        return result;
    switch (attribute) {
    case 16: *value = multiprocessors_of(device); break;
    case 39: *value = 2048; break;                           /* threads of a multiprocessor */
    case 75: *value = 8; break;                              /* compute capability, major */
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

    machine_lock(&machine, 0);
    if (machine_bytes(&machine, card) + bytes > machine.cards[card].bytes
        || (device == 0 && mps_bytes && self->bytes[card] + bytes > mps_bytes))
        result = OUT_OF_MEMORY;
    else
        self->bytes[card] += bytes;
    machine_unlock(&machine);
    return result;
}

static void give_back(int device, uint64_t bytes)
{
    machine_lock(&machine, 0);
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
        primary[device].device = device;
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

static Result allocate(Pointer *address, uint64_t bytes, int device)
{
    Result result = device < 0 ? INVALID_CONTEXT : bytes ? take(device, bytes) : INVALID_VALUE;
    Chunk *chunk;

    if (result != SUCCESS)
        return result;
    chunk = malloc(sizeof *chunk);
    *chunk = (Chunk){bytes, device};
    *address = (Pointer)(uintptr_t)chunk;
    return SUCCESS;
}

EXPORT Result cuMemAlloc_v2(Pointer *address, size_t bytes)
{
    return allocate(address, bytes, current());
}

EXPORT Result cuMemAllocManaged(Pointer *address, size_t bytes, unsigned flags)
{
    return allocate(address, bytes, current());
}

EXPORT Result cuMemAllocPitch_v2(Pointer *address, size_t *pitch, size_t width, size_t height,
                                 unsigned element)
{
    *pitch = (width + 511) / 512 * 512;
    return allocate(address, *pitch * height, current());
}

EXPORT Result cuMemAllocAsync(Pointer *address, size_t bytes, void *stream)
{
    Result result = allocate(address, bytes, current());

    pthread_mutex_lock(&lock);
    if (result == SUCCESS)
        pool_bytes[current()] += bytes;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT Result cuMemFree_v2(Pointer address)
{
    Chunk *chunk = (Chunk *)(uintptr_t)address;

    if (chunk)
        give_back(chunk->device, chunk->bytes);
    free(chunk);
    return SUCCESS;
}

EXPORT Result cuMemGetInfo_v2(size_t *available, size_t *total)
{
    int device = current();
    uint64_t bytes;

    if (device < 0)
        return INVALID_CONTEXT;
    machine_lock(&machine, 0);
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

    return result == SUCCESS ? allocate(handle, bytes, properties->device) : result;
}

EXPORT Result cuDeviceGetMemPool(int **pool, int device)
{
    *pool = &devices[device];
    return check(device);
}

EXPORT Result cuMemPoolGetAttribute(int *pool, int attribute, uint64_t *value)
{
    *value = pool_bytes[pool - devices];
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
static Result append(uint64_t blocks)
{
    uint64_t now, end, busy_ns = machine.block_ns * blocks;
    int device = current(), card;

    if (device < 0)
        return INVALID_CONTEXT;
    card = devices[device];
    machine_lock(&machine, 0);
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
    return SUCCESS;
}

EXPORT Result cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             void *stream, void **params, void **extra)
{
    return append((uint64_t)grid_x * grid_y * grid_z);
}

/* A graph is the number of blocks of its one kernel. */
EXPORT Result cuGraphLaunch(const unsigned *blocks, void *stream)
{
    return append(*blocks);
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

EXPORT Result cuEventCreate(uint64_t **event, unsigned flags)
{
    *event = calloc(1, sizeof **event);
    return context ? SUCCESS : INVALID_CONTEXT;
}

EXPORT Result cuEventRecord(uint64_t *event, void *stream)
{
    if (!context)
        return INVALID_CONTEXT;
    *event = later(machine_now_ns(), end_of(current()));
    return SUCCESS;
}

EXPORT Result cuEventSynchronize(uint64_t *event)
{
    sleep_until(*event);
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

EXPORT Result cuGetErrorName(Result result, const char **name)
{
    *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return SUCCESS;
}

/* What tenant.c looks up, by the base names that callers of cuGetProcAddress have. */
#define SAME(name) {#name, (void *)name}
#define SECOND(name) {#name, (void *)name##_v2}
static const struct { const char *name; void *function; } entries[] = {
    SAME(cuDeviceGetCount), SAME(cuDeviceGetPCIBusId), SECOND(cuDeviceTotalMem), SAME(cuInit),
    SAME(cuDevicePrimaryCtxRetain), SAME(cuCtxSetCurrent), SAME(cuCtxSynchronize),
    SECOND(cuMemAlloc), SAME(cuMemAllocManaged), SECOND(cuMemAllocPitch), SAME(cuMemAllocAsync),
    SAME(cuMemCreate), SECOND(cuMemGetInfo), SAME(cuLaunchKernel), SAME(cuGraphLaunch),
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
